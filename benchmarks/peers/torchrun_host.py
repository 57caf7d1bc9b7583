"""torchrun with some workers on this machine: DDP, and a checkpoint of rank 0 every few steps.

    python -m peers.torchrun_host forked PARENT_PID FOLDER WORKERS     forks them, torch is loaded
    python -m peers.torchrun_host standard PARENT_PID FOLDER WORKERS   each is a new interpreter
    python -m peers.torchrun_host worker FOLDER                        what ``standard`` starts

FOLDER has a folder ``commits`` for the workers' logs. The program ends with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch
import torch._dynamo  # every optimizer imports it: before the fork, once for all workers
import torch.distributed as dist
from torch.distributed import run
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from bamboo_agent.supervisor.launch import die_with

from . import workload
from .commits import CommitLog

RESTARTS = 1000
ADDRESS = "127.0.0.1"
LAUNCHER = "PEERS_LAUNCHER"
"""Environment variable with the process id of the workers' launcher."""


def train(folder: str) -> NoReturn:
    """One worker, until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the launcher's handler
    die_with(int(os.environ[LAUNCHER]))
    rank, attempt = (int(os.environ[x]) for x in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    training = workload.Training(rank)
    dist.init_process_group("gloo")
    checkpoint = Path(folder) / "checkpoint.pt"
    step = load(checkpoint, training)
    model = DistributedDataParallel(training.module)
    log = CommitLog(Path(folder) / "commits", f"rank-{rank}", attempt)
    while True:
        training.accumulate(model, step)
        training.optimizer.step()
        training.optimizer.zero_grad()
        log.add(step, dist.get_world_size() * workload.SHARE)
        step += 1
        if rank == 0 and step % workload.CHECKPOINT_EVERY == 0:
            save(checkpoint, training, step)


def load(path: Path, training: workload.Training) -> int:
    """Load the checkpoint, if there is one; the next step."""
    if not path.exists():
        return 0
    content = torch.load(path)
    training.load(content["state"])
    return int(content["step"])


def save(path: Path, training: workload.Training, step: int) -> None:
    """Write a checkpoint; the old one stays until the new one is complete."""
    new = path.with_suffix(".new")
    torch.save({"state": training.state(), "step": step}, new)
    new.replace(path)


def forked(folder: str, workers: str) -> None:
    """Run a function as ``torchrun --standalone`` runs a script."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(workers),
        run_id="peers",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{ADDRESS}:0",
        local_addr=ADDRESS,
        max_restarts=RESTARTS,
        start_method="fork",
    )
    elastic_launch(config, train)(folder)


def standard(folder: str, workers: str) -> None:
    """torchrun as people start it."""
    options = ["--standalone", f"--nproc-per-node={workers}"]
    options += [f"--max-restarts={RESTARTS}", f"--local-addr={ADDRESS}"]
    run.main([*options, "-m", "peers.torchrun_host", "worker", folder])


def main() -> None:
    mode, *arguments = sys.argv[1:]
    if mode == "worker":
        train(*arguments)
    parent, folder, workers = arguments
    die_with(int(parent))
    os.environ[LAUNCHER] = str(os.getpid())
    {"forked": forked, "standard": standard}[mode](folder, workers)


if __name__ == "__main__":
    main()
