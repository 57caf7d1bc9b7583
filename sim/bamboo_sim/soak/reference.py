"""The job of a soak, and what every step of it must give: computed once, without faults.

A job's bits do not depend on the grid that it runs on or on its copies, so one reference serves all
grids. They depend on the order of sums, which follows from the spec; so all specs ask for two
pipelines, and the number of micro-batches allows one order only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.logs.state_log import LayerState, StateLogs
from bamboo_sim.fleet.runs.jobs import tiny_gpt

LAYERS = 6
MICROBATCHES = 6
ZONES = "abc"


@dataclass(frozen=True)
class Grid:
    pipelines: int
    stages: int
    mode: RedundancyMode

    def __str__(self) -> str:
        return f"{self.pipelines}x{self.stages} {self.mode.value}"

    @property
    def seats(self) -> int:
        return self.pipelines * self.stages

    def job(self, folder: Path, steps: int, every_steps: int) -> JobSpec:
        """A job with dropout and clipping; its checkpoints are below ``folder``."""
        return tiny_gpt(
            folder,
            steps=steps,
            pipelines=2,
            stages=self.stages,
            mode=self.mode,
            microbatches=MICROBATCHES,
            every_steps=every_steps,
        )

    def agents(self, count: int) -> dict[str, str]:
        """Name -> zone."""
        return {f"agent-{n}": f"zone-{ZONES[n % len(ZONES)]}" for n in range(count)}


QUIET = Grid(1, 1, RedundancyMode.NONE)


@dataclass(frozen=True)
class Reference:
    """commits: loss and gradient norm of each step; states: "step layer" -> hash."""

    commits: list[str]
    states: dict[str, str]

    @property
    def steps(self) -> int:
        """Number of steps of every job that is compared."""
        return len(self.commits)

    def differs(self, commit: CommitRecord) -> str:
        """How a commit differs; empty: it is right."""
        if commit.step >= len(self.commits):
            return ""  # the epilogue
        expected = self.commits[commit.step]
        return "" if describe(commit) == expected else f"{commit} is not {expected}"

    def state_differs(self, found: LayerState) -> str:
        """How a state differs; empty: it is right."""
        expected = self.states[f"{found.step} {found.layer}"]
        return "" if found.digest == expected else f"{found} is not {expected}"


def describe(commit: CommitRecord) -> str:
    """Return what does not depend on when a job validates."""
    return repr(replace(commit, validation_loss=None, validation_metrics={}))


async def compute(folder: Path, forkserver: ForkServerProcess, steps: int) -> Reference:
    """Run the job without faults."""
    spec = QUIET.job(folder, steps, 0)
    async with LocalFleet(
        spec,
        folder / "quiet",
        forkserver=forkserver,
        profiled=False,
        logs_events=False,
        logs_states=True,
    ) as fleet:
        fleet.operator.change_goal(pipelines=QUIET.pipelines)
        await fleet.add(QUIET.agents(QUIET.seats))
        over = await fleet.over(deadline_s=60.0 + steps)
        assert over.outcome is Outcome.COMPLETE, fleet.record()
        commits = fleet.operator.commits
        states = {
            f"{s.step} {s.layer}": s.digest for s in StateLogs(folder / "quiet/states").read()
        }
        return Reference([describe(commits[step]) for step in range(steps)], states)
