"""The explorer is explored: every planted fault must be found, and only by the plant."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from time import time

from bamboo_sim.protocol.checker.verdict import Violation
from bamboo_sim.protocol.exploration.history import History, violation
from bamboo_sim.protocol.exploration.scenarios import FAMILIES
from bamboo_sim.protocol.exploration.walks import POLICIES, parts
from bamboo_sim.protocol.mutants.planted import Planted


@dataclass(frozen=True)
class Hunt:
    """``cases`` until it was found; text "" if it was not."""

    fault: Planted
    cases: int
    text: str = ""
    history: History | None = None

    def __str__(self) -> str:
        found = (
            f"found in case {self.cases}: {self.text[:90]}"
            if self.text
            else (f"NOT FOUND in {self.cases} cases")
        )
        return f"{self.fault.row:4} {self.fault.name}: {found}"


def hunt(fault: Planted, seconds: float, seed: int = 0) -> Hunt:
    """Look for the fault. A history that fails in the healthy code as well does not count."""
    cases, end = 0, time() + seconds
    for n in count(seed):
        family, job = fault.hunts[n % len(fault.hunts)]
        base = History(job, n, POLICIES[(n // len(fault.hunts)) % len(POLICIES)])
        with fault.planted():
            found, ran = _first(family, base, end)
        cases += ran
        if found is not None and violation(found[0]) is None:
            return Hunt(fault, cases, found[1], found[0])
        if time() > end:
            return Hunt(fault, cases)
    raise AssertionError("unreachable")


def _first(family: str, base: History, end: float) -> tuple[tuple[History, str] | None, int]:
    ran, history = 0, base
    try:
        for at, world in FAMILIES[family](base, next(parts(17, base.seed))):
            ran, history = ran + 1, at
            world.finish()
            if time() > end or ran >= 60:
                break
    except Violation as found:
        undisturbed = violation(base)  # the run along which the family walks may break itself
        if undisturbed is not None:
            return (base, undisturbed), ran
        return (found.history or history, str(found)), ran
    return None, ran
