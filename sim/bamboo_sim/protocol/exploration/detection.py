"""Mutation testing of the explorer: its histories must detect every planted fault."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, count
from time import time

from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.histories.branching import POLICIES, parts
from bamboo_sim.protocol.histories.history import History, history_of, violation
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.planted.patches import Planted

_MOST_PER_BASE = 60
_AWAY, _BACK = frozenset({"folder away", "file away"}), "files back"


@dataclass(frozen=True)
class Detection:
    fault: Planted
    cases: int  # histories run until the fault was found
    text: str = ""  # the violation; "" if the fault was not found
    history: History | None = None
    seed: int | None = None  # of the undisturbed run from which the history branches off
    idle: tuple[str, ...] = ()  # patched functions that have never run
    has_run: bool = True  # any of them; a patch of other values cannot say

    @property
    def is_right(self) -> bool:
        """Whether the fault has been found, and its code has run."""
        return bool(self.text) and self.has_run

    def __str__(self) -> str:
        found = f"NOT FOUND in {self.cases} cases"
        if self.text:
            found = f"found in case {self.cases}: {self.text[:90]}"
        if self.idle:
            found += f"; never run: {', '.join(self.idle)}"
        if not self.has_run:
            found += "; PATCH WHAT THE PRODUCT CALLS NOW"
        return f"{self.fault.row:4} {self.fault.name}: {found}"


def detect(fault: Planted, seconds: float, seed: int = 0, known: int | None = None) -> Detection:
    """Search for a history that fails with the fault and passes without it.

    known: the seed of an earlier detection. It comes first, so that a slow machine has enough time
    for faults that few histories detect; it detects nothing if the product has changed much.
    """
    cases, end, runs = 0, time() + seconds, Counter[str]()
    for n in chain(() if known is None else (known,), count(seed)):
        family, job = fault.searches[n % len(fault.searches)]
        base = History(job, n, POLICIES[(n // len(fault.searches)) % len(POLICIES)])
        with fault.planted() as executions:
            found, ran = _first_violation(family, base, end)
        cases += ran
        for place, times in executions.items():
            runs[place] += times
        idle = tuple(place for place, times in runs.items() if not times)
        has_run = not runs or len(idle) < len(runs)
        if found is not None and violation(found[0]) is None:
            return Detection(fault, cases, found[1], found[0], n, idle, has_run)
        if time() > end:
            return Detection(fault, cases, idle=idle, has_run=has_run)
    raise AssertionError("unreachable")


def _first_violation(
    family: str, base: History, end: float
) -> tuple[tuple[History, str] | None, int]:
    """(History and violation, or None; number of histories run)."""
    ran, history = 0, base
    try:
        for at, world in FAMILIES[family](base, next(parts(17, base.seed))):
            ran, history = ran + 1, at
            world.finish()
            if time() > end or ran >= _MOST_PER_BASE:
                break
    except Violation as found:
        without_faults = violation(base)  # the base run itself may fail
        if without_faults is not None:
            return (base, without_faults), ran
        return (_with_files_back(history_of(found, history)), str(found)), ran
    return None, ran


def _with_files_back(history: History) -> History:
    """The same, and what is away comes back: else a history that was found before it did would not
    end without the fault either."""
    kinds = [fault[0] for _, fault in history.script if fault]
    away = max((i for i, kind in enumerate(kinds) if kind in _AWAY), default=-1)
    is_back = _BACK in kinds[away:]
    return history if away < 0 or is_back else history.then(0, (_BACK,))
