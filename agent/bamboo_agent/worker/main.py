"""The worker process: receives the operator's messages from its supervisor, trains, reports.

    python -m bamboo_agent.worker.main --agent NAME --fd N --data-fd N --progress-fd N

It imports torch before it is needed, so that a standby agent joins in milliseconds. Before it
exits, it sends the supervisor the reason. Exit codes: bamboo_core.protocol.exit_codes.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import math
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from bamboo_agent import logs
from bamboo_agent.data.batches import Data
from bamboo_agent.device import properties
from bamboo_agent.hooks.check import NameCheck
from bamboo_agent.ipc.activity import TIMES_UNKNOWN, ActivityWriter, pair_writer
from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.loading import server
from bamboo_agent.loading.loader import Limits, Loader
from bamboo_agent.loading.server import ReaderServer
from bamboo_agent.setup.channel import choose_route, make_groups
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import code_by_factory, make_ready
from bamboo_agent.setup.lazy_dynamo import defer_import
from bamboo_agent.setup.tries import FIRST, try_loader, try_origin, try_storage
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_agent.storage.origin import identity_of, origin_of
from bamboo_agent.transport.process_group.pump import THREAD_NAME
from bamboo_agent.transport.stream import make_identity
from bamboo_agent.transport.tcp import TcpTransport
from bamboo_agent.worker.failures import TaskError, judge
from bamboo_agent.worker.shell import Worker
from bamboo_agent.worker.threads import end_with_any_thread
from bamboo_core.api.spec import JobSpec, from_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentMessage,
    Continuation,
    Directive,
    Failure,
    OperatorMessage,
    Stop,
    Welcome,
)
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode

_LEAVING_POLL_S = 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bamboo_agent.worker.main")
    parser.add_argument("--agent", required=True)
    for name in ("--fd", "--data-fd", "--progress-fd"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args(arguments)
    faulthandler.enable()  # the stack of a crash, for the log
    process = _Process(
        AgentId(given.agent),
        Pipe(socket.socket(fileno=given.fd)),
        socket.socket(fileno=given.data_fd),
        SharedProgress(given.progress_fd),
    )
    logs.configure(
        job=os.environ.get(logs.JOB_VARIABLE, ""),
        agent=given.agent,
        level=os.environ.get(logs.LEVEL_VARIABLE) or "info",
        fence=lambda: process.fence,
    )
    return _serve(process)


def serve(
    agent: AgentId,
    *,
    control: socket.socket,
    listening: socket.socket,
    shared_progress: SharedProgress,
) -> int:
    """Run until the supervisor closes the pipe or training fails. Returns the exit code."""
    return _serve(_Process(agent, Pipe(control), listening, shared_progress))


def _serve(process: _Process) -> int:
    end_with_any_thread()
    try:
        make_deterministic()
        defer_import()
        process.reader_server = server.fork()  # while there are neither threads nor a GPU
        process.run()
    except PipeClosedError:
        return ExitCode.FENCED  # the supervisor is gone
    except Exception as error:  # the first failed instruction ends the worker
        return process.fail(error)


class _Process:
    """The event loop over the pipe and the worker's descriptors."""

    def __init__(
        self, agent: AgentId, pipe: Pipe, listening: socket.socket, shared_progress: SharedProgress
    ) -> None:
        self._agent, self._pipe, self._shared_progress = agent, pipe, shared_progress
        self._listening = listening
        self.reader_server: ReaderServer | None = None
        self._worker: Worker | None = None
        self._activity: ActivityWriter | None = None
        self._is_ready = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    @property
    def fence(self) -> Fence:
        """The newest that its worker has adopted."""
        return Fence() if self._worker is None else self._worker.executor.fence

    def run(self) -> NoReturn:
        """Serve until PipeClosedError: the supervisor is gone."""
        while True:
            for data in self._pipe.receive():
                self._handle(decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data)))
            self._pipe.flush()
            if self._worker is None:
                self._wait()
            elif not self._turn(self._worker):
                if self._activity is not None:
                    self._worker.describe_wait(self._activity)
                is_leaving = self._worker.is_leaving
                self._wait(_LEAVING_POLL_S if is_leaving else self._worker.due_in_s)

    def fail(self, error: Exception) -> int:
        """Log the traceback, send the essential line to the operator, return the exit code."""
        with contextlib.suppress(Exception):  # the job's code may have put another stderr there
            traceback.print_exception(error)
        reason, line, code = judge(error, ready=self._is_ready)
        is_users = code is ExitCode.USER
        try:
            place = error.place if isinstance(error, TaskError) else ""
            self._send(Failure(reason, line, is_users, int(code), place))
            self._flush_all()
        except PipeClosedError:
            return int(code)
        return int(code)

    def _flush_all(self) -> None:
        deadline = time.monotonic() + 2.0
        while self._pipe.wants_write and time.monotonic() < deadline:
            self._wait(0.1)
            self._pipe.flush()

    def _turn(self, worker: Worker) -> bool:
        did = worker.turn()
        self._shared_progress.progress = worker.executor.completed
        self._shared_progress.step = worker.executor.step
        self._shared_progress.longest_s = worker.longest_s
        return did

    def _wait(self, timeout_s: float | None = None) -> None:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._pipe.wants_write else 0)
        self._selector.modify(self._pipe, mask)
        self._selector.select(timeout_s)

    def _handle(self, message: OperatorMessage) -> None:
        if isinstance(message, Welcome):
            if self._worker is None:
                self._set_up(message)
        elif self._worker is None:
            return
        elif isinstance(message, Stop):
            self._worker.stop(message)
        elif isinstance(message, Directive):
            self._worker.install(message)
        elif isinstance(message, Continuation):
            self._worker.proceed(message)

    def _send(self, message: AgentMessage) -> None:
        self._pipe.send(encode.agent_message(message).SerializeToString())

    def _set_up(self, welcome: Welcome) -> None:
        spec, shared = from_json(welcome.spec_json), self._shared_progress
        hooks = NameCheck(spec.hooks)
        device = properties.choose_device(spec.worker.asks)
        memory_bytes = properties.free_memory(device)
        self._activity = activity = ActivityWriter(shared, welcome.instruction_floor_s)
        setup, profile = build_setup(self._agent, spec, device, activity.computed)
        loader = self._make_loader(welcome, spec, setup.data)
        checkpoints = None
        if spec.checkpoint is not None:
            checkpoints = Checkpoints(
                spec.checkpoint.uri, welcome.job_uid, on_traffic=shared.count_traffic
            )
        job = welcome.job_uid or welcome.job
        route = choose_route(spec, device)
        transport = TcpTransport(
            job=job,
            agent=self._agent,
            listening=self._listening,
            on_traffic=shared.count_traffic,
            on_arrival=pair_writer(shared),
            on_refused=shared.count_refused,
            groups=make_groups(route, device),
            identity=make_identity() if route.is_encrypted else None,
        )
        ready = make_ready(spec, setup, profile)
        if loader is not None:
            try_loader(loader, setup.data)
        identity = identity_of(spec, ready.fingerprint, code_by_factory(spec))
        origin = origin_of(spec, identity, shared.count_traffic)
        worker = Worker(
            setup=setup,
            spec=spec,
            transport=transport,
            checkpoints=checkpoints,
            send=self._send,
            activity=activity,
            identity=identity,
            origin=origin,
            loader=loader,
        )
        for source in worker.sources:
            self._selector.register(source, selectors.EVENT_READ)
        self._worker = worker
        storage_error = "" if checkpoints is None else try_storage(self._agent, checkpoints)
        if checkpoints is not None and origin is not None and not storage_error:
            try_origin(origin, checkpoints)
        hooks.finish()
        self._send(replace(ready, storage_error=storage_error, memory_bytes=memory_bytes))
        self._is_ready = True

    def _make_loader(self, welcome: Welcome, spec: JobSpec, data: Data) -> Loader | None:
        """None: the job wants none. It begins with what :func:`try_loader` takes."""
        forked, self.reader_server = self.reader_server, None
        if not spec.data.workers:
            if forked is not None:
                forked.close()
            return None
        loader = Loader(
            spec,
            welcome.spec_json,
            Limits(welcome.start_s or math.inf, TIMES_UNKNOWN * welcome.instruction_floor_s),
            partial(server.spawn, "bamboo_agent.worker.reader_server"),
            server=forked,
        )
        loader.watch(data.watches)
        loader.want(FIRST)
        return loader


def end(code: int) -> NoReturn:
    """Exit. A thread of a process group may hang in its library; Python's own way out would abort
    the process when such a thread wakes up, and its exit code would be lost."""
    if not any(thread.name == THREAD_NAME for thread in threading.enumerate()):
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
