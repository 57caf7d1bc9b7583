"""A worker without torch: speaks the pipe's protocol and obeys the job's name.

ns/job        Ready, reports to STOPs, Finished after a Directive
ns/silent     Ready, never reports
ns/raise      a traceback, exit 1
ns/user       a message on standard error, exit 2
ns/crash      a crash in native code
ns/garbage    bytes that are no message
ns/leave      Ready, Left after a Directive
ns/slow       never Ready
ns/second     Ready, reports from the second STOP on
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import socket
import subprocess
import sys

from bamboo_agent.ipc.pipe import Pipe, PipeClosedError
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    CommitRecord,
    Directive,
    Fingerprint,
    Finished,
    Left,
    OperatorMessage,
    Progress,
    Ready,
    Stop,
    Welcome,
)
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode


class DummyWorker:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.socket = socket.socket(fileno=arguments.fd)
        self.pipe = Pipe(self.socket)
        self.data = socket.socket(fileno=arguments.data_fd)
        self.progress = SharedProgress(arguments.progress_fd)
        self.job = ""
        self.stops = 0

    def say(self, message: AgentMessage) -> None:
        self.pipe.send(encode.agent_message(message).SerializeToString())

    def serve(self) -> None:
        while True:
            self.socket.setblocking(True)
            self.socket.recv(1, socket.MSG_PEEK)
            self.socket.setblocking(False)
            for body in self.pipe.receive():
                self.take(decode.operator_message(decode.parse_bytes(pb.OperatorMessage, body)))

    def take(self, message: OperatorMessage) -> None:
        match message:
            case Welcome():
                self.begin(message.job)
            case Stop() if self.job != "ns/silent":
                self.stops += 1
                if self.job != "ns/second" or self.stops > 1:
                    self.say(AgentReport(message.fence, message.fence, {}, frozenset()))
            case Directive():
                self.progress.progress, self.progress.step = 7, message.target
                if self.job == "ns/hooks":
                    self.say(Progress(CommitRecord(message.target), message.fence))
                self.say(Left(message.fence) if self.job == "ns/leave" else Finished(message.fence))

    def begin(self, job: str) -> None:
        self.job = job
        if job == "ns/slow":
            return
        if job == "ns/raise":
            raise RuntimeError("the model is broken")
        if job == "ns/user":
            print("spec.model.factory: no module named 'nowhere'", file=sys.stderr)
            print('{"level": "info", "message": "a line of the log"}', file=sys.stderr)
            raise SystemExit(2)
        if job == "ns/crash":
            faulthandler.enable()
            os.kill(os.getpid(), signal.SIGSEGV)
        if job == "ns/garbage":
            os.write(self.socket.fileno(), b"\0\0\0\3\xff\xff\xff")
            return
        if job == "ns/orphan":
            subprocess.Popen(["sleep", "15"], pass_fds=[self.socket.fileno()])
            raise SystemExit(1)
        host, port = self.data.getsockname()
        self.say(Ready(Fingerprint(code=f"{os.getpid()}", data=f"{host}:{port}"), 8, 1024, 1024))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--fd", "--data-fd", "--progress-fd"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--agent", required=True)
    worker = DummyWorker(parser.parse_args())
    try:
        worker.serve()
    except PipeClosedError:
        return


if __name__ == "__main__":
    main()
