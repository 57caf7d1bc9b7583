"""What an agent's programs still compute: so that what they read can be read ahead of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bamboo_core.model.program import COMPUTE, Instruction
from bamboo_core.protocol.messages import Continuation, Directive


class Coming(NamedTuple):
    """at: its place in the program of the step; task: with its absolute step."""

    step: int
    at: int
    task: Instruction


def upcoming(
    directive: Directive, continuation: Continuation | None, step: int, at: int
) -> Iterator[Coming]:
    """The computations from a place in a step's program on, and those of the later steps, in order.

    at: the place, in the instructions that the step does not skip. Without a continuation the later
    steps are not known.
    """
    while step <= directive.last:
        program = directive.resume
        if step > directive.target:
            if continuation is None:
                return
            program = continuation.final if step == directive.last else continuation.steady
        places = enumerate(x for x in program if x.every <= 1 or (x.step + step) % x.every == 0)
        for place, task in places:
            if place >= at and task.op in COMPUTE:
                yield Coming(step, place, task._replace(step=task.step + step))
        step, at = step + 1, 0
