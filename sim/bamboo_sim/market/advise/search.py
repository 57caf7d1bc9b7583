"""Tries candidates: first with step times of whole grids and guesses for empty seats, then the best
of them with times and pauses that are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.advise.candidates import Candidate, grids, plain, variants
from bamboo_sim.market.advise.renting import STEADY, offered, rented
from bamboo_sim.market.compare.setting import Setting
from bamboo_sim.market.compare.times import MeanTimes, Tables, Told
from bamboo_sim.market.markets.opening import Replay
from bamboo_sim.market.markets.parameters import Market
from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.ours.modes import MODES, Mode, policies
from bamboo_sim.market.simulation.audit import Audited
from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.outcome import HOUR_MS
from bamboo_sim.market.simulation.step_times import Pauses
from bamboo_sim.market.step_times.table import State

_SKETCH_SEEDS = 3
_NEAR = 1.15
"""A candidate is left out if a guess has another one that is better by this in time and in cost."""
_MOST = 24
"""Candidates that are computed, those with the best guesses first."""
_LONGEST_MS = 60 * 24 * HOUR_MS


class Trial(NamedTuple):
    """A candidate in one history. ``hours``: infinite if it does not end within 60 days."""

    hours: float
    dollars: float


@dataclass(frozen=True)
class Result:
    """A candidate in all histories, one for each seed."""

    candidate: Candidate
    trials: tuple[Trial, ...]

    @property
    def hours(self) -> float:
        """The mean."""
        return fmean(x.hours for x in self.trials)

    @property
    def dollars(self) -> float:
        """The mean."""
        return fmean(x.dollars for x in self.trials)

    @property
    def slow_hours(self) -> float:
        """The hours that nine of ten histories do not exceed."""
        return sorted(x.hours for x in self.trials)[ceil(0.9 * len(self.trials)) - 1]

    def share(self, is_met: Callable[[Trial], bool]) -> float:
        """The part of the histories in which something is met."""
        return fmean(map(is_met, self.trials))


@dataclass(frozen=True)
class Question:
    """``setting``: model, network and what is common, with the fleet's largest size; ``source``: of
    spot nodes; ``zones``: that the source itself names."""

    setting: Setting
    source: Market | Replay
    samples: float
    seeds: int
    zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """``results``: computed, the fastest first; ``tried``: how many were guessed."""

    question: Question
    results: tuple[Result, ...]
    tried: int

    @property
    def front(self) -> list[Result]:
        """Those than which no other is both as fast and as cheap, the fastest first."""
        found: list[Result] = []
        for result in sorted(self.results, key=lambda x: (x.hours, x.dollars)):
            if result.hours < inf and (not found or result.dollars < found[-1].dollars):
                found.append(result)
        return found


def searched(
    question: Question,
    place: Path | None = None,
    processes: int | None = None,
    told: Told | None = None,
) -> Answer:
    """Try all candidates. ``place``, ``processes`` and ``told``: as in ``compared``. Equal
    questions give equal answers, whatever was kept."""
    bench = _Bench(question, place, processes, told or _silent)
    bench.whole_grids()
    first = [x for x in plain(bench.grids) if bench.fits(x)]
    guesses = bench.guessed(first)
    more = [x for near in _near(guesses) for x in variants(near.candidate, question.zones)]
    guesses += bench.guessed(list(dict.fromkeys(more)))
    best = [result.candidate for result in _near(guesses)[:_MOST]]
    steady = [x for x in guesses if not x.candidate.spot]
    best += [x.candidate for x in _near(steady)[:2] if x.candidate not in best]
    results = bench.computed(best)
    ordered = sorted(results, key=lambda x: (x.hours, x.dollars, x.candidate.name))
    return Answer(question, tuple(ordered), len(guesses))


def _silent(what: str, done: int, total: int) -> None:
    del what, done, total


def _near(results: Iterable[Result]) -> list[Result]:
    """Those that no other one beats clearly, the nearest to the front first."""
    ended = [x for x in results if x.hours < inf]

    def beaten(one: Result) -> float:
        """By how much the best other one is better, in time and in cost; below 1 on the front."""
        others = (x for x in ended if x is not one)
        ratios = (min(one.hours / x.hours, one.dollars / x.dollars) for x in others)
        return max(ratios, default=0.0)

    rated = [(beaten(x), x.candidate.name, x) for x in ended]
    return [x for by, _, x in sorted(rated, key=lambda entry: entry[:2]) if by <= _NEAR]


class _Bench:
    """Step times of all candidates, and their runs."""

    def __init__(
        self, question: Question, place: Path | None, processes: int | None, told: Told
    ) -> None:
        self._question, self._told = question, told
        self._place, self._processes = place, processes
        self._tables = Tables(question.setting, place, processes)
        self._times: dict[Grid, Mapping[RedundancyMode, MeanTimes]] = {}
        self._pauses: dict[Grid, Pauses] = {}
        common = question.setting.common
        self.grids = grids(common.nodes, common.fewest_stages, common.most_stages)

    def whole_grids(self) -> None:
        """Compute all whole grids in all modes, and the pauses of the fastest one."""
        states = [State(*grid) for grid in self.grids]
        for mode, table in self._tables.modes.items():
            table.prepare(states, partial(self._told, f"steps of whole grids, mode {mode}"))
        bare = self._tables.bare
        timed = [(ms, x) for x in self.grids if (ms := bare.whole_ms(*x)) is not None]
        self._sketch_pauses = self._pauses_of(min(timed)[1])

    def fits(self, candidate: Candidate) -> bool:
        """Whether the model fits into the grid in the mode."""
        return self._tables.modes[candidate.mode].whole_ms(*candidate.grid) is not None

    def guessed(self, candidates: Sequence[Candidate]) -> list[Result]:
        """Results in a few histories, with guesses for empty seats."""
        found = []
        seeds = min(_SKETCH_SEEDS, self._question.seeds)
        for done, candidate in enumerate(candidates, start=1):
            found.append(self._result(candidate, seeds, self._sketch_pauses, inf))
            self._told("candidates guessed", done, len(candidates))
        return found

    def computed(self, candidates: Sequence[Candidate]) -> list[Result]:
        """Results in all histories, with nothing guessed."""
        for of in self._times.values():
            for times in of.values():
                times.guessed = {}  # what others would need
        wanted = list(dict.fromkeys(x.grid for x in candidates))
        for done, grid in enumerate(wanted, start=1):
            self._pauses[grid] = self._pauses_of(grid)
            self._told("pauses of grids", done, len(wanted))
        while True:
            results = []
            for done, candidate in enumerate(candidates, start=1):
                results.append(self._computed(candidate))
                self._told("candidates run", done, len(candidates))
            if not self._prepared(candidates):
                return results

    def _computed(self, candidate: Candidate) -> Result:
        is_known = not any(times.guessed for times in self._of(candidate.grid).values())
        best = self._question.setting.best_per_node if is_known else inf
        pauses = self._pauses[candidate.grid]
        return self._result(candidate, self._question.seeds, pauses, best)

    def _prepared(self, candidates: Sequence[Candidate]) -> bool:
        """Compute what was guessed for these. False: nothing was."""
        wanted: dict[RedundancyMode, list[State]] = {mode: [] for mode in MODES}
        for grid in dict.fromkeys(x.grid for x in candidates):
            for mode, times in self._of(grid).items():
                wanted[mode] += times.guessed
                times.guessed = {}
        for mode, states in wanted.items():
            name = f"steps with empty seats, mode {mode}"
            self._tables.modes[mode].prepare(states, partial(self._told, name))
        return any(wanted.values())

    def _of(self, grid: Grid) -> Mapping[RedundancyMode, MeanTimes]:
        """The step times of a job that has at most this grid."""
        if grid not in self._times:
            count = self._question.setting.patterns
            self._times[grid] = {
                mode: MeanTimes(table, grid.pipelines, count)
                for mode, table in self._tables.modes.items()
            }
        return self._times[grid]

    def _pauses_of(self, grid: Grid) -> Pauses:
        setting = self._question.setting.at_depth(grid.stages)
        return self._tables.pauses(setting, _silent, grid.pipelines)

    def _result(self, candidate: Candidate, seeds: int, pauses: Pauses, best: float) -> Result:
        trials = (self._trial(candidate, seed, pauses, best) for seed in range(1, seeds + 1))
        return Result(candidate, tuple(trials))

    def _trial(self, candidate: Candidate, seed: int, pauses: Pauses, best: float) -> Trial:
        question, setting = self._question, self._question.setting
        times = self._of(candidate.grid)
        job = setting.at_depth(candidate.grid.stages).job(times[RedundancyMode.NONE], seed - 1)
        job.common = replace(job.common, nodes=candidate.grid.seats)
        mode = candidate.mode
        policy = policies(job, {mode: Mode(times[mode], pauses, 0.0)})[mode]
        events = rented(
            offered(question.source, seed),
            candidate.spot,
            candidate.steady,
            job.common.boot_ms,
            _LONGEST_MS,
            candidate.zones or None,
        )
        steady = {STEADY: setting.steady_price}
        terms = Terms(
            prices={**setting.fleets.prices, **steady},
            best_per_node=best,
            samples=question.samples,
            until_ms=_LONGEST_MS,
        )
        audited = Audited(policy, best)
        outcome = audited.ended(run(audited, events, terms))
        is_done = outcome.samples >= question.samples * (1 - 1e-9)
        return Trial(outcome.hours if is_done else inf, sum(outcome.dollars.values()))
