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

Point = tuple[str, str, str]
"""Where an agent was killed: (instruction or "wait ...", role, phase)."""


@dataclass
class Tally:
    histories: set[int] = field(default_factory=set)  # traces that ended as "complete"
    outcomes: Counter[str] = field(default_factory=Counter)
    points: Counter[Point] = field(default_factory=Counter)
    violations: list[tuple[History, str]] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)  # of faults of the storage
    families: Counter[str] = field(default_factory=Counter)  # cases of each, if they were drawn
    cases: int = 0
    cpu_s: float = 0.0

    def run(self, branches: Histories, base: History, *, until: float) -> bool:
        """Run histories until the time is over; True if these are all. base: their common start."""
        begun, before = process_time(), gc.get_threshold()
        gc.set_threshold(_GARBAGE)
        try:
            for history, world in _guarded(branches, self, base):
                self.judge(history, world)
                if time() > until:
                    return False
            return True
        finally:
            gc.set_threshold(*before)
            self.cpu_s += process_time() - begun

    def judge(self, history: History, world: Simulation) -> None:
        """Run a history to its end and count it."""
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
        self.effects.update(world.sealed.effects)

    def add(self, other: Tally) -> None:
        """Add the counts of another process."""
        self.histories |= other.histories
        self.outcomes += other.outcomes
        self.points += other.points
        self.effects += other.effects
        self.violations += other.violations
        self.families += other.families
        self.cases += other.cases
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
        effects = ", ".join(f"{name} {n}" for name, n in sorted(self.effects.items()))
        lines.append(f"effects on storage: {effects or 'none'}")
        lines.append("by phase: " + ", ".join(f"{p} {n}" for p, n in sorted(phases.items())))
        return "\n".join(lines)


def _guarded(branches: Histories, tally: Tally, history: History) -> Histories:
    """A violation before the next fault is injected ends the family."""
    try:
        for history, world in branches:
            yield history, world
    except Violation as found:
        tally.violations.append((history_of(found, history), f"before the next fault: {found}"))
