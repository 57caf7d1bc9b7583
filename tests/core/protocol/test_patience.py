"""A slice begins only if it is likely to end before the input comes that the program waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.protocol.test_executor import FIRST, ME, directive, runs
from tests.core.protocol.test_lane import LANE, PROGRAM, finish

from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, parse, parse_instruction
from bamboo_core.protocol.execution.lane import Patience
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Continuation, Stop

SLICE = parse_instruction("R[2:4] m0 2:3")
OTHER = parse_instruction("R[2:4] m0 3:4")


def step(
    patience: Patience, wait_s: float | None, takes: dict[Instruction, float] | None = None
) -> None:
    """A step with one wait and these slices, and the beginning of the next."""
    for ahead, seconds in (takes or {}).items():
        patience.begin(100.0)
        patience.end(ahead, 100.0 + seconds)
    if wait_s is not None:
        patience.wait(Item.out(7, 2, 0), 200.0)
        patience.arrive(Item.out(7, 2, 0), 200.0 + wait_s)
    patience.begin_step()


def allows(patience: Patience, ahead: Instruction = SLICE, waited_s: float = 0.0) -> bool:
    """Whether a slice may begin after a part of the wait for the same input of a later step."""
    patience.wait(Item.out(9, 2, 0), 300.0)
    return patience.allows(ahead, 300.0 + waited_s)


def test_in_the_first_step_nothing_is_known() -> None:
    assert not allows(Patience())


@pytest.mark.parametrize(
    ("waited_s", "may"), [(0.0, True), (2.0, True), (2.001, False), (4.9, False), (9.0, False)]
)
def test_a_slice_has_to_end_within_the_wait_of_the_step_before(waited_s: float, may: bool) -> None:
    patience = Patience()
    step(patience, 5.0, {SLICE: 3.0})
    assert allows(patience, waited_s=waited_s) is may


def test_the_shorter_wait_of_two_steps_counts() -> None:
    patience = Patience()
    for wait_s in (2.0, 5.0):
        step(patience, wait_s, {SLICE: 3.0})
    assert not allows(patience)
    step(patience, 4.0, {SLICE: 3.0})
    assert allows(patience)


def test_an_input_that_was_here_in_time_is_not_waited_for_again() -> None:
    patience = Patience()
    step(patience, 5.0)
    step(patience, None)
    assert not allows(patience)


def test_a_layer_takes_as_long_as_it_took_last() -> None:
    patience = Patience()
    step(patience, 5.0, {SLICE: 6.0})
    assert not allows(patience)
    step(patience, 5.0, {SLICE: 4.0})
    assert allows(patience)


def test_a_layer_that_has_never_run_is_tried() -> None:
    patience = Patience()
    step(patience, 5.0, {SLICE: 6.0})
    assert allows(patience, OTHER, waited_s=4.9)


def test_a_time_that_was_much_too_long_does_not_stay_for_ever() -> None:
    """Otherwise the layer would never run again, and its time never be measured."""
    patience = Patience()
    step(patience, 5.0, {SLICE: 50.0})
    tried = [allows(patience)]
    while not tried[-1] and len(tried) < 40:
        step(patience, 5.0)
        tried.append(allows(patience))
    assert tried[-1]
    assert 20 < len(tried) < 30


def test_another_plan_has_other_waits_and_the_same_layers() -> None:
    patience = Patience()
    step(patience, 5.0, {SLICE: 6.0})
    patience.begin_plan()
    assert not allows(patience, OTHER)
    step(patience, 6.0)
    assert allows(patience)
    assert not allows(patience, waited_s=0.1)


def test_only_the_awaited_input_ends_the_wait() -> None:
    patience = Patience()
    patience.wait(Item.out(7, 2, 0), 200.0)
    patience.arrive(Item.out(7, 2, 1), 201.0)
    patience.wait(Item.out(7, 2, 0), 202.0)  # asked again, after the other one
    patience.arrive(Item.out(7, 2, 0), 204.0)
    patience.begin_step()
    assert allows(patience, waited_s=4.0)
    assert not allows(patience, waited_s=4.1)


def test_without_a_message_to_wait_for_nothing_begins() -> None:
    patience = Patience()
    step(patience, 5.0)
    patience.wait(None, 300.0)
    assert not patience.allows(SLICE, 300.0)


def test_an_input_that_comes_during_a_slice_is_noted_when_it_comes() -> None:
    patience = Patience()
    step(patience, 5.0)
    patience.wait(Item.out(8, 2, 0), 300.0)
    patience.begin(300.0)
    patience.arrive(Item.out(8, 2, 0), 304.0)
    patience.end(SLICE, 306.0)
    patience.begin_step()
    assert allows(patience, OTHER, waited_s=4.0)
    assert not allows(patience, OTHER, waited_s=4.1)


# ------------------------------------------------------------ in an executor


def ready(program: str = PROGRAM, *, void: Fence = FIRST, compares: bool = False) -> Executor:
    """An agent with a clock, in its first instruction, at 10 s."""
    executor = Executor(ME, 6, versions=dict.fromkeys(range(4), 0), patience=Patience(), now=10.0)
    executor.stop(Stop(FIRST, void=void))
    order = directive(program, wanted=((0, 4),))
    order = replace(order, lane=parse(LANE), lane_limit=2, compares=compares)
    assert runs(executor.install(order)) == ["F[0:2] m0"]
    return executor


def test_an_executor_begins_the_slices_that_fit_into_its_waits() -> None:
    """The program waits for 5 s; the layers take 3 s and 1 s."""
    executor = ready()
    assert finish(executor) == ["F[0:2] m1"]
    executor.now = 15.0
    assert runs(executor.arrive(Item.ingrad(0, 2, 0), FIRST)) == ["B[0:2] m0"]
    executor.versions = dict.fromkeys(range(4), 1)
    program, lane = parse(PROGRAM), parse(LANE)
    executor.proceed(Continuation(FIRST, f"plan of {FIRST}", program, program, lane=lane))
    executor.now = 20.0
    found = finish(executor, 3)
    assert found == ["F[0:2] m0 @1", "F[0:2] m1 @1", "R[2:4] m0 2:3 @1"]
    executor.now = 23.0
    assert runs(executor.done()) == ["R[2:4] m0 3:4 @1"]
    executor.now = 24.0
    assert runs(executor.done()) == []  # 3 s more are too many
    assert runs(executor.arrive(Item.ingrad(1, 2, 0), FIRST)) == ["B[0:2] m0 @1"]


def test_a_vote_gets_its_comparisons_however_long_they_take() -> None:
    """In a step that is computed again it waits for all."""
    executor = ready("F[0:2] m0\nVOTE 0:2 0:2 0:1", compares=True)
    executor.held[Item.red(0, (0, 2), 0, 1)] = True
    slices = ["R[2:4] m0 2:3", "R[2:4] m0 3:4"]
    assert finish(executor) == [*slices, "VOTE 0:2 0:2 0:1"]
