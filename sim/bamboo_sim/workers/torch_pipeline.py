"""torch.distributed.pipelining, to compare with: 1F1B on gloo, one process per stage."""

from __future__ import annotations

import multiprocessing
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch

from bamboo_agent.data.batches import Data
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.user_code import build_model
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import Range


def _stage_main(
    link: Connection, job: JobSpec, rank: int, cut: tuple[Range, ...], store: str
) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    make_deterministic()
    dist.init_process_group(
        "gloo", store=FileStore(store, len(cut)), rank=rank, world_size=len(cut)
    )
    model, data = build_model(job.model, seed=job.seed), Data(job, torch.device("cpu"))
    layers = [model.layers[i]() for i in range(*cut[rank])]
    module = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(module.parameters(), **job.training.optimizer.args)
    count = job.training.microbatches
    stage = PipelineStage(module, rank, len(cut), torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=model.loss)
    step = 0
    while (steps := link.recv()) is not None:
        ended_at = [time.perf_counter()]
        for _ in range(steps):
            _train_step(schedule, data, step, count, rank, len(cut))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            ended_at.append(time.perf_counter())
        link.send([b - a for a, b in pairwise(ended_at)])
    dist.destroy_process_group()


def _train_step(schedule: Any, data: Data, step: int, count: int, rank: int, stages: int) -> None:
    batch = [data.training(step, m) for m in range(count)]
    if rank == 0:
        schedule.step(torch.cat([x for x, _ in batch]))
    elif rank == stages - 1:
        schedule.step(target=torch.cat([y for _, y in batch]), losses=[])
    else:
        schedule.step()


class TorchPipeline:
    """Two or more stages, driven some steps at a time."""

    def __init__(self, job: JobSpec, cut: tuple[Range, ...], store: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._links = []
        self._processes = []
        for rank in range(len(cut)):
            ours, theirs = context.Pipe()
            arguments = (theirs, job, rank, cut, store)
            process = context.Process(target=_stage_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)

    def run(self, steps: int) -> list[float]:
        """Seconds of each step, as the last stage sees them."""
        for link in self._links:
            link.send(steps)
        durations: list[list[float]] = [link.recv() for link in self._links]
        return durations[-1]

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.send(None)
        for process in self._processes:
            process.join(30)
