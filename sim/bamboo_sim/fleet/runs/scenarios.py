"""Fault scenarios of real agents whose results must equal an undisturbed run's.

Kills at every instruction of one pipeline with replicas, also while they compute ahead; at the
instructions around a commit of two pipelines without; of the coordinator at COMMIT; and of two
agents in one step. Agents that stand still for ever, or whose worker does, at every instruction of
two pipelines. Agents that die while they make a process group, or in the middle of a message that
goes over one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import (
    Channel,
    JobSpec,
    RedundancyMode,
    TransportSpec,
)
from bamboo_core.arbiter_state.events import Timing
from bamboo_core.protocol.messages import Progress
from bamboo_sim.fleet.local_fleet import ForkServerProcess, LocalFleet
from bamboo_sim.fleet.logs.event_logs import divergences
from bamboo_sim.fleet.logs.sample_log import SampleLog
from bamboo_sim.fleet.runs.campaign import COMMIT, Campaign, InjectedFault, Point
from bamboo_sim.fleet.runs.jobs import tiny_gpt
from bamboo_sim.fleet.switches import group_switch
from bamboo_sim.fleet.switches.kill_switch import FREEZE, HANG, MOMENTS

Points = tuple[Point, ...]
UNLIMITED_STEPS = 1_000_000
MICROBATCHES = 8


@dataclass(frozen=True)
class Scenario:
    """A grid and the faults to inject into it. A fault is one or two points in one step."""

    name: str
    pipelines: int
    stages: int
    most: int
    mode: RedundancyMode
    faults: tuple[Points, ...] = ()
    channel: Channel = Channel.AUTO
    width: int = 32  # of the model
    hosts_ahead: bool = False  # what is computed ahead waits in host memory

    def over(self, channel: Channel) -> Scenario:
        """The same with another channel."""
        return replace(self, channel=channel)

    def job(self, folder: Path) -> JobSpec:
        """A job with dropout and clipping; its checkpoints are below ``folder``."""
        found = tiny_gpt(
            folder,
            pipelines=self.pipelines,
            stages=self.stages,
            most=self.most,
            mode=self.mode,
            microbatches=MICROBATCHES,
            width=self.width,
        )
        return replace(found, transport=TransportSpec(self.channel))

    def unlimited_job(self, folder: Path) -> JobSpec:
        """The same job without an end."""
        job = self.job(folder)
        return replace(job, training=replace(job.training, steps=UNLIMITED_STEPS))

    def agents(self) -> dict[str, str]:
        """Name -> zone of one agent for each seat."""
        numbers = range(self.pipelines * self.stages)
        return {f"agent-{n}": f"zone-{'abc'[n % 3]}" for n in numbers}

    def instructions(self, pipeline: int) -> tuple[str, ...]:
        """Names of all instructions of a pipeline's seat in a steady step. One seat has COMMIT.

        The names are compared with the instructions that each victim ran.
        """
        share = MICROBATCHES // self.pipelines
        own = range(pipeline * share, (pipeline + 1) * share)
        copies = ("UPDATE copy",) if self.mode.keeps_copies else ()
        tasks = [f"{op} m{m}" for op in ("F", "B") for m in own]
        tasks += [f"FOLD m{m}" for m in _additions(own.start, own.stop)]
        end = ("SLICE", f"REDUCE m{pipeline}", "VOTE", COMMIT, "UPDATE")
        return (*tasks, *end, *copies)

    def points(
        self,
        pipeline: int,
        stage: int,
        last: int | None = None,
        moments: Sequence[str] = MOMENTS,
    ) -> tuple[Point, ...]:
        """All instructions of a seat, or the ``last`` ones, at every moment."""
        names = self.instructions(pipeline)
        chosen = names if last is None else names[-last:]
        return tuple(Point(pipeline, stage, moment, name) for moment in moments for name in chosen)

    def seats(self) -> list[tuple[int, int]]:
        """(pipeline, stage) of the whole grid."""
        return [(d, s) for d in range(self.pipelines) for s in range(self.stages)]


def _additions(first: int, end: int) -> Iterator[int]:
    """Where sums of these leaves meet, in the order in which they are added up."""
    if end - first > 1:
        middle = (first + end) // 2
        yield from _additions(first, middle)
        yield from _additions(middle, end)
        yield middle


TIMING = Timing(start_grace_s=0.2, join_grace_s=0.2, instruction_floor_s=2.0)
PHASES = 6
"""Instructions at the end of a step: the last FOLD, SLICE, REDUCE, VOTE, COMMIT, UPDATE."""

_ONE = Scenario("one_pipeline", 1, 4, 1, RedundancyMode.REPLICA)
_TWO = Scenario("committing", 2, 3, 2, RedundancyMode.NONE)
ONE_PIPELINE = replace(
    _ONE, faults=tuple((point,) for seat in _ONE.seats() for point in _ONE.points(*seat))
)
EAGER = replace(ONE_PIPELINE, name="eager", mode=RedundancyMode.EAGER, hosts_ahead=True)
EAGER_ON_DEVICE = replace(EAGER, name="eager_on_device", hosts_ahead=False)
COMMITTING = replace(
    _TWO, faults=tuple((point,) for seat in _TWO.seats() for point in _TWO.points(*seat, PHASES))
)
COORDINATOR = replace(
    COMMITTING,
    name="coordinator",
    faults=tuple((point,) for (point,) in COMMITTING.faults if point.instruction == COMMIT),
)
STANDSTILLS = replace(
    _TWO,
    name="standstills",
    faults=tuple(
        (point,) for seat in _TWO.seats() for point in _TWO.points(*seat, moments=(HANG, FREEZE))
    ),
)
TWO_DEATHS = replace(
    _TWO,
    name="two_deaths",
    faults=tuple(
        (one, other)
        for s in range(_TWO.stages)
        for shift in range(1, _TWO.stages)
        for one in _TWO.points(0, s)
        for other in _TWO.points(1, (s + shift) % _TWO.stages)
        if other.instruction != COMMIT
    ),
)
IN_GROUPS = replace(
    _TWO,
    name="in_groups",
    channel=Channel.PROCESS_GROUP,
    width=192,
    faults=tuple(
        (Point(*seat, moment, name),)
        for seat in _TWO.seats()
        for moment in group_switch.MOMENTS
        for name in group_switch.NAMES
    ),
)
"""Its gradients are large enough that the kernel does not take a piece at once."""


@dataclass(frozen=True)
class ScenarioResult:
    """The injected faults, and the number of steps that were compared."""

    faults: tuple[InjectedFault, ...]
    steps: int


@dataclass(frozen=True)
class TrainingResult:
    steps: int
    history: list[str]  # commit records as text
    samples: SampleLog
    weights: dict[str, torch.Tensor]  # with the optimizer's state

    @classmethod
    def of(cls, fleet: LocalFleet) -> TrainingResult:
        """The result of a finished job."""
        return cls(fleet.steps, fleet.history(), fleet.samples(), fleet.weights())

    def assert_equal(self, other: TrainingResult) -> None:
        """AssertionError unless the results are equal bit for bit."""
        pairs = zip(self.history, other.history, strict=True)
        assert [pair for pair in pairs if pair[0] != pair[1]] == []
        assert self.samples.keys() == {*product(range(self.steps), range(MICROBATCHES))}
        assert self.samples == other.samples
        mine, theirs = self.weights, other.weights
        assert mine.keys() == theirs.keys()
        assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


async def suspend(fleet: LocalFleet) -> TrainingResult:
    """Suspend the job, which must not have restored a checkpoint; its result."""
    over = await fleet.suspended()
    assert over.outcome is Outcome.SUSPENDED, fleet.record()
    assert not fleet.recorded(EventReason.RESTORING), fleet.record()
    return TrainingResult.of(fleet)


async def undisturbed(
    folder: Path, forkserver: ForkServerProcess, scenario: Scenario, steps: int
) -> TrainingResult:
    """The result of the same job without faults."""
    job = scenario.job(folder / "quiet-job")
    job = replace(job, training=replace(job.training, steps=steps))
    async with LocalFleet(
        job,
        folder / "quiet",
        forkserver=forkserver,
        profiled=False,
        hosts_ahead=scenario.hosts_ahead,
    ) as fleet:
        await fleet.add(scenario.agents())
        await fleet.over(deadline_s=60.0 + steps)
        return TrainingResult.of(fleet)


async def run_scenario(
    folder: Path, forkserver: ForkServerProcess, scenario: Scenario, faults: Sequence[Points]
) -> ScenarioResult:
    """Inject all faults into one job, then compare it with a job of as many steps without faults.

    AssertionError unless losses, samples, weights and optimizer state are equal bit for bit, no
    checkpoint was restored, and all logs replay through the core's state machines.
    """
    async with LocalFleet(
        scenario.unlimited_job(folder),
        folder / "faulty",
        timing=TIMING,
        forkserver=forkserver,
        profiled=False,
        hosts_ahead=scenario.hosts_ahead,
    ) as fleet:
        await fleet.add(scenario.agents())
        campaign = Campaign(fleet)
        injected = [await campaign.inject(*points) for points in faults]
        for points, fault in zip(faults, injected, strict=True):
            if points[0].instruction in group_switch.NAMES:
                continue
            for point, ran in zip(points, fault.seats, strict=True):
                assert {*ran, COMMIT} == {*scenario.instructions(point.pipeline)}, (point, ran)
        trained = await suspend(fleet)
    assert divergences(folder / "faulty" / "events") == []
    if scenario.channel is Channel.PROCESS_GROUP:
        logs = [path.read_text() for path in (folder / "faulty" / "logs").iterdir()]
        assert any(" goes over " in log for log in logs), "no pair has used a group"
    copied = [progress.ahead.copied_bytes for progress in fleet.messages(Progress)]
    assert any(copied) is scenario.hosts_ahead
    trained.assert_equal(await undisturbed(folder, forkserver, scenario, trained.steps))
    return ScenarioResult(tuple(injected), trained.steps)
