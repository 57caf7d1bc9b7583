"""What a job makes of a recorded pool of spot nodes in each mode of redundancy, and with Auto.

    python benchmarks/protection_history.py p3-trace.csv

The file has a line for each node that came or went: milliseconds, ``add`` or ``remove``, name. Such
traces come with the Bamboo paper (github.com/uclasystem/bamboo).

BERT-Large asks for a whole grid. Each node that comes takes an empty seat, and each one that goes
leaves an empty seat, where the planner's own rules seat them. A step takes as long as its programs
in the dry run of the whole grid with exactly these empty seats, where lost work is shared in the
likeliest way. A loss stops training for a second and repeats the lost work; if no copy of a stage
is left, the job restores a checkpoint, which is 50 steps old on average. A new mode first copies
what it keeps. Nothing here is an estimate of the cost model but the time for lost work.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bamboo_core.api.spec import (
    Adjacency,
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    RedundancyMode,
    TrainingSpec,
    TransportSpec,
    WorkerSpec,
    batch_shape,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import capacity, seats
from bamboo_core.placement.seats import Candidate, Seats
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protection.choice import NONE, REPLICA, Facts, choose
from bamboo_core.protection.facts import Seen, cut_of, gather
from bamboo_core.protection.hazard import Hazard
from bamboo_core.protection.measured import EmptySeats
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import device_memory
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import STATES
from bamboo_sim.programs import results_file
from bamboo_sim.timed.hardware import V100_32, V100_SPEED
from bamboo_sim.timed.shapes import BERT

FREE = 1e6
"""Gb/s of a network on which nothing takes time."""
CASES = ((4, 12, 10.0), (4, 12, FREE), (4, 8, 10.0), (4, 8, FREE))
"""Pipelines, stages, Gb/s: the grid of the paper, of which the pool fills half, and one that the
pool can fill."""
FIXED = (NONE, REPLICA)
_MICROBATCHES, _SAMPLES, _CHECKPOINT = 132, 2, 100
_ZONE = "zone"

Lost = tuple[tuple[int, int], ...]
"""Pipeline and stage of each empty seat."""


class Change(NamedTuple):
    """Nodes come and go at one moment."""

    at_s: float
    come: tuple[str, ...]
    gone: tuple[str, ...]


def read(path: Path) -> list[Change]:
    """The changes of a trace. ValueError names a line that cannot be read."""
    rows: list[tuple[float, bool, str]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not parts[0].isdigit() or parts[1] not in ("add", "remove"):
            raise ValueError(f"{path.name}, line {number}: not a time, add or remove, and a name")
        rows.append((int(parts[0]) / 1000, parts[1] == "add", parts[2]))
    rows.sort(key=lambda row: row[0])
    found = []
    for at_s, group in groupby(rows, key=lambda row: row[0]):
        same = list(group)
        come = tuple(name for _, is_add, name in same if is_add)
        gone = tuple(name for _, is_add, name in same if not is_add)
        found.append(Change(at_s, come, gone))
    return found


@dataclass(frozen=True)
class Job:
    """BERT-Large on a grid over a network."""

    pipelines: int
    stages: int
    gbps: float

    @property
    def spec(self) -> JobSpec:
        return JobSpec(
            model=ModelSpec("a:b"),
            data=DataSpec("a:b"),
            training=TrainingSpec(10_000, _MICROBATCHES * _SAMPLES, _SAMPLES, OptimizerSpec("a:b")),
            pipelines=PipelinesSpec(self.pipelines, self.stages),
            worker=WorkerSpec("a"),
            checkpoint=CheckpointSpec("file:///a", every_steps=_CHECKPOINT),
            transport=TransportSpec(bandwidth_gbps=self.gbps),
        )

    @property
    def costs(self) -> tuple[LayerCost, ...]:
        return BERT.layers(V100_SPEED)

    def facts(self, hazard: float, empty: EmptySeats, current: RedundancyMode | None) -> Facts:
        """As Auto gets them."""
        seen = Seen(hazard, memory_bytes=V100_32.memory_bytes, empty=empty, current=current)
        return gather(self.spec, self.costs, seen, pipelines=self.pipelines)

    def layers(self) -> list[Sequence[LayerCost]]:
        """Stage -> its layers."""
        return [self.costs[lo:hi] for lo, hi in cut_of(self.spec, self.costs)]


@cache
def step_s(
    job: Job, mode: RedundancyMode, pipelines: int, lost: tuple[tuple[int, int], ...]
) -> float:
    """A step with these empty seats, in the dry run of the whole grid: of the schedules with split
    and with whole backwards the faster one, as the planner takes it."""
    stages, bytes_per_s = job.layers(), job.spec.transport.bytes_per_s
    is_free = job.gbps >= FREE
    costs = Costs(
        tuple(sum(c.forward_s for c in s) for s in stages),
        tuple(sum(c.backward_s for c in s) for s in stages),
        tuple(sum(c.input_gradient_s for c in s) for s in stages),
        tuple(sum(c.weight_gradient_s for c in s) for s in stages),
        0.0 if is_free else max(s[-1].output_bytes for s in stages) / bytes_per_s,
    )
    sums = tuple(sum(c.parameter_bytes for c in s) / bytes_per_s for s in stages)
    shape = StepShape(
        pipelines,
        job.stages,
        batch_shape(job.spec),
        lost=lost,
        mode=mode,
        costs=costs,
        transfer=() if is_free else sums,
    )
    ways = (shape, replace(shape, split=True, extra=device_memory.BEYOND))
    return min(way.dry_run(way.build().programs).end for way in ways)


@dataclass
class _Run:
    """The job on the pool in one mode, or in that which Auto takes."""

    job: Job
    mode: RedundancyMode | None  # None: Auto
    now_s: float = 0.0
    nodes: list[str] = field(default_factory=list)
    layout: Seats = ()
    taken: RedundancyMode = NONE
    speed: float = 0.0  # steps in a second
    paused_s: float = 0.0  # that are to come
    steps: float = 0.0
    fatal: int = 0
    restores: bool = False  # it needs a whole pipeline to go on
    changes: int = 0  # of the mode
    hazard: Hazard = field(default_factory=Hazard)
    empty: EmptySeats = field(default_factory=EmptySeats)

    def change(self, change: Change) -> None:
        """Nodes come and go, and the job is planned again."""
        self._train(change.at_s)
        gone, before = set(change.gone), self._seated()
        lost = len([name for name in self.nodes if name in gone])
        for _ in range(lost):
            self.hazard = self.hazard.lost(_ZONE)
        self.nodes = [n for n in self.nodes if n not in gone]
        self.nodes += [n for n in change.come if n not in gone]
        if lost and before and not self.restores:
            self._lose(gone, lost)
        self._plan()
        self.empty = self.empty.taken(max(0, self._seated() - max(0, before - lost)))

    def _train(self, until_s: float) -> None:
        seconds, self.now_s = until_s - self.now_s, until_s
        if self.layout:
            whole = self.job.pipelines * self.job.stages
            self.hazard = self.hazard.exposed({_ZONE: len(self.nodes)}, seconds)
            self.empty = self.empty.passed(whole, whole - self._seated(), seconds)
        paused_s = min(seconds, self.paused_s)
        self.paused_s -= paused_s
        self.steps += self.speed * (seconds - paused_s)

    def _seated(self) -> int:
        return sum(agent is not None for pipeline in self.layout for agent in pipeline)

    def _lose(self, gone: set[str], lost: int) -> None:
        """The pause. A stage whose holders all are gone is fatal."""
        facts = self.job.facts(0.0, EmptySeats(), None)
        holders = self._shape().holders()
        names = {f"{d}-{s}": a for d, row in enumerate(self.layout) for s, a in enumerate(row)}
        if all(any(names[a] not in gone for a in held) for held in holders):
            recovery = facts.recovery(self.taken)
            self.paused_s += facts.stop_s + (recovery.redone_s * lost if recovery else 0.0)
        else:
            self.fatal += 1
            self.restores = True
            self.paused_s += facts.stop_s + facts.restart_s
            self.steps = max(0.0, self.steps - _CHECKPOINT / 2)

    def _shape(self) -> StepShape:
        shape = StepShape(
            len(self.layout), self.job.stages, batch_shape(self.job.spec), mode=self.taken
        )
        return replace(shape, lost=_holes(self.layout))

    def _plan(self) -> None:
        stages, agents = self.job.stages, len(self.nodes)
        least = stages if self.restores or not self.layout else capacity.fewest(stages=stages)
        if agents < least:
            self.speed = 0.0
            self.layout = tuple(
                tuple(a if a in self.nodes else None for a in row) for row in self.layout
            )
            return
        self.restores = False
        used = capacity.pipelines_for(agents, stages=stages, wanted=self.job.pipelines)
        self.layout = seats.assign_all(
            [Candidate(AgentId(n), _ZONE) for n in self.nodes],
            stages=stages,
            pipelines=range(used, used + 1),
            previous=self.layout,
            adjacency=Adjacency.CLUSTER,
        )
        self._take_mode()
        self.speed = 1 / step_s(self.job, self.taken, used, _holes(self.layout))

    def _take_mode(self) -> None:
        before, current = self.taken, self.taken if self.steps else None
        if self.mode is not None:
            self.taken = self.mode
            return
        hazard = self.hazard.per_agent_hour({_ZONE: len(self.nodes)})
        self.taken = choose(self.job.facts(hazard, self.empty, current)).mode
        if self.taken is not before and current is not None:
            self.changes += 1
            size = max(sum(c.parameter_bytes for c in s) for s in self.job.layers())
            is_more = self.taken.keeps_copies
            self.paused_s += is_more * STATES * size / self.job.spec.transport.bytes_per_s


def _holes(layout: Seats) -> Lost:
    return tuple((d, s) for d, row in enumerate(layout) for s, a in enumerate(row) if a is None)


def run(job: Job, changes: Sequence[Change], mode: RedundancyMode | None) -> dict[str, float]:
    """Train until the last change. mode: None: Auto."""
    state = _Run(job, mode)
    for change in changes:
        state.change(change)
    whole = job.pipelines * job.stages
    return {
        "samples_per_s": round(state.steps * _MICROBATCHES * _SAMPLES / state.now_s, 3),
        "fatal": state.fatal,
        "changes_of_mode": state.changes,
        "empty_share": round(state.empty.empty_s / state.empty.seat_s, 3) if whole else 0.0,
        "empty_s": round(state.empty.length_s(180.0)),
        "losses_per_agent_hour": round(state.hazard.per_agent_hour({}), 3),
    }


def rows(changes: Sequence[Change]) -> Iterator[dict[str, Any]]:
    """One row for each case and mode."""
    for pipelines, stages, gbps in CASES:
        job = Job(pipelines, stages, gbps)
        network = "free" if gbps >= FREE else f"{gbps:g}_gbps"
        for mode in (*FIXED, None):
            name = "Auto" if mode is None else mode.value
            case = f"bert_{pipelines}x{stages}_{network}"
            yield {"case": case, "mode": name, **run(job, changes, mode)}


def figures(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """For each case, what Auto reaches of the best fixed mode; and the least of these."""
    reached: dict[str, float] = {}
    for case in dict.fromkeys(row["case"] for row in found):
        speed = {row["mode"]: row["samples_per_s"] for row in found if row["case"] == case}
        auto = speed.pop("Auto")
        reached[f"{case}_auto_over_best"] = round(auto / max(speed.values()), 4)
    return {**reached, "auto_over_best_fixed": min(reached.values())}


def main() -> None:
    """Measure, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, help="a line for each node that came or went")
    trace = parser.parse_args().trace
    try:
        changes = read(trace)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found = []
    for row in rows(changes):
        print(row, flush=True)
        found.append(row)
    path = results_file.write(
        "protection_history",
        samples=results_file.columns(found),
        figures=figures(found),
        note=f"{trace.name}: {len(changes)} changes of the pool; samples are those of training",
    )
    print(*(f"{name}: {value}" for name, value in figures(found).items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
