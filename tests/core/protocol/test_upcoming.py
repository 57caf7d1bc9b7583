"""What an agent still computes, from any place of its programs on: what it does then run."""

from __future__ import annotations

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Instruction, Op
from bamboo_core.model.rules import prepare
from bamboo_core.protocol.messages import Continuation, Directive
from bamboo_core.protocol.upcoming import upcoming

TARGET, LAST, LAYERS = 3, 9, 2
BATCH = BatchShape(4, 1, 4)


def forwards(*indices: int) -> tuple[Instruction, ...]:
    return tuple(Instruction(Op.F, 0, 0, LAYERS, m) for m in indices)


RESUME = (*forwards(2), Instruction(Op.END), *forwards(0))
STEADY = (
    Instruction(Op.V, -1, 0, LAYERS, 5, every=2),
    *forwards(0, 1),
    Instruction(Op.END),
    Instruction(Op.B, 0, 0, LAYERS, 1),
)
FINAL = (Instruction(Op.V, -1, 0, LAYERS, 7),)


def directive() -> Directive:
    coordinator = AgentId("a")
    return Directive(Fence(0, 1, 1), TARGET, LAST, RESUME, (), BATCH, coordinator)


def run(step: int, at: int, *, continued: bool) -> list[tuple[int, int, Instruction]]:
    """The computations that an executor runs from there on."""
    found = []
    for k in range(step, LAST + 1):
        program = RESUME if k == TARGET else FINAL if k == LAST else STEADY
        if k > TARGET and not continued:
            break
        for place, task in enumerate(prepare(program, k, BATCH, LAYERS)):
            if task.instruction.op in COMPUTE and (k > step or place >= at):
                found.append((k, place, task.instruction))
    return found


def test_it_is_what_runs() -> None:
    continuation = Continuation(directive().fence, "", STEADY, FINAL)
    for step in range(TARGET, LAST + 1):
        for at in range(6):
            found = list(upcoming(directive(), continuation, step, at))
            assert found == run(step, at, continued=True)


def test_without_a_continuation_the_first_step_is_known() -> None:
    assert list(upcoming(directive(), None, TARGET, 0)) == run(TARGET, 0, continued=False)
    assert list(upcoming(directive(), None, TARGET + 1, 0)) == []
