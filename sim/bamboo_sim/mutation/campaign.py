"""Judges mutants one after the other: what is known is reused, the rest runs in children."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bamboo_sim.mutation import coverage_map, killers, verdicts
from bamboo_sim.mutation.children import Children, Ended
from bamboo_sim.mutation.coverage_map import CoverageMap
from bamboo_sim.mutation.killers import EXPLORATION, TESTS, Say, Work
from bamboo_sim.mutation.mutants import Module, Mutant
from bamboo_sim.mutation.verdicts import Verdict, Verdicts

EXPLORE_S = 10.0
_TESTED_WITH = {"arbiter_state": ("arbiter",)}  # the arbiter's decisions show what its state is for
Pair = tuple[Module, Mutant]
Planner = Callable[[Module, Mutant, str], Work]
"""Makes the work for a mutant; the string is what killed it before."""


class UnfitError(Exception):
    """No verdict is possible: the code as it is does not pass, or it changes during the run."""


def measured(code: str) -> CoverageMap:
    """Which tests run what. UnfitError if a test or a history fails without any change."""
    known = verdicts.load_map(code)
    if known is not None:
        return known
    words = _passing(coverage_map.measure)
    _passing(lambda say: killers.attack(Work(tests=(), explore_s=EXPLORE_S), say))
    found = next(word for word in words if "functions" in word)
    coverage = CoverageMap(found["durations"], found["functions"])
    verdicts.save_map(code, coverage)
    return coverage


def check_folders(folders: tuple[str, ...]) -> None:
    """UnfitError if one of the folders' tests fails without any change."""
    _passing(lambda say: killers.attack(Work(folders=folders, explore_s=0.0), say))


def _passing(work: Callable[[Say], None]) -> list[dict[str, Any]]:
    children: Children[str] = Children(1)
    children.start("unchanged", work)
    (ended,) = children.ended()
    failed = next((str(w["failed"]) for w in ended.words if "failed" in w), ended.killed_by)
    if failed:
        why = next((f" ({w['why']})" for w in ended.words if "why" in w), "")
        raise UnfitError(f"without any change, {failed} fails{why}; repair that first")
    return ended.words


def own_folders(mutant: Mutant) -> tuple[str, ...]:
    """The tests of the module's package, and of the package that is tested together with it."""
    package = mutant.module.split("/")[0]
    return tuple(f"{TESTS}/{name}" for name in (package, *_TESTED_WITH.get(package, ())))


def with_map(coverage: CoverageMap) -> Planner:
    """All tests that run the changed function, then the exploration."""

    def plan(module: Module, mutant: Mutant, first: str) -> Work:
        return Work(
            module.mutated(mutant),
            mutant.module,
            tests=coverage.tests(mutant),
            first=first if first in coverage.durations or first == EXPLORATION else "",
            durations=coverage.durations,
            explore_s=EXPLORE_S,
        )

    return plan


def own_tests_only(module: Module, mutant: Mutant, _first: str) -> Work:
    """The tests of the module's own package, without exploration."""
    return Work(module.mutated(mutant), mutant.module, folders=own_folders(mutant), explore_s=0.0)


def judge(
    sample: Iterable[Pair],
    plan: Planner,
    code: str,
    known: Verdicts | None = None,
    *,
    processes: int = 1,
    until: float = float("inf"),
    least: int = 0,
) -> Iterator[tuple[Mutant, Verdict, bool]]:
    """Yield verdicts as they come, and whether each is new. until: no start after this time, but
    for the first ``least`` mutants.

    UnfitError if the sources change meanwhile. Without ``known`` nothing is reused or kept.
    """
    children: Children[Mutant] = Children(processes)
    try:
        for number, (module, mutant) in enumerate(sample):
            if known and (verdict := known.valid(mutant.id, code)):
                yield mutant, verdict, False
                continue
            if number >= least and time.time() > until:
                break
            earlier = known.newest(mutant.id) if known else None
            work = plan(module, mutant, earlier.killed_by if earlier else "")
            children.start(mutant, lambda say, work=work: killers.attack(work, say))  # type: ignore[misc]
            if children.is_full:
                yield from _ended(children, code, known)
        while children.is_running:
            yield from _ended(children, code, known)
    finally:
        children.kill()


def _ended(
    children: Children[Mutant], code: str, known: Verdicts | None
) -> Iterator[tuple[Mutant, Verdict, bool]]:
    ended: Ended[Mutant]
    for ended in children.ended():
        unfit = next((str(w["unfit"]) for w in ended.words if "unfit" in w), "")
        if unfit:
            raise UnfitError(f"a mutant has not been tried: {unfit}")
        verdict = Verdict(ended.killed_by, round(ended.seconds, 2), code)
        if verdicts.code() != code:
            raise UnfitError("the sources have changed during the run; start it again")
        if known is not None:
            known.add(ended.key.id, verdict)
        yield ended.key, verdict, True
