"""Makes histories: replays a run without faults, and branches off at its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bamboo_sim.protocol.histories.history import EarlyViolation, History, advance, apply
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.injectors import Fault
from bamboo_sim.protocol.running.simulation import Simulation

POLICIES = ("random", "fifo", "late", "slow-control")
At = tuple[History, Simulation]
"""A history, and the world to which it has led so far."""
Histories = Iterator[At]


class Part(NamedTuple):
    """A sample of the events of a run."""

    stride: int = 1  # every stride-th event
    phase: int = 0  # from this event on
    turn: int = 0  # at which of its alternatives a family starts


WHOLE = Part()


def parts(stride: int, seed: int) -> Iterator[Part]:
    """Disjoint parts that together cover the run. The seed chooses the first one."""
    for i in range(stride):
        yield Part(stride, (seed + i) % stride, (seed + i) // stride)


def prefixes(history: History, part: Part = WHOLE, *, begun: bool = True) -> Histories:
    """The run without faults, stopped at each event of the part.

    begun: only after the first plan.
    """
    world, event = Simulation(history.job, history.seed, history.policy), 0
    while True:
        if (world.plan is not None or not begun) and event % part.stride == part.phase:
            yield history.then(event, ()), world
        if not world.step():
            return
        event += 1


def snapshot(at: At) -> At:
    """A copy, because running a world to its verdict consumes it."""
    history, world = at
    assert not world.outcome, f"{history} has been judged: it cannot continue"
    return history, world.copy()


def inject(at: At, gap: int, fault: Fault) -> At:
    """A copy with a fault injected ``gap`` events later. A Violation names the history."""
    history, world = snapshot(at)
    if history.script and history.script[-1][1] == ():
        waited = history.script[-1][0]
        history = History(history.job, history.seed, history.policy, history.script[:-1])
        gap_all = waited + gap
    else:
        gap_all = gap
    run_on((history, world), gap)
    history = history.then(gap_all, fault)
    try:
        apply(world, fault)  # time may pass in it
    except Violation as found:
        raise EarlyViolation(found, history) from found
    return history, world


def run_on(at: At, events: int) -> bool:
    """Run more events; False if the history ended first. A Violation names the history."""
    try:
        return advance(at[1], events)
    except Violation as found:
        raise EarlyViolation(found, at[0]) from found
