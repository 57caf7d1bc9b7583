"""A history as data: a job, a seed and faults at given events. It replays, shrinks and prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from tests.explore.job import Job
from tests.explore.world import OPERATOR, Violation, World

from bamboo_core.ids import AgentId

Fault = tuple[Any, ...]
"""A method of :data:`FAULTS` and its arguments; plain values only."""


@dataclass(frozen=True)
class History:
    """``script``: (events since the fault before, fault)."""

    job: Job
    seed: int
    policy: str = "random"
    script: tuple[tuple[int, Fault], ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.job} seed {self.seed} {self.policy}"]
        lines += [f"  after {gap} events: {' '.join(map(str, f))}" for gap, f in self.script]
        return "\n".join(lines)

    def then(self, gap: int, fault: Fault) -> History:
        """The same with one more fault."""
        return replace(self, script=(*self.script, (gap, fault)))


FAULTS: dict[str, Callable[..., None]] = {
    "kill": lambda w, name, fate: w.lose(name, fate=fate, confirmed=True),
    "vanish": lambda w, name, fate: w.lose(name, fate=fate, confirmed=False),
    "start": lambda w, name: w.start(name),
    "notice": lambda w, name, lead_s: w.notice(name, lead_s),
    "want": lambda w, pipelines: w.want(pipelines),
    "restart operator": lambda w, lossy: w.restart_operator(lossy=lossy),
    "second operator": lambda w: w.restart_operator(split=True),
    "cut": lambda w, *links: w.partition(links),
    "heal": lambda w: w.heal(),
    "doubt": lambda w, name: w.doubt(name),
    "duplicate": lambda w: w.duplicate(),
}


def apply(world: World, fault: Fault) -> None:
    """Do it; what follows is random, but the same whenever it is replayed."""
    world.rng.seed(crc32(repr((world.events, fault)).encode()))
    world.burst = 0.8
    FAULTS[fault[0]](world, *fault[1:])


def advance(world: World, events: int) -> bool:
    """Run on; False if the end came first."""
    return all(world.step() for _ in range(events))


def replay(history: History, world_type: type[World] = World) -> World:
    """The world at the end of the history, judged; a Violation if there is one."""
    world = world_type(history.job, history.seed, history.policy)
    for gap, fault in history.script:
        advance(world, gap)
        apply(world, fault)
    world.outcome = world.finish()
    return world


def violation(history: History, world_type: type[World] = World) -> str | None:
    """What goes wrong in it, if anything."""
    try:
        replay(history, world_type)
    except Violation as found:
        return str(found)
    return None


def shrink(history: History, world_type: type[World] = World) -> History:
    """A shorter history that goes wrong, too: fewer faults, earlier ones, a simpler order."""
    best = history
    for _ in range(8):
        shorter = next((h for h in _shorter(best) if violation(h, world_type) is not None), None)
        if shorter is None:
            return best
        best = shorter
    return best


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
    """Every agent's program, with a mark where it stands."""
    lines = []
    for name, node in sorted(world.nodes.items()):
        executor = node.executor
        lines.append(f"{name} {executor.fence} step {executor.step}")
        for i, task in enumerate(executor._program or ()):
            lines.append(f"  {'->' if i == executor.at else '  '} {task.instruction}")
    return "\n".join(lines)


def explain(history: History, world_type: type[World] = World) -> str:
    """The shortest failing history, what goes wrong, and the grid in which it does."""
    short = shrink(history, world_type)
    world = world_type(short.job, short.seed, short.policy)
    text = ""
    try:
        for gap, fault in short.script:
            advance(world, gap)
            apply(world, fault)
        world.finish()
    except Violation as found:
        text = str(found)
    return f"{short}\n{text}\n{grid_of(world)}"


def island(members: set[AgentId], others: set[AgentId]) -> tuple[tuple[AgentId, AgentId], ...]:
    """All links between two sides, both ways; the operator is ``OPERATOR``."""
    both = [(a, b) for a in members for b in others]
    return tuple(sorted({*both, *((b, a) for a, b in both)}))


__all__ = ["FAULTS", "OPERATOR", "Fault", "History", "apply", "explain", "island", "replay"]
