"""How histories are made: one run is walked along, copies of the world branch off at its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bamboo_sim.protocol.checker.verdict import Violation
from bamboo_sim.protocol.exploration.history import History, advance, apply
from bamboo_sim.protocol.world.faults import Fault
from bamboo_sim.protocol.world.world import World

POLICIES = ("random", "fifo", "late", "slow-control")
Histories = Iterator[tuple[History, World]]


class Part(NamedTuple):
    """Every ``stride``-th event of a run, from ``phase`` on; turn: where a family begins with what
    it alternates between."""

    stride: int = 1
    phase: int = 0
    turn: int = 0


WHOLE = Part()


def parts(stride: int, seed: int) -> Iterator[Part]:
    """Together they are the whole run, each goes all along it; the seed says which is first."""
    for i in range(stride):
        yield Part(stride, (seed + i) % stride, (seed + i) // stride)


def prefixes(history: History, part: Part = WHOLE, *, begun: bool = True) -> Histories:
    """The undisturbed run, stopped at the events of the part.

    begun: only from the first plan on.
    """
    world, event = World(history.job, history.seed, history.policy), 0
    while True:
        if (world.plan is not None or not begun) and event % part.stride == part.phase:
            yield history.then(event, ()), world
        if not world.step():
            return
        event += 1


def snapshot(at: tuple[History, World]) -> tuple[History, World]:
    """A copy, since a world that is judged has come to its end."""
    history, world = at
    assert not world.outcome, f"{history} has been judged: it cannot go on"
    return history, world.copy()


def inject(at: tuple[History, World], gap: int, fault: Fault) -> tuple[History, World]:
    """A copy that meets a fault ``gap`` events later."""
    history, world = snapshot(at)
    if history.script and history.script[-1][1] == ():
        waited = history.script[-1][0]
        history = History(history.job, history.seed, history.policy, history.script[:-1])
        gap_all = waited + gap
    else:
        gap_all = gap
    run_on((history, world), gap)
    apply(world, fault)
    return history.then(gap_all, fault), world


def run_on(at: tuple[History, World], events: int) -> bool:
    """Some events more; False if the end came first. A Violation names the history."""
    try:
        return advance(at[1], events)
    except Violation as found:
        found.history = at[0]
        raise
