"""A history as data: job, seed, and faults at given events. It can be replayed and shrunk."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from zlib import crc32

from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.injectors import INJECTORS, Fault
from bamboo_sim.protocol.running.simulation import Simulation
from bamboo_sim.protocol.world.state import World


@dataclass(frozen=True)
class History:
    job: Job
    seed: int
    policy: str = "random"  # how the scheduler chooses the next event
    script: tuple[tuple[int, Fault], ...] = ()  # (events since the previous fault, fault)

    def __str__(self) -> str:
        lines = [f"{self.job} seed {self.seed} {self.policy}"]
        lines += [f"  after {gap} events: {' '.join(map(str, f))}" for gap, f in self.script]
        return "\n".join(lines)

    def then(self, gap: int, fault: Fault) -> History:
        """The same with one more fault."""
        return replace(self, script=(*self.script, (gap, fault)))


class EarlyViolation(Violation):
    """A violation in the middle of a history, before the next fault is injected."""

    def __init__(self, found: Violation, history: History) -> None:
        super().__init__(*found.args)
        self.history = history


def history_of(found: Violation, otherwise: History) -> History:
    """The history that leads to a violation."""
    return found.history if isinstance(found, EarlyViolation) else otherwise


def apply(world: Simulation, fault: Fault) -> None:
    """Inject a fault, and reseed the scheduler, so that a replay makes the same choices. () is
    none: the history only goes on."""
    if not fault:
        return
    world.rng.seed(crc32(repr((world.events, fault)).encode()))
    world.burst = 0.8
    world.causes += 1
    INJECTORS[fault[0]](world, *fault[1:])


def advance(world: Simulation, events: int) -> bool:
    """Run some events; False if the history ended first."""
    return all(world.step() for _ in range(events))


def replay(history: History) -> Simulation:
    """The world at the end of the history. Raises a Violation if an invariant is broken."""
    world = Simulation(history.job, history.seed, history.policy)
    for gap, fault in history.script:
        advance(world, gap)
        apply(world, fault)
    world.finish()
    return world


def violation(history: History) -> str | None:
    """The text of the history's violation, or None."""
    try:
        replay(history)
    except Violation as found:
        return str(found)
    return None


def shrink(history: History) -> History:
    """A shorter history with a violation of the same kind: fewer faults, earlier faults, a simpler
    order."""
    best, kind = history, _kind(violation(history))
    for _ in range(8):
        shorter = next((h for h in _shorter(best) if _kind(violation(h)) == kind), None)
        if shorter is None:
            return best
        best = shorter
    return best


def _kind(text: str | None) -> str | None:
    """A violation's text without numbers and names of agents."""
    return None if text is None else re.sub(r"\[[^]]*\]|\b[a-z]?\d[\d.]*", "", text)


def _shorter(history: History) -> list[History]:
    script = history.script
    out = [replace(history, script=script[:i] + script[i + 1 :]) for i in range(len(script))]
    if history.policy != "fifo":
        out.append(replace(history, policy="fifo"))
    for i, (gap, fault) in enumerate(script):
        for less in (0, gap // 2, gap - 1):
            if 0 <= less < gap:
                out.append(replace(history, script=(*script[:i], (less, fault), *script[i + 1 :])))
    return out


def grid_of(world: World) -> str:
    """Every agent's program, with a mark at its position."""
    lines = []
    for name, node in sorted(world.nodes.items()):
        executor = node.executor
        lines.append(f"{name} {executor.fence} step {executor.step}")
        for i, task in enumerate(executor._program or ()):
            lines.append(f"  {'->' if i == executor.at else '  '} {task.instruction}")
    return "\n".join(lines)


def explain(history: History) -> str:
    """The shrunk history, its violation, and the agents' programs at that moment."""
    short = shrink(history)
    world = Simulation(short.job, short.seed, short.policy)
    text = ""
    try:
        for gap, fault in short.script:
            advance(world, gap)
            apply(world, fault)
        world.finish()
    except Violation as found:
        text = str(found)
    return f"{short}\n{text}\n{grid_of(world)}"
