"""Step times for a comparison. Which states a system reaches depends on how long steps take, so
they are guessed first, and what was asked for is computed, until nothing is guessed any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_sim.market.compare.setting import Setting
from bamboo_sim.market.policies.base.restores import restore_ms
from bamboo_sim.market.policies.ours.auto import Choice
from bamboo_sim.market.policies.ours.choosing import product
from bamboo_sim.market.policies.ours.modes import MODES
from bamboo_sim.market.simulation.step_times import Hole, Pauses, StepTimes
from bamboo_sim.market.step_times.dry import Job, has_copies
from bamboo_sim.market.step_times.patterns import patterns
from bamboo_sim.market.step_times.pauses import Question, pauses
from bamboo_sim.market.step_times.table import State, StepTable

Times = Mapping[RedundancyMode, StepTimes]
"""Step times by mode; those of rivals are without copies."""

Told = Callable[[str, int, int], None]
"""What is computed, how many are done, and how many there are."""

_BARE = RedundancyMode.NONE
_PAUSES_OF = RedundancyMode.REPLICA
_SLACK = 1.1  # times the time of a step without bubbles, or of the whole grid's: a guess
_GIVEN_UP = 3.0
"""Times a step without bubbles: what is told of a grid with as many empty seats as a pipeline has.
The product gives up a pipeline then, and any grid that it may take instead is faster than this."""


class MeanTimes:
    """The steps of a table. One with empty seats is the mean over patterns of so many of them, as
    placement leaves them; whether a copy of each layer is left, the seats themselves say. A grid
    that would give up a pipeline is told to be so slow that another one is taken.

    ``most``: pipelines of the whole grid; ``count``: patterns. What the table has not yet is
    guessed, and kept in ``guessed``.
    """

    def __init__(self, table: StepTable, most: int, count: int) -> None:
        self._table, self._most, self._count = table, most, count
        self.guessed: dict[State, None] = {}
        self._patterns: dict[tuple[int, int, int], tuple[State, ...]] = {}

    @property
    def samples(self) -> int:
        """The samples of a step."""
        return self._table.samples

    @property
    def network(self) -> str:
        """The table's."""
        return self._table.network

    def whole_ms(self, pipelines: int, stages: int) -> float | None:
        """A step of a grid without empty seats."""
        return self._ms(State(pipelines, stages))

    def degraded_ms(self, pipelines: int, stages: int, holes: frozenset[Hole]) -> float | None:
        """A step while so many seats are empty."""
        if not has_copies(self._table.job.mode, pipelines, stages, holes):
            return None
        if len(holes) >= stages:
            return _GIVEN_UP * self._work_ms(State(pipelines, stages, holes))
        found = self._drawn(pipelines, stages, len(holes))
        times = [ms for state in found if (ms := self._ms(state)) is not None]
        return fmean(times) if times else None

    def _drawn(self, pipelines: int, stages: int, empty: int) -> tuple[State, ...]:
        """The patterns of so many empty seats."""
        key = pipelines, stages, empty
        if key not in self._patterns:
            mode, most = self._table.job.mode, max(self._most, pipelines)
            drawn = patterns(mode, most, pipelines, stages, empty, self._count)
            self._patterns[key] = tuple(State(pipelines, stages, holes) for holes in drawn)
        return self._patterns[key]

    def _ms(self, state: State) -> float | None:
        if self._table.has(state):
            return self._table.degraded_ms(*state)
        self.guessed[state] = None
        whole = State(state.pipelines, state.stages)
        if state.holes and self._table.has(whole):
            whole_ms = self._table.degraded_ms(*whole) or 0.0
            return _SLACK * whole_ms * self._work_ms(state) / self._work_ms(whole)
        return _SLACK * self._work_ms(state)

    def _work_ms(self, state: State) -> float:
        """A step in which all live seats compute all the time."""
        model = self._table.job.model
        work_s = sum(x.forward_s + x.backward_s for x in model.layers)
        work_s += model.stage_s * state.stages
        live = state.pipelines * state.stages - len(state.holes)
        return 1000 * work_s * model.microbatches / live


class Tables:
    """The step times of a setting, for each of our modes; rivals have those without copies.

    ``place`` and ``processes``: as in :class:`StepTable`.
    """

    def __init__(
        self, setting: Setting, place: Path | None = None, processes: int | None = None
    ) -> None:
        self._place, self._processes = place, processes
        self.modes: dict[RedundancyMode, StepTable] = {
            mode: StepTable(Job(setting.model, mode, setting.network), place, processes)
            for mode in MODES
        }
        most = max(1, setting.fleets.nodes // setting.common.stages)
        self.means = {
            mode: MeanTimes(table, most, setting.patterns) for mode, table in self.modes.items()
        }

    @property
    def bare(self) -> StepTable:
        """Those of rivals."""
        return self.modes[_BARE]

    def grids(self, setting: Setting, told: Told) -> None:
        """Compute all undisturbed grids that a system can choose."""
        common = setting.common
        states = [
            State(pipelines, stages)
            for stages in range(common.fewest_stages, common.most_stages + 1)
            for pipelines in range(1, common.nodes // stages + 1)
        ]
        self.bare.prepare(states, partial(told, "steps of whole grids"))

    def fixed_grids(self, setting: Setting, told: Told) -> None:
        """Compute the undisturbed grids of the fixed depth in each mode."""
        stages = setting.common.stages
        states = [State(d, stages) for d in range(1, setting.common.nodes // stages + 1)]
        for mode, table in self.modes.items():
            table.prepare(states, partial(told, f"steps of whole grids, mode {mode}"))

    def until_known(self, run: Callable[[Times], None], told: Told) -> None:
        """Run with guesses, compute what was asked for, and again, until nothing was guessed."""
        while True:
            run(self.means)
            asked = {mode: times.guessed for mode, times in self.means.items()}
            if not any(asked.values()):
                return
            for mode, states in asked.items():
                name = f"steps with empty seats, mode {mode}"
                self.modes[mode].prepare(states, partial(told, name))
                self.means[mode].guessed = {}

    def pauses(self, setting: Setting, told: Told, pipelines: int = 0) -> Pauses:
        """Pauses of ours in virtual time, with the detection of all; a restore is that of all, too.
        Measured with copies, on two pipelines at least, and used for each mode. ``pipelines``: 0:
        those of the whole fleet."""
        told("pauses in virtual time", 0, 1)
        shared = setting.common
        pipelines = max(2, pipelines or shared.nodes // shared.stages)
        model = replace(setting.model, pipelines=max(pipelines, setting.model.pipelines))
        job = Job(model, _PAUSES_OF, setting.network)
        asked = Question(job, pipelines, shared.stages)
        delays = replace(asked.delays, detection_s=shared.detect_ms / 1000)
        asked = replace(asked, delays=delays)
        found = pauses(asked, self._place, self._processes)
        assert found is not None, "with two pipelines and copies, no single loss is fatal"
        told("pauses in virtual time", 1, 1)
        again_ms = shared.detect_ms + restore_ms(setting.job(self.bare), shared.stages)
        return found._replace(restore_ms=float(again_ms))


def choice(setting: Setting) -> Choice:
    """Auto's, by the product's cost model, for the grid of the whole fleet."""
    shared = setting.common
    pipelines = max(1, shared.nodes // shared.stages)
    job = Job(setting.model, _PAUSES_OF, setting.network)
    spec = Question(job, pipelines, shared.stages).timed.spec
    host = spec.redundancy.host_memory
    spec = replace(spec, redundancy=RedundancySpec(RedundancyMode.AUTO, host))
    return product(spec, setting.model.stages(shared.stages), pipelines)
