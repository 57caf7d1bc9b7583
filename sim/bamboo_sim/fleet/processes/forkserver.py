"""A process with torch loaded that forks workers: twelve start in 0.3 s, not in 16 s.

A client connects to the socket and sends one line of JSON (arguments, environment), its standard
error and the worker's descriptors. It gets the exit status when the worker ends. If the client ends
first, the worker is killed.

Agents on nodes share nothing, so a worker draws its seeds from the system right after the fork, and
imports the modules of its job then: this process never does. All workers inherit this process's
hash seed and the addresses of its objects, so they order sets alike.

    python -m bamboo_sim.fleet.processes.forkserver SOCKET PARENT_PID
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

MAX_REQUEST = 1 << 16
COMPARE_EVERY = 4
"""Steps between two comparisons of copies; few, so that short jobs have many."""


class ForkServer:
    """Forks on request; one connection per child."""

    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(path)
        self._listening.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ, None)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._adopt(self._listening.accept()[0])
                else:
                    self._ended(key, key.data)

    def _adopt(self, client: socket.socket) -> None:
        data, fds, _, _ = socket.recv_fds(client, MAX_REQUEST, 8)
        request = json.loads(data)
        pid = os.fork()
        if pid == 0:
            self._listening.close()
            _be_worker(request, fds)
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(OSError):  # the client has gone: the next read shows it
            client.send(json.dumps({"pid": pid}).encode())
        child = (pid, client, os.pidfd_open(pid))
        self._selector.register(client, selectors.EVENT_READ, child)
        self._selector.register(child[2], selectors.EVENT_READ, child)

    def _ended(self, key: selectors.SelectorKey, child: tuple[int, socket.socket, int]) -> None:
        """Clean up after the child or the client has ended."""
        pid, client, pidfd = child
        if pidfd not in self._selector.get_map():
            return
        if key.fileobj is client:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(client)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(OSError):  # the client may have gone first
            client.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
        client.close()


def _be_worker(request: dict[str, object], fds: list[int]) -> NoReturn:
    """Run the worker's main in the child, on the received descriptors."""
    code = 1
    try:
        from bamboo_sim.workers import system_seeds

        system_seeds.draw()
        from bamboo_agent.worker import main as worker
        from bamboo_core.model import sampling
        from bamboo_sim.fleet.injection import inside
        from bamboo_sim.fleet.injection.effects import patched
        from bamboo_sim.fleet.logs import sample_log, state_log
        from bamboo_sim.fleet.switches import group_switch, kill_switch

        os.dup2(fds[0], 2)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        file = Path(os.environ["BAMBOO_FLEET_KILL_SWITCHES"]) / str(request["agent"])
        faults = inside.begin("worker")
        supervisor = int(str(request["supervisor"]))
        switch = kill_switch.KillSwitch(file, supervisor, faults.count)
        patched(worker, "Worker", kill_switch.install(switch))  # the name that main uses
        group_switch.install(switch)
        sample_log.install(Path(os.environ["BAMBOO_FLEET_SAMPLES"]) / str(request["agent"]))
        if folder := os.environ.get(state_log.FOLDER_VARIABLE):
            state_log.install(Path(folder) / str(request["agent"]))
        patched(sampling, "COMPARE_EVERY", COMPARE_EVERY)
        inside.install_in_worker(faults)
        names = ("--fd", "--data-fd", "--progress-fd")
        arguments = ["--agent", str(request["agent"])]
        for name, fd in zip(names, fds[1:], strict=True):
            arguments += [name, str(fd)]
        code = int(worker.main(arguments))
    except BaseException:
        traceback.print_exc()  # a fault that cannot be installed says why in the agent's log
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import torch

    # Loaded here once, so that no fork has to.
    from bamboo_agent.supervisor import launch
    from bamboo_agent.worker import main as worker  # noqa: F401
    from bamboo_sim.fleet.injection import disk, inside  # noqa: F401
    from bamboo_sim.fleet.logs import sample_log, state_log  # noqa: F401
    from bamboo_sim.fleet.switches import group_switch, kill_switch  # noqa: F401
    from bamboo_sim.workers import system_seeds  # noqa: F401

    torch.set_num_threads(1)
    launch.die_with(int(sys.argv[2]))
    forkserver = ForkServer(sys.argv[1])
    print("ready", flush=True)
    forkserver.serve()


if __name__ == "__main__":
    main()
