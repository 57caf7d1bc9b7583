"""Measure whether jobs on all grids end with equal weights, each through a loss and a restore.

    python benchmarks/equality.py [--quick]

Jobs that differ in ``pipelines`` alone: 1 to 8 pipelines of 1 to 4 stages, with 8, 12, 64 and 128
micro-batches of the global batch. Agents are processes that talk over tcp. One of them gets SIGKILL
in the second step, the others go on, later all get SIGKILL, and new ones restore a checkpoint on
another grid. ``grids``: jobs that have ended. ``unequal``: those of them whose last checkpoint or
losses are not those of one agent that nothing disturbs. ``--quick``: a few small grids, and nothing
is written.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api.spec import JobSpec, RedundancyMode, RedundancySpec
from bamboo_core.model.ids import Fence
from bamboo_core.model.numerics import choose
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Manifest, Progress, Sealed
from bamboo_sim.programs import results_file
from bamboo_sim.workers import plans
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

STEPS = 4
MICROBATCHES = (8, 12, 64, 128)
GRIDS = tuple(product(range(1, 9), range(1, 5)))
QUICK = ((1, 1), (1, 2), (2, 2), (3, 1))
TEXT_BYTES = 6400  # for the largest batch


@dataclass(frozen=True)
class Outcome:
    """How a job has ended."""

    losses: tuple[float, ...]
    layers: tuple[str, ...]  # a digest of each one's weights, buffers and optimizer state


class Run:
    """One job. ``fleet``: its agents now."""

    def __init__(self, folder: Path, microbatches: int, pipelines: int, stages: int) -> None:
        job = tiny_gpt(
            steps=STEPS, microbatches=microbatches, uri=str(folder), save_every=1, keep=9
        )
        mode = RedundancyMode.REPLICA if stages > 1 else RedundancyMode.NONE
        data = replace(job.data, args={**job.data.args, "limit_bytes": TEXT_BYTES})
        self.job: JobSpec = replace(job, redundancy=RedundancySpec(mode), data=data)
        self._grid = plans.grid_of(self.job, pipelines=pipelines, stages=stages)
        self._batch = choose(microbatches=microbatches, pipelines_max=pipelines)
        self._names = plans.names(pipelines * stages)
        self.losses: dict[int, float] = {}

    @contextmanager
    def agents(self) -> Iterator[ProcessFleet]:
        """New agents for all seats."""
        fleet = ProcessFleet(self.job, self._names)
        try:
            yield fleet
        finally:
            for agent in [*fleet.agents()]:
                fleet.kill(agent)
            fleet.close()

    def plan(
        self,
        fleet: ProcessFleet,
        fence: Fence,
        before: Plan | None = None,
        manifest: Manifest | None = None,
    ) -> Plan:
        """Give them a plan."""
        ready = fleet.ready()
        decided = plans.decide(
            self._grid,
            fence=fence,
            layers=ready.layers,
            reports=fleet.stop(fence),
            batch=self._batch,
            before=before,
            manifest=manifest,
            peers=fleet.peers,
            validation_samples=ready.validation_samples,
        )
        fleet.install(decided)
        return decided.plan

    def wait(self, fleet: ProcessFleet, step: int) -> Manifest:
        """Until they have sealed a checkpoint of this step or a later one."""

        def sealed() -> list[Manifest]:
            found = [m.manifest for _, m in fleet.messages if isinstance(m, Sealed)]
            return [m for m in found if m.step >= step]

        fleet.wait(lambda: bool(sealed()))
        return sealed()[-1]

    def note(self, fleet: ProcessFleet) -> None:
        """The losses that they have reported. AssertionError if a step has two."""
        for _, message in fleet.messages:
            if isinstance(message, Progress) and message.commit.step < STEPS:
                commit = message.commit
                assert self.losses.setdefault(commit.step, commit.loss) == commit.loss

    def outcome(self, manifest: Manifest, layers: int) -> Outcome:
        """The contents of the last checkpoint."""
        assert self.job.checkpoint is not None
        checkpoints = Checkpoints(self.job.checkpoint.uri, "uid")
        found = (checkpoints.read_layer(manifest, layer) for layer in range(layers))
        losses = tuple(self.losses[step] for step in range(STEPS))
        return Outcome(losses, tuple(map(digest, found)))


def digest(record: LayerRecord) -> str:
    """A hash of all bits of a layer's state."""
    found = hashlib.sha256(record.extra.encode())
    for name, tensor in sorted(record.tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def undisturbed(microbatches: int) -> Outcome:
    """One agent from the first step to the last."""
    with tempfile.TemporaryDirectory() as folder:
        run, fence = Run(Path(folder), microbatches, 1, 1), Fence(0, 1, 1)
        with run.agents() as fleet:
            plan = run.plan(fleet, fence)
            fleet.run_to_end(fence)
            run.note(fleet)
            return run.outcome(run.wait(fleet, STEPS), plan.layers)


def disturbed(microbatches: int, grid: tuple[int, int], then: tuple[int, int]) -> Outcome:
    """A job that loses an agent, then all of them. then: the grid of those that restore it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), microbatches, *grid)
        with run.agents() as fleet:
            first = run.plan(fleet, Fence(0, 1, 1))
            manifest = run.wait(fleet, 1)
            if len(first.live) > 1:
                fleet.kill(first.live[len(first.live) // 2])
                run.plan(fleet, Fence(0, 1, 2), before=first)
                manifest = run.wait(fleet, 2)
            run.note(fleet)
        fence, again = Fence(1, 1, 3), Run(Path(folder), microbatches, *then)
        again.losses = run.losses
        with again.agents() as fleet:
            plan = again.plan(fleet, fence, manifest=manifest)
            fleet.run_to_end(fence)
            again.note(fleet)
            return again.outcome(again.wait(fleet, STEPS), plan.layers)


def main() -> None:
    """Run all jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    grids, counts = (QUICK, MICROBATCHES[:2]) if quick else (GRIDS, MICROBATCHES)
    unequal: list[str] = []
    for microbatches in counts:
        right = undisturbed(microbatches)
        for grid, then in zip(grids, (*grids[1:], grids[0]), strict=True):
            found = disturbed(microbatches, grid, then)
            name = f"{grid[0]}x{grid[1]} M={microbatches}"
            print(name, "equal" if found == right else "UNEQUAL", flush=True)
            unequal += [name] if found != right else []
    figures = {"grids": len(counts) * len(grids), "unequal": len(unequal)}
    print(figures)
    if not quick:
        samples = {"unequal": unequal}
        print(results_file.write("equality", samples=samples, figures=figures, note=__doc__))
    if unequal:
        raise SystemExit(f"unequal: {', '.join(unequal)}")


if __name__ == "__main__":
    main()
