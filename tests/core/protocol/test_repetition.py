"""What a supervisor repeats in every session, and when it forgets it."""

from __future__ import annotations

from tests.core.protocol.supervised import (
    FIRST,
    READY,
    SECOND,
    directive,
    planned,
    reopened,
    report,
    sent,
)

from bamboo_core.model.ids import Fence
from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import (
    BadCheckpoint,
    CommitRecord,
    Finished,
    Left,
    Listed,
    Manifest,
    Progress,
    Sealed,
    Stop,
)
from bamboo_core.protocol.said import Said


def sealed(step: int) -> Sealed:
    return Sealed(Manifest(0, step, f"p{step}", "d"))


def bad(step: int, why: str = "torn") -> BadCheckpoint:
    return BadCheckpoint(0, step, why)


def progress(step: int) -> Progress:
    return Progress(CommitRecord(step), FIRST)


def test_what_was_said_without_a_session_waits_for_the_next_one() -> None:
    supervisor = planned()
    supervisor.handle(m.SessionClosed(), 1.0)
    finished = Finished(Fence(0, 1, 1))
    for message in (sealed(4), progress(0), finished):
        assert supervisor.handle(m.FromWorker(message), 1.0) == []
    assert reopened(supervisor, 2.0) == [READY, sealed(4), progress(0), finished]


def test_what_was_said_into_a_dying_stream_is_repeated() -> None:
    """Nobody knows how much of it has arrived."""
    supervisor = planned()
    words = [Listed((sealed(3).manifest,)), sealed(4), bad(2), Left(FIRST)]
    for message in words:
        assert sent(supervisor.handle(m.FromWorker(message), 1.0)) == [message]
    assert reopened(supervisor, 2.0) == [READY, *words]
    assert reopened(supervisor, 3.0) == [READY, *words]


def test_only_the_newest_progress_and_list_are_repeated() -> None:
    supervisor = planned()
    for message in (progress(0), Listed(), progress(1), Listed((sealed(1).manifest,)), progress(2)):
        supervisor.handle(m.FromWorker(message), 1.0)
    assert reopened(supervisor, 2.0) == [READY, Listed((sealed(1).manifest,)), progress(2)]


def test_a_long_plan_repeats_only_its_newest_checkpoints() -> None:
    supervisor = planned()
    for step in range(20):
        supervisor.handle(m.FromWorker(sealed(step)), 1.0)
        supervisor.handle(m.FromWorker(bad(step)), 1.0)
    words = reopened(supervisor, 2.0)
    assert [x.manifest.step for x in words if isinstance(x, Sealed)] == list(range(14, 20))
    assert [x.step for x in words if isinstance(x, BadCheckpoint)] == list(range(12, 20))


def test_a_later_word_about_a_checkpoint_replaces_the_earlier_one() -> None:
    supervisor = planned()
    for message in (bad(1), bad(2), bad(1, "cannot be written")):
        supervisor.handle(m.FromWorker(message), 1.0)
    assert reopened(supervisor, 2.0) == [READY, bad(2), bad(1, "cannot be written")]


def test_a_plan_shows_what_the_leader_knows() -> None:
    """All that came before the report which the plan answers; the report said twice is one."""
    supervisor = planned()
    supervisor.handle(m.FromWorker(sealed(1)), 1.0)
    supervisor.handle(m.FromOperator(Stop(SECOND)), 1.0)
    supervisor.handle(m.FromWorker(sealed(2)), 1.0)
    supervisor.handle(m.FromWorker(report(SECOND)), 1.0)
    supervisor.handle(m.FromWorker(sealed(3)), 1.0)
    supervisor.handle(m.FromWorker(report(SECOND)), 1.0)
    supervisor.handle(m.FromWorker(bad(4)), 1.0)
    assert reopened(supervisor, 2.0) == [READY, sealed(1), sealed(2), sealed(3), bad(4)]
    supervisor.handle(m.FromOperator(directive(SECOND)), 2.0)
    assert reopened(supervisor, 3.0) == [READY, sealed(3), bad(4)]


def test_a_stop_alone_forgets_nothing_but_the_outcome() -> None:
    supervisor = planned()
    supervisor.handle(m.FromWorker(sealed(1)), 1.0)
    supervisor.handle(m.FromWorker(Finished(FIRST)), 1.0)
    supervisor.handle(m.FromOperator(Stop(SECOND)), 1.0)
    supervisor.handle(m.FromWorker(report(SECOND)), 1.0)
    supervisor.handle(m.FromOperator(Stop(Fence(0, 1, 3))), 1.0)
    supervisor.handle(m.FromWorker(report(Fence(0, 1, 3))), 1.0)
    supervisor.handle(m.FromOperator(directive(SECOND)), 1.0)
    assert reopened(supervisor, 2.0) == [READY, sealed(1)]


def test_a_stop_that_is_repeated_keeps_the_outcome() -> None:
    """The plan has ended; a leader that repeats its order has not heard so."""
    supervisor = planned()
    supervisor.handle(m.FromWorker(Finished(FIRST)), 1.0)
    supervisor.handle(m.FromOperator(Stop(FIRST)), 1.0)
    assert reopened(supervisor, 2.0) == [READY, Finished(FIRST)]


def test_a_copy_says_the_same_and_goes_its_own_way() -> None:
    said = Said()
    said.add(sealed(1))
    said.report(SECOND)
    said.add(sealed(2))
    said.add(Finished(FIRST))
    copy = said.copy()
    assert copy.words() == [sealed(1), sealed(2), Finished(FIRST)]
    said.install(SECOND)
    said.add(bad(3))
    said.stop()
    assert copy.words() == [sealed(1), sealed(2), Finished(FIRST)]
    copy.install(SECOND)
    assert copy.words() == [sealed(2), Finished(FIRST)]
