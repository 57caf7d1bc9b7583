"""torchft on gloo: a lighthouse, and a program that forks replicas of one process each.

    python -m peers.torchft_host lighthouse PARENT_PID JOIN_MS HEARTBEAT_MS
    python -m peers.torchft_host replicas PARENT_PID FOLDER GROUP_S

The lighthouse prints its address. The other program reads a line with this address, prints
``ready``, and forks a replica for every line with a number that it reads. FOLDER has a folder
``commits`` for the replicas' logs. Both end with their parent. torchft is imported here only: it is
not among the project's dependencies.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # every optimizer imports it: before the fork, once for all workers
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from bamboo_agent.supervisor.launch import die_with

from . import workload
from .commits import CommitLog

ADDRESS = "127.0.0.1"
TICK_MS = 100
"""Between two looks of the lighthouse at its quorum; torchft's default."""


class SurvivingDdp(DistributedDataParallel):  # type: ignore[misc]  # torchft is not installed here
    """torchft's DDP with a hook that survives an error of gloo.

    The hook of torchft 0.2.0 ends the process (``assert fut._fut``): gloo's ``wait`` raises before
    the future exists. The manager has noted the error by then and does not commit the step.
    """

    @staticmethod
    def _comm_hook(state, bucket):  # type: ignore[no-untyped-def]  # torch checks annotations
        work = state.allreduce(bucket.buffer())
        work.wait()
        future = getattr(work.get_future(), "_fut", None)
        if future is None:
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
        return future


class LoggedOptimizer(Optimizer):  # type: ignore[misc]
    """torchft's optimizer, which also logs each step, committed or not."""

    def __init__(self, manager: Manager, inner: torch.optim.Optimizer, log: CommitLog) -> None:
        super().__init__(manager, inner)
        self._log = log

    def step(self, closure: object = None) -> None:
        done = self.manager.should_commit()
        if done:
            self.optim.step()
        step = self.manager.current_step() - done
        self._log.add(step, self.manager.num_participants() * workload.SHARE, done=done)


def train(replica: int, folder: Path, lighthouse: str, group_s: float) -> NoReturn:
    """One replica, until it is killed."""
    training = workload.Training(replica)
    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=group_s)),
        load_state_dict=training.load,
        state_dict=training.state,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr=ADDRESS,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=10),
    )
    model = SurvivingDdp(manager, training.module)
    log = CommitLog(folder / "commits", f"replica-{replica}")
    optimizer = LoggedOptimizer(manager, training.optimizer, log)
    while True:
        optimizer.zero_grad()
        training.accumulate(model, manager.current_step())
        optimizer.step()


def replicas(folder: str, group_s: str) -> None:
    """Fork a replica for each number on standard input."""
    host, address = os.getpid(), sys.stdin.readline().strip()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no dead replica stays
    say("ready")
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                die_with(host)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                train(int(line), Path(folder), address, float(group_s))
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)


def lighthouse(join_ms: str, heartbeat_ms: str) -> None:
    """Serve until the parent ends."""
    server = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=int(join_ms),
        heartbeat_timeout_ms=int(heartbeat_ms),
        quorum_tick_ms=TICK_MS,
    )
    say(server.address())
    signal.pause()


def say(line: str) -> None:
    """Print the one line that the parent reads; what comes later goes into the log."""
    print(line, flush=True)
    os.dup2(2, 1)


def main() -> None:
    mode, parent, *arguments = sys.argv[1:]
    die_with(int(parent))
    {"lighthouse": lighthouse, "replicas": replicas}[mode](*arguments)


if __name__ == "__main__":
    main()
