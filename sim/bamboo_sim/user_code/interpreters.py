"""A worker in an interpreter of its own, which the supervisor's code starts.

So it has the environment of a real one. Hashes of strings differ from process to process, unless
the supervisor has seen to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.supervisor.worker_process import WorkerProcess
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import AgentMessage
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.user_code.processes import Death, prepare
from bamboo_wire import decode, encode

_DEATH_VARIABLE = "BAMBOO_CASE_DEATH"


def serve(death: Death | None, agent: AgentId, control: socket.socket, data: socket.socket) -> None:
    """Run a worker in a child until it ends, and pass on what it says and hears."""
    os.environ.pop("PYTHONHASHSEED", None)
    os.environ[_DEATH_VARIABLE] = "" if death is None else death.to_text()
    asyncio.run(_supervise(agent, Pipe(control), data))


async def _supervise(agent: AgentId, pipe: Pipe, data: socket.socket) -> None:
    ended = asyncio.Event()

    def pass_on(message: AgentMessage) -> None:
        pipe.send(encode.agent_message(message).SerializeToString())

    def hear() -> None:
        try:
            for body in pipe.receive():
                message = decode.parse_bytes(pb.OperatorMessage, body)
                worker.send(decode.operator_message(message))
        except PipeClosedError:
            ended.set()

    worker = WorkerProcess(on_message=pass_on, on_exit=lambda *_: ended.set())
    await worker.start(module=__name__, agent=agent, data_socket=data)
    asyncio.get_running_loop().add_reader(pipe.fileno(), hear)
    await ended.wait()
    await worker.close()


if __name__ == "__main__":
    from bamboo_agent.worker import main

    text = os.environ[_DEATH_VARIABLE]
    prepare(Death.parse(text) if text else None)
    main.end(main.main(sys.argv[1:]))
