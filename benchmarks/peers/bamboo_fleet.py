"""Bamboo without Kubernetes: real agents, a real arbiter, tcp."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    RedundancyMode,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Progress
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.logs import sample_log
from bamboo_sim.fleet.runs.campaign import Campaign
from bamboo_sim.fleet.runs.jobs import TEXT, tiny_gpt

from . import workload
from .commits import Commit

UNLIMITED_STEPS = 1_000_000


def job(folder: Path, *, pipeline: bool) -> JobSpec:
    """Two pipelines of four stages with replicas; pipeline: one of eight, with checkpoints only."""
    spec = tiny_gpt(
        folder,
        pipelines=1 if pipeline else 2,
        stages=workload.WORKERS if pipeline else workload.WORKERS // 2,
        most=1 if pipeline else 2,
        mode=RedundancyMode.NONE if pipeline else RedundancyMode.REPLICA,
        microbatches=workload.MICROBATCHES,
        every_steps=workload.CHECKPOINT_EVERY if pipeline else 0,
    )
    training = replace(
        spec.training,
        steps=UNLIMITED_STEPS,
        optimizer=OptimizerSpec("torch.optim:AdamW", workload.ADAMW),
        clip_norm=0.0,
    )
    model = ModelSpec("bamboo_agent.models.gpt:build", workload.MODEL)
    return replace(spec, model=model, data=DataSpec(TEXT, workload.DATA), training=training)


class BambooFleet:
    """See :class:`peers.procedure.Fleet`. The arbiter sees closed sockets only; in one pipeline it
    sees the end of the pod, too, as the kubelet would tell it a second later: before a restore it
    waits for an agent that may live."""

    def __init__(self, folder: Path, forkserver: ForkServerProcess, *, pipeline: bool) -> None:
        spec = job(folder, pipeline=pipeline)
        self._folder = folder / "fleet"
        self._fleet = LocalFleet(spec, self._folder, forkserver=forkserver, sees_ends=pipeline)
        self._campaign = Campaign(self._fleet)
        self._killed_at = math.inf
        self._victim, self._fence = AgentId(""), Fence()

    async def start(self) -> None:
        await self._fleet.__aenter__()
        await self._fleet.add({f"agent-{n}": _zone(n) for n in range(workload.WORKERS)})

    async def close(self) -> None:
        await self._fleet.__aexit__(None, None, None)

    def commits(self) -> list[Commit]:
        return [
            Commit(said.at, said.message.commit.step, said.agent, attempt=_attempt(said.message))
            for said in self._fleet.operator.messages
            if isinstance(said.message, Progress)
        ]

    def counted(self) -> list[Commit]:
        commits = self.commits()
        log = sample_log.read(self._folder / "samples", max(c.step for c in commits) + 1)
        micro_batches = Counter(step for step, _ in log)
        return [replace(c, samples=micro_batches[c.step] * workload.SIZE) for c in commits]

    def is_full(self) -> bool:
        status = self._fleet.status()
        plan = status.plan
        if plan is None or not self._campaign.has_full_plan():
            return False
        return self._victim not in plan.live and status.progress.committed >= plan.target

    def workers(self) -> list[str]:
        return sorted(self._fleet.plan().live)

    def kill(self, worker: str) -> float:
        self._victim = AgentId(worker)
        self._fence = self._fleet.plan().fence
        self._killed_at = self._fleet.kill(worker)
        return self._killed_at

    async def replace(self, worker: str) -> None:
        await self._fleet.add({"newcomer": self._fleet.pods[AgentId(worker)].zone})

    def survived_at(self) -> float:
        later = (p for p in self._progress() if p[1].fence > self._fence)
        return min((at for at, _ in later), default=math.inf)

    def full_at(self) -> float:
        if not self.is_full():
            return math.inf
        fence = self._fleet.plan().fence
        later = (p for p in self._progress() if p[1].fence == fence)
        return min((at for at, _ in later), default=math.inf)

    def record(self) -> str:
        return self._fleet.record()

    def _progress(self) -> list[tuple[float, Progress]]:
        """Commits after the loss."""
        messages = [(said.at, said.message) for said in self._fleet.operator.messages]
        return [(at, m) for at, m in messages if isinstance(m, Progress) and at > self._killed_at]


def _attempt(progress: Progress) -> int:
    return progress.fence.attempt


def _zone(number: int) -> str:
    return f"zone-{'abc'[number % 3]}"
