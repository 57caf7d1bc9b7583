"""Jobs that are struck again and again, and what must then be as if nothing had happened.

Every instruction of one pipeline with replicas; what commits, of two pipelines without; the
coordinator in its commit; two deaths in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tests.fleet.campaign import Campaign, Point, Strike, Task
from tests.fleet.doom import MOMENTS
from tests.fleet.jobs import tiny_gpt
from tests.fleet.local import LocalFleet, NurseryProcess
from tests.trace_validation.logs import divergences

from bamboo_core.arbitration import Happening
from bamboo_core.spec import JobSpec, RedundancyMode
from bamboo_core.view import Outcome

Points = tuple[Point | Task, ...]
ENDLESS = 1_000_000
MICROBATCHES = 8


@dataclass(frozen=True)
class Ordeal:
    """A grid and all the strikes that it shall live through; each is of points in one step."""

    name: str
    pipelines: int
    stages: int
    most: int
    mode: RedundancyMode
    strikes: tuple[Points, ...]

    def job(self, folder: Path) -> JobSpec:
        """Dropout and clipping on; checkpoints below ``folder``."""
        return tiny_gpt(
            folder,
            pipelines=self.pipelines,
            stages=self.stages,
            most=self.most,
            mode=self.mode,
            microbatches=MICROBATCHES,
        )

    def agents(self) -> dict[str, str]:
        """One for each seat, spread over three zones: name -> zone."""
        numbers = range(self.pipelines * self.stages)
        return {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in numbers}


COMMITS: tuple[Points, ...] = tuple((Task("COMMIT", m),) for _ in range(4) for m in MOMENTS)
"""Several coordinators, one after the other: each death makes another agent the coordinator."""

ONE_PIPELINE = Ordeal(
    "one_pipeline", 1, 4, 1, RedundancyMode.REPLICA,
    (*COMMITS, *((Point(0, s, m, n),) for s in range(4) for m in MOMENTS for n in range(29))),
)  # fmt: skip
COMMITTING = Ordeal(
    "committing", 2, 3, 2, RedundancyMode.NONE,
    tuple(
        (Point(d, s, m, n),)
        for d in range(2)
        for s in range(3)
        for m in MOMENTS
        for n in range(-7, 0)
    ),
)  # fmt: skip
COORDINATOR = Ordeal("coordinator", 2, 3, 2, RedundancyMode.NONE, COMMITS)
TWO_DEATHS = Ordeal(
    "two_deaths", 2, 3, 2, RedundancyMode.NONE,
    tuple(
        (Point(0, s, m, n), Point(1, (s + shift) % 3, other, k))
        for s in range(3)
        for shift in (1, 2)
        for m in MOMENTS
        for other in MOMENTS
        for n in range(0, 20, 3)
        for k in range(0, 20, 3)
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Survived:
    """The strikes that came, and the steps that were trained and compared."""

    strikes: tuple[Strike, ...]
    steps: int


async def survive(
    folder: Path, nursery: NurseryProcess, ordeal: Ordeal, strikes: Sequence[Points]
) -> Survived:
    """Train through all strikes, then compare with a job of as many steps without any.

    AssertionError unless losses, samples, weights and optimizer state are equal, bit for bit,
    nothing was restored from files, and all logs replay through the core's state machines.
    """
    job = ordeal.job(folder)
    endless = replace(job, training=replace(job.training, steps=ENDLESS))
    async with LocalFleet(endless, folder / "struck", nursery=nursery) as fleet:
        await fleet.add(ordeal.agents())
        campaign = Campaign(fleet)
        struck = [await campaign.strike(*points) for points in strikes]
        over = await fleet.suspended()
        assert over.outcome is Outcome.SUSPENDED, fleet.story()
        assert not fleet.recorded(Happening.RESTORING), fleet.story()
        steps, history, weights = fleet.steps, fleet.history(), fleet.weights()
    assert divergences(folder / "struck" / "events") == []
    assert job.checkpoint is not None
    checkpoints = replace(job.checkpoint, uri=f"file://{folder / 'quiet-checkpoints'}")
    quiet = replace(job, training=replace(job.training, steps=steps), checkpoint=checkpoints)
    async with LocalFleet(quiet, folder / "quiet", nursery=nursery) as fleet:
        await fleet.add(ordeal.agents())
        await fleet.over(deadline_s=60.0 + steps)
        pairs = zip(fleet.history(), history, strict=True)
        assert [pair for pair in pairs if repr(pair[0]) != repr(pair[1])] == [], struck
        undisturbed = fleet.weights()
    assert weights.keys() == undisturbed.keys()
    assert [name for name in weights if not torch.equal(weights[name], undisturbed[name])] == []
    return Survived(tuple(struck), steps)
