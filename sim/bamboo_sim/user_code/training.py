"""Trains a case's job in real processes: undisturbed, through a loss, and from a checkpoint.

All runs of a case share one folder of checkpoints. Each is an attempt of its own, so that a run can
load what another one has written. Equal shapes of the batch make equal bits on all grids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api.spec import JobSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Fingerprint, Manifest, Ready, Sealed
from bamboo_sim.user_code.processes import CaseFleet, Death, Serve, serve_here
from bamboo_sim.workers import plans

STEPS, SAVE_EVERY = 9, 4
"""The checkpoint of step 4 lies between two steps that three divides."""
DIES_IN = 6
MICROBATCHES, SIZE = 4, 2
BATCH = BatchShape(MICROBATCHES, 1, 2)
GRIDS: tuple[tuple[int, int], ...] = ((1, 1), (1, 2), (2, 2))
"""Pipelines and stages."""
DEATHS = {
    (1, 1): Death(STEPS - 1, Op.F, 3),
    (1, 2): Death(DIES_IN, Op.B, 2),
    (2, 2): Death(DIES_IN, Op.UPDATE),
}
_NEWCOMER = AgentId("new")


@dataclass
class Trained:
    """What a run has computed.

    losses: step -> loss and norm as text, so that a NaN equals itself; layers: the last checkpoint.
    """

    fingerprints: set[Fingerprint]
    losses: dict[int, tuple[str, str]] = field(default_factory=dict)
    layers: list[LayerRecord] = field(default_factory=list)


def differences(one: Trained, other: Trained) -> list[str]:
    """Names of what in the second run is not bit for bit as in the first, which has all steps."""
    found = []
    if one.fingerprints != other.fingerprints or len(one.fingerprints) > 1:
        found.append("agents have different fingerprints")
    for step, losses in sorted(other.losses.items()):
        if losses != one.losses[step]:
            found.append(f"loss and norm of step {step}: {losses}, not {one.losses[step]}")
    for index, (a, b) in enumerate(zip(one.layers, other.layers, strict=True)):
        found += [f"layer {index}: {what}" for what in _unequal(a, b)]
    return found


def _unequal(one: LayerRecord, other: LayerRecord) -> list[str]:
    names = sorted(one.tensors.keys() | other.tensors.keys())
    unequal = [x for x in names if not _is_equal(one.tensors.get(x), other.tensors.get(x))]
    is_equal = replace(one, tensors={}) == replace(other, tensors={})
    return unequal + ([] if is_equal else [f"{one} and {other}"])


def _is_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return torch.equal(*bits)


def _step(manifest: Manifest) -> int:
    return manifest.step


def set_up(job: JobSpec, folder: Path, count: int) -> set[Fingerprint]:
    """The fingerprints of so many workers. EndedError if one refuses the job."""
    fleet = CaseFleet(job, plans.names(count), folder, {}, serve_here)
    try:
        fleet.ready()
        return fingerprints(fleet)
    finally:
        fleet.close()


def fingerprints(fleet: CaseFleet) -> set[Fingerprint]:
    """All that its workers have sent."""
    return {m.fingerprint for _, m in fleet.messages if isinstance(m, Ready)}


class Runs:
    """The runs of one job. ``folder``: for logs and checkpoints; serve: what a process runs."""

    def __init__(self, job: JobSpec, folder: Path, serve: Serve) -> None:
        self._job, self._folder, self._serve = job, folder, serve
        assert job.checkpoint is not None
        self._checkpoints = Checkpoints(job.checkpoint.uri, "uid")
        self._attempt = 0
        self._manifests: dict[int, list[Manifest]] = {}

    def undisturbed(self) -> Trained:
        """One agent, no loss."""
        return self._train((1, 1), None)

    def through_a_restore(self, grid: tuple[int, int]) -> Trained:
        """New processes load the first checkpoint of the undisturbed run."""
        return self._train(grid, self._manifests[1][0])

    def through_a_loss(self, grid: tuple[int, int]) -> Trained:
        """An agent dies in mid-step. With a live copy the others go on, and one pipeline more gets
        a new agent. Without, new processes load the last checkpoint."""
        self._attempt += 1
        pipelines, stages = grid
        job = plans.grid_of(self._job, pipelines=pipelines, stages=stages)
        if grid == (1, 2):
            job = replace(job, redundancy=RedundancySpec(RedundancyMode.REPLICA))
        agents = plans.names(pipelines * stages)
        victim = agents[-1]
        with self._fleet(agents, {victim: DEATHS[grid]}) as (fleet, trained):
            before = self._install(fleet, job, epoch=1)
            fleet.await_death(victim)
            if grid == (1, 1):
                self._read(fleet, trained)
                last = self._newest()
            else:
                if pipelines > 1:
                    fleet.add(_NEWCOMER)
                self._finish(fleet, trained, job, epoch=2, before=before)
                return trained
        later = self._train(grid, last)
        later.fingerprints |= trained.fingerprints
        return replace(later, losses=trained.losses | later.losses)

    def _train(self, grid: tuple[int, int], manifest: Manifest | None) -> Trained:
        self._attempt += 1
        job = plans.grid_of(self._job, pipelines=grid[0], stages=grid[1])
        with self._fleet(plans.names(grid[0] * grid[1]), {}) as (fleet, trained):
            self._finish(fleet, trained, job, epoch=1, manifest=manifest)
        return trained

    @contextlib.contextmanager
    def _fleet(
        self, agents: tuple[AgentId, ...], deaths: Mapping[AgentId, Death]
    ) -> Iterator[tuple[CaseFleet, Trained]]:
        logs = self._folder / f"logs-{self._attempt}"
        logs.mkdir()
        fleet = CaseFleet(self._job, agents, logs, deaths, self._serve)
        try:
            yield fleet, Trained(set())
        finally:
            fleet.close()

    def _install(
        self,
        fleet: CaseFleet,
        job: JobSpec,
        *,
        epoch: int,
        before: Plan | None = None,
        manifest: Manifest | None = None,
    ) -> Plan:
        ready, fence = fleet.ready(), Fence(self._attempt, 1, epoch)
        decided = plans.decide(
            job,
            fence=fence,
            layers=ready.layers,
            reports=fleet.stop(fence),
            batch=BATCH,
            peers=fleet.peers,
            before=before,
            manifest=manifest,
        )
        fleet.install(decided)
        return decided.plan

    def _finish(
        self,
        fleet: CaseFleet,
        trained: Trained,
        job: JobSpec,
        *,
        epoch: int,
        before: Plan | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        """Train to the end, and read the results."""
        plan = self._install(fleet, job, epoch=epoch, before=before, manifest=manifest)
        fleet.run_to_end(plan.fence)
        self._read(fleet, trained)
        last = self._manifests[self._attempt][-1]
        assert last.step == STEPS, last
        trained.layers = [
            self._checkpoints.read_layer(last, i) for i in range(fleet.ready().layers)
        ]

    def _newest(self) -> Manifest | None:
        """The last checkpoint of this attempt; None: the agent died before one was complete."""
        good = self._checkpoints.scan().good
        return max((m for m in good if m.attempt == self._attempt), key=_step, default=None)

    def _read(self, fleet: CaseFleet, trained: Trained) -> None:
        said = [message for _, message in fleet.messages]
        trained.fingerprints |= fingerprints(fleet)
        trained.losses |= {
            r.step: (repr(r.loss), repr(r.grad_norm)) for r in fleet.history() if r.step < STEPS
        }
        sealed = {m.manifest.step: m.manifest for m in said if isinstance(m, Sealed)}
        self._manifests[self._attempt] = [sealed[step] for step in sorted(sealed)]
