"""Statistics of an exploration: outcomes, distinct histories, coverage, violations."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from time import process_time, time

from bamboo_sim.protocol.histories.branching import Histories
from bamboo_sim.protocol.histories.history import History, history_of
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.simulation import Simulation

_GARBAGE = 100_000  # histories make many small objects, almost none of them cyclic

NEW = frozenset({"folder away", "file away", "misread", "trickle", "full disk"})
"""Kinds of faults that no history had before those of files and links that come back."""

NEW_IN_A_MIXTURE = frozenset(
    {"suspend", "resume", "drain", "inbox", "mute", "file wrong", "alter", "flip"}
    | {"lose continuation", "beat every"}
)
"""Kinds that only families of their own had."""

MIXTURES = frozenset({"fuzz", "rests", "deaf"})
"""Families that mix them with others."""

NEW_FAMILIES = "deaf,folders,rests,space,trickles"
"""Those of which many histories have a new kind of fault."""

Point = tuple[str, str, str]
"""Where an agent was killed: (instruction or "wait ...", role, phase)."""


@dataclass
class Tally:
    histories: set[int] = field(default_factory=set)  # traces that ended as "complete"
    outcomes: Counter[str] = field(default_factory=Counter)
    points: Counter[Point] = field(default_factory=Counter)
    violations: list[tuple[History, str]] = field(default_factory=list)
    families: Counter[str] = field(default_factory=Counter)  # cases of each, if they were drawn
    cases: int = 0
    effects: Counter[str] = field(default_factory=Counter)  # histories in which each had one
    new: set[int] = field(default_factory=set)  # traces in which a new kind had one
    cpu_s: float = 0.0

    def run(self, branches: Histories, base: History, *, until: float, family: str = "") -> bool:
        """Run histories until the time is over; True if these are all. base: their common start."""
        new = NEW | NEW_IN_A_MIXTURE if family in MIXTURES else NEW
        begun, before = process_time(), gc.get_threshold()
        gc.set_threshold(_GARBAGE)
        try:
            for history, world in _guarded(branches, self, base):
                self.judge(history, world, new)
                if time() > until:
                    return False
            return True
        finally:
            gc.set_threshold(*before)
            self.cpu_s += process_time() - begun

    def judge(self, history: History, world: Simulation, new: frozenset[str] = NEW) -> None:
        """Run a history to its end and count it. new: the kinds of faults that are new in it."""
        self.cases += 1
        try:
            outcome = world.finish()
        except Violation as found:
            self.violations.append((history, str(found)))
            outcome = "violation"
        self.outcomes[outcome] += 1
        if outcome == "complete":
            self.histories.add(world.trace)
        self.points.update(world.points)
        self.effects.update(world.effects)
        if not world.effects.isdisjoint(new):
            self.new.add(world.trace)

    def add(self, other: Tally) -> None:
        """Add the counts of another process."""
        self.histories |= other.histories
        self.outcomes += other.outcomes
        self.points += other.points
        self.violations += other.violations
        self.families += other.families
        self.cases += other.cases
        self.effects += other.effects
        self.new |= other.new
        self.cpu_s += other.cpu_s

    @property
    def per_second(self) -> float:
        """Distinct complete histories per second of processor time."""
        return len(self.histories) / self.cpu_s if self.cpu_s else 0.0

    def coverage(self) -> str:
        """A table of kills by instruction and role, and the kills by phase."""
        ops = sorted({p[0] for p in self.points})
        roles = sorted({p[1] for p in self.points})
        lines = ["kills at".ljust(12) + "".join(r.rjust(13) for r in roles)]
        for op in ops:
            row = (sum(n for p, n in self.points.items() if p[:2] == (op, r)) for r in roles)
            lines.append(op.ljust(12) + "".join(str(n).rjust(13) for n in row))
        phases: Counter[str] = Counter()
        for (_, _, phase), n in self.points.items():
            phases[phase] += n
        lines.append("by phase: " + ", ".join(f"{p} {n}" for p, n in sorted(phases.items())))
        return "\n".join(lines)


def _guarded(branches: Histories, tally: Tally, history: History) -> Histories:
    """A violation before the next fault is injected ends the family."""
    try:
        for history, world in branches:
            yield history, world
    except Violation as found:
        tally.violations.append((history_of(found, history), f"before the next fault: {found}"))
