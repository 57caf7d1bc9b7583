"""The step times of a job, each computed when it is first asked for, or before, on all cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bamboo_sim.market.simulation.step_times import Hole
from bamboo_sim.market.step_times.dry import Job, check, fits, has_copies, step_s
from bamboo_sim.market.step_times.kept import Kept, key
from bamboo_sim.market.step_times.patterns import Holes, equal_to, patterns

_WHOLE = Holes()


class State(NamedTuple):
    """A grid with empty seats. Pipelines are interchangeable, so one pattern stands for many."""

    pipelines: int
    stages: int
    holes: Holes = _WHOLE

    @property
    def name(self) -> str:
        """As files have it: the grid, then the empty stages of each pipeline that has some."""
        rows = sorted({d for d, _ in self.holes})
        empty = [",".join(str(s) for d, s in sorted(self.holes) if d == row) for row in rows]
        return f"{self.pipelines}x{self.stages}" + "".join(f" {x}" for x in empty)


class Spread(NamedTuple):
    """A step with so many empty seats: over patterns of them."""

    mean_ms: float
    worst_ms: float
    patterns: int


class StepTable:
    """The steps of a job, as policies ask for them (:class:`StepTimes`).

    ``place``: the folder of the files; None: in the user's cache. ``processes``: for
    :meth:`prepare`; None: one for each core. A time that is not prepared is computed in about a
    second when it is asked for.
    """

    def __init__(self, job: Job, place: Path | None = None, processes: int | None = None) -> None:
        self.job = job
        self._kept = Kept(key(("steps", job)), place)
        self._processes = processes or os.cpu_count() or 1

    @property
    def samples(self) -> int:
        """The samples of a step."""
        return self.job.model.samples

    @property
    def network(self) -> str:
        """The name of the network, for every figure that comes of these times."""
        return self.job.network.name

    def whole_ms(self, pipelines: int, stages: int) -> float | None:
        """A step of a grid without empty seats. None: the model does not fit into it. ValueError:
        the job never has such a grid."""
        return self._ms(State(pipelines, stages))

    def degraded_ms(self, pipelines: int, stages: int, holes: frozenset[Hole]) -> float | None:
        """A step while these seats are empty, of which (pipeline, stage) count from 0. None: no
        copy of some layer is left, or the model does not fit. ValueError names a hole that is no
        seat."""
        check(self.job, pipelines, stages, holes)
        return self._ms(State(pipelines, stages, equal_to(pipelines, holes)))

    def spread(self, pipelines: int, stages: int, empty: int) -> Spread | None:
        """Mean and worst over patterns of so many empty seats that losses lead to. None: hardly any
        has a copy of all layers, or the model does not fit. ValueError as in
        :func:`patterns.patterns`."""
        found = self._patterns(pipelines, stages, empty)
        self.prepare(found)
        times = [ms for x in found if (ms := self._ms(x)) is not None]
        return Spread(fmean(times), max(times), len(times)) if times else None

    def _patterns(self, pipelines: int, stages: int, empty: int) -> list[State]:
        drawn = patterns(self.job.mode, self.job.model.pipelines, pipelines, stages, empty)
        return [State(pipelines, stages, holes) for holes in drawn]

    def states(self, stages: int) -> tuple[State, ...]:
        """All states of a table: of each number of pipelines, the whole grid, and patterns of each
        number of empty seats that placement leaves."""
        return tuple(
            state
            for pipelines in range(self.job.model.pipelines, 0, -1)
            for empty in range(stages)
            for state in self._patterns(pipelines, stages, empty)
        )

    def has(self, state: State) -> bool:
        """Whether the answer takes no dry run: a file has it, or the state cannot train."""
        return state.name in self._kept or not self._trains(state)

    def prepare(
        self, states: Iterable[State], told: Callable[[int, int], None] | None = None
    ) -> int:
        """Compute those that no file has, side by side. How many they were. ``told``: called with
        those that are done, and all of them."""
        wanted = [x for x in dict.fromkeys(states) if not self.has(x)]
        told = told or _silent
        if self._processes == 1 or len(wanted) < 2:
            for done, state in enumerate(wanted, start=1):
                self._ms(state)
                told(done, len(wanted))
            return len(wanted)
        with ProcessPoolExecutor(self._processes, initializer=gc.disable) as pool:
            answers = pool.map(partial(_answer, self.job), wanted)
            for done, (state, ms) in enumerate(zip(wanted, answers, strict=True), start=1):
                self._kept.add({state.name: ms})
                told(done, len(wanted))
        return len(wanted)

    def _trains(self, state: State) -> bool:
        """The cheap part of the answer, so that no process is begun for it."""
        check(self.job, *state)
        return has_copies(self.job.mode, *state) and fits(self.job, *state[:2])

    def _ms(self, state: State) -> float | None:
        if state.name not in self._kept:
            if not self._trains(state):
                return None
            self._kept.add({state.name: _answer(self.job, state)})
        return self._kept[state.name]


def _silent(done: int, total: int) -> None:
    del done, total


def _answer(job: Job, state: State) -> float | None:
    seconds = step_s(job, *state)
    return None if seconds is None else seconds * 1000
