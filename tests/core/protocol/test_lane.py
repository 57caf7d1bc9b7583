"""The lane runs only while the program waits, and nothing of the program depends on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.protocol.test_executor import FIRST, ME, PEER, SECOND, directive, reports, runs

from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import parse
from bamboo_core.protocol.effects import Drop, Effect
from bamboo_core.protocol.executor import Executor, ProtocolError
from bamboo_core.protocol.messages import CommitRecord, Continuation, Stop

LANE = """R[2:4] m0 2:3
R[2:4] m0 3:4
R[2:4] m1 2:3
R[2:4] m1 3:4"""
PROGRAM = """F[0:2] m0
F[0:2] m1
RECV (ingrad[2] m0) <b
B[0:2] m0"""
WAITING = """F[0:2] m0
RECV (out[1]) <b
F[1:2] m0"""


def started(program: str = PROGRAM, lane: str = LANE, limit: int = 2) -> Executor:
    """An agent that owns layers 0 and 1 and holds 2 and 3 as a replica; of 6."""
    executor = Executor(ME, 6, versions=dict.fromkeys(range(4), 0))
    executor.stop(Stop(FIRST))
    order = directive(program, wanted=((0, 4),))
    assert runs(executor.install(replace(order, lane=parse(lane), lane_limit=limit)))
    return executor


def finish(executor: Executor, most: int = 99) -> list[str]:
    """Instructions that follow the running one, until the agent waits."""
    found: list[str] = []
    while executor.running is not None and len(found) < most:
        found += runs(executor.done())
    return found


def prefixes(executor: Executor) -> list[str]:
    return [str(item) for item in executor.held if item.kind.name == "PREFIX"]


def test_slices_run_only_when_the_program_waits() -> None:
    executor = started()
    slices = ["R[2:4] m0 2:3", "R[2:4] m0 3:4", "R[2:4] m1 2:3", "R[2:4] m1 3:4"]
    assert finish(executor) == ["F[0:2] m1", *slices]
    assert prefixes(executor) == ["prefix[2:4] #2", "prefix[2:4] m1 #2"]
    assert executor.has(Item.out(0, 4, 1))


def test_the_program_goes_on_before_the_next_slice() -> None:
    executor = started()
    finish(executor, 2)
    assert str(executor.running) == "R[2:4] m0 2:3"
    assert executor.arrive(Item.ingrad(0, 2, 0), FIRST) == []
    assert runs(executor.done()) == ["B[0:2] m0"]
    assert executor.at == 3


def test_no_slice_begins_after_the_last_computation() -> None:
    """All agents wait for each other then, and a slice would delay them all."""
    executor = started("F[0:2] m0\nF[0:2] m1\nRECV (commit) <b\nEND")
    assert finish(executor) == ["F[0:2] m1"]
    assert prefixes(executor) == []


def test_a_slice_waits_for_its_input_and_for_the_slice_before() -> None:
    assert runs(started_waiting("R[2:4] m0 2:3\nR[2:4] m0 3:4")) == []
    assert runs(started_waiting("R[0:2] m0 1:2")) == []


def started_waiting(lane: str) -> list[Effect]:
    executor = Executor(ME, 6, versions=dict.fromkeys(range(4), 0))
    executor.stop(Stop(FIRST))
    return executor.install(
        replace(directive("RECV (out[1]) <b\nF[1:2] m0"), lane=parse(lane), lane_limit=1)
    )


def test_the_first_stage_needs_no_input() -> None:
    assert runs(started_waiting("R[0:2] m0 0:1")) == ["R[0:2] m0 0:1"]
    assert runs(started_waiting("R[2:4] m0 2:3")) == []


def test_a_stop_keeps_what_is_computed_ahead() -> None:
    executor = started()
    finish(executor, 2)
    assert executor.stop(Stop(SECOND)) == []
    (report,) = reports(executor.done())
    assert Item.prefix(0, (2, 4), 0, 1) in report.items


@pytest.mark.parametrize(("target", "left"), [(0, 2), (1, 2), (2, 0)])
def test_what_was_computed_ahead_goes_with_a_step_that_others_have_ended(
    target: int, left: int
) -> None:
    """The agent was away, and did not end the step itself; the new plan begins two steps later."""
    executor = started()
    finish(executor)
    executor.stop(Stop(SECOND))
    order = directive("RECV (out[1]) <b", fence=SECOND, target=target, wanted=((0, 4),))
    effects = executor.install(replace(order, lane_limit=2))
    dropped = [i for e in effects if isinstance(e, Drop) for i in e.items]
    assert len(prefixes(executor)) == left
    assert len(dropped) == 2 - left


def test_the_oldest_is_dropped_for_the_newest() -> None:
    executor = started(limit=1)
    dropped = []
    while executor.running is not None:
        dropped += [
            i for e in executor.done() if isinstance(e, Drop) and e.for_room for i in e.items
        ]
    assert dropped == [Item.prefix(0, (2, 4), 0, 2)]
    assert prefixes(executor) == ["prefix[2:4] m1 #2"]


def test_what_the_program_needs_is_not_dropped() -> None:
    executor = started(WAITING, "R[2:4] m0 2:3", limit=1)
    finish(executor)
    executor.stop(Stop(SECOND))
    program = parse("RECV (out[1]) <b\nF[2:4] m0 3:4")
    order = replace(directive("", fence=SECOND), resume=program, lane_limit=1)
    assert executor.install(replace(order, lane=parse("R[0:2] m1 0:1"))) == []
    assert prefixes(executor) == ["prefix[2:4] #1"]


@pytest.mark.parametrize(
    ("limit", "program", "left"),
    [
        (1, WAITING, ["prefix[2:4] m1 #2"]),
        (0, WAITING, []),
        (2, WAITING, ["prefix[2:4] #2", "prefix[2:4] m1 #2"]),
        (1, "RECV (out[1]) <b\nF[2:4] m0 4:4", ["prefix[2:4] #2"]),
        (0, "RECV (out[1]) <b\nF[2:4] m0 4:4", ["prefix[2:4] #2"]),
    ],
)
def test_a_plan_with_less_room_keeps_the_newest_and_what_it_needs(
    limit: int, program: str, left: list[str]
) -> None:
    """The planner counts on its own limit."""
    executor = started(limit=2)
    finish(executor)
    executor.stop(Stop(SECOND))
    order = replace(directive(program, fence=SECOND, wanted=((0, 4),)), lane_limit=limit)
    effects = executor.install(order)
    assert prefixes(executor) == left
    dropped = [i for e in effects if isinstance(e, Drop) and e.for_room for i in e.items]
    assert len(dropped) == 2 - len(left)


COMPARED = """F[0:2] m0
RECV (ingrad[2]) <b
B[0:2] m0
RECV (red[0:2] 0/1) <b
VOTE 0:2 0:2 0:1
RECV (commit) <b"""


def voting(begun: int, *, compares: bool = True, void: Fence = FIRST) -> Executor:
    """The program waits for nothing before its vote, and this many slices are begun."""
    executor = Executor(ME, 6, versions=dict.fromkeys(range(4), 0))
    executor.stop(Stop(FIRST, void=void))
    order = directive(COMPARED, wanted=((0, 4),))
    order = replace(order, lane=parse(LANE), lane_limit=2, compares=compares)
    assert runs(executor.install(order)) == ["F[0:2] m0"]
    for _ in range(begun):
        assert runs(executor.done())[0].startswith("R[2:4]")
    for item in (Item.ingrad(0, 2, 0), Item.red(0, (0, 2), 0, 1)):
        assert executor.arrive(item, FIRST) == []
    return executor


NEVER = Fence()


def test_a_vote_waits_for_comparisons_that_have_begun() -> None:
    executor = voting(1, void=NEVER)
    assert finish(executor) == ["B[0:2] m0", "R[2:4] m0 3:4", "VOTE 0:2 0:2 0:1"]


def test_a_vote_does_not_wait_for_other_slices() -> None:
    assert finish(voting(0, void=NEVER)) == ["B[0:2] m0", "VOTE 0:2 0:2 0:1"]
    assert finish(voting(2, void=NEVER)) == ["B[0:2] m0", "VOTE 0:2 0:2 0:1"]


def test_without_comparison_a_vote_never_waits() -> None:
    assert finish(voting(1, compares=False, void=NEVER)) == ["B[0:2] m0", "VOTE 0:2 0:2 0:1"]
    assert finish(voting(1, compares=False)) == ["B[0:2] m0", "VOTE 0:2 0:2 0:1"]


def test_in_a_step_that_was_void_a_vote_waits_for_all_that_can_be_compared() -> None:
    executor = voting(0)
    assert finish(executor) == [
        "B[0:2] m0",
        "R[2:4] m0 2:3",
        "R[2:4] m0 3:4",
        "VOTE 0:2 0:2 0:1",
    ]


def test_a_stop_while_the_vote_waits_is_answered_at_once() -> None:
    executor = voting(1, void=NEVER)
    assert runs(executor.done()) == ["B[0:2] m0"]
    assert runs(executor.done()) == ["R[2:4] m0 3:4"]
    assert executor.stop(Stop(SECOND)) == []
    assert reports(executor.done())


def test_an_old_version_is_never_used() -> None:
    executor = started(WAITING)
    executor.versions[2] = 1
    assert finish(executor) == []


def test_the_end_of_the_step_frees_what_was_computed_ahead() -> None:
    executor = started(f"{PROGRAM}\nRECV (commit) <b\nEND")
    finish(executor)
    assert prefixes(executor)
    executor.arrive(Item.ingrad(0, 2, 0), FIRST)
    assert finish(executor) == []
    effects = executor.arrive(Item.commit(0), FIRST, CommitRecord(0))
    assert not any(e.for_room for e in effects if isinstance(e, Drop))
    assert not executor.held.keys() - {Item.commit(0)}
    assert executor.running is None


def test_a_new_plan_has_a_lane_of_its_own() -> None:
    executor = started(WAITING, "R[2:4] m0 2:3")
    executor.stop(Stop(SECOND))
    executor.done()
    order = replace(directive(WAITING, fence=SECOND, wanted=((0, 4),)), lane_limit=1)
    assert runs(executor.install(order)) == ["F[0:2] m0"]
    assert finish(executor) == []


@pytest.mark.parametrize(("last", "expected"), [(2, ["R[0:2] m1 0:1 @1"]), (1, [])])
def test_the_last_program_has_no_lane(last: int, expected: list[str]) -> None:
    """Nothing follows it that a loss could interrupt but the epilogue."""
    executor = Executor(ME, 6, versions=dict.fromkeys(range(4), 1))
    executor.stop(Stop(FIRST))
    executor.install(replace(directive(last=last), lane_limit=1))
    waiting = parse("RECV (out[1]) <b\nF[1:2] m0")
    rest = Continuation(FIRST, f"plan of {FIRST}", waiting, waiting, lane=parse("R[0:2] m1 0:1"))
    assert runs(executor.proceed(rest)) == expected


@pytest.mark.parametrize(("done", "needs"), [(1, "prefix[2:4] #1"), (2, "prefix[2:4] #2")])
def test_a_forward_continues_from_what_was_computed_ahead(done: int, needs: str) -> None:
    executor = started(WAITING)
    finish(executor, done)
    executor.stop(Stop(SECOND))
    executor.done()
    assert needs in prefixes(executor)
    order = directive(f"F[2:4] m0 {2 + done}:4\nRECV (ingrad[4]) <b", fence=SECOND)
    assert runs(executor.install(order)) == [f"F[2:4] m0 {2 + done}:4"]
    executor.done()
    assert needs not in prefixes(executor)
    assert executor.has(Item.out(0, 4, 0))
    assert PEER not in executor.versions


def test_a_slice_that_makes_nothing_ends_its_forward_in_this_step() -> None:
    executor = started()
    finish(executor, 2)
    assert runs(executor.done()) == ["R[2:4] m0 3:4"]
    completed = executor.completed
    assert runs(executor.skip()) == ["R[2:4] m1 2:3"]
    assert finish(executor) == ["R[2:4] m1 3:4"]
    assert prefixes(executor) == ["prefix[2:4] #1", "prefix[2:4] m1 #2"]
    assert executor.completed == completed + 2


def test_a_stop_is_answered_when_the_slice_has_made_nothing() -> None:
    executor = started()
    finish(executor, 2)
    assert executor.stop(Stop(SECOND)) == []
    (report,) = reports(executor.skip())
    assert not [item for item in report.items if item.kind.name == "PREFIX"]


def test_a_vote_does_not_wait_for_a_comparison_that_has_failed() -> None:
    executor = voting(1, void=NEVER)
    assert runs(executor.done()) == ["B[0:2] m0"]
    assert runs(executor.done()) == ["R[2:4] m0 3:4"]
    assert runs(executor.skip()) == ["VOTE 0:2 0:2 0:1"]


def test_nothing_of_the_program_is_skipped() -> None:
    with pytest.raises(ProtocolError, match=r"F\[0:2\] m0 is skipped"):
        started().skip()
