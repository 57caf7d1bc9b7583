"""A STOP may say that the step in progress is void: nobody knows who holds wrong bits."""

from __future__ import annotations

from tests.core.protocol.test_executor import FIRST, ME, SECOND, reports

from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.effects import Drop, Retract
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import CommitRecord, Stop

OUT, RED = Item.out(5, 2, 0), Item.red(5, (0, 2), 0, 1)
BEFORE, EARLY = Item.red(4, (0, 2), 0, 1), Item.out(6, 2, 0)
FILE = Item.file(5, 0)


def busy(*committed: int) -> Executor:
    """In step 5 of the first plan; a file of that version is written."""
    executor = Executor(ME, 2, fence=FIRST, installed=FIRST, versions={0: 5, 1: 5}, ended=4)
    executor.held = dict.fromkeys((OUT, RED, BEFORE, EARLY, FILE), False)
    executor.commits = {k: CommitRecord(k) for k in committed}
    return executor


def test_all_results_of_the_step_go_and_what_is_committed_stays() -> None:
    executor = busy(4)
    effects = executor.stop(Stop(SECOND, void=SECOND))
    (report,) = reports(effects)
    assert report.items == {BEFORE, FILE}
    assert report.versions == {0: 5, 1: 5}
    (dropped,) = (e.items for e in effects if isinstance(e, Drop))
    assert set(dropped) == {OUT, RED, EARLY}
    assert [e.is_new for e in effects if isinstance(e, Retract)] == [False]


def test_a_step_whose_commit_is_known_is_not_void() -> None:
    """It was committed under an earlier plan: its layers are updated from what is held."""
    executor = busy(4, 5)
    (report,) = reports(executor.stop(Stop(SECOND, void=SECOND)))
    assert report.items == {OUT, RED, BEFORE, FILE}


def test_what_was_made_since_then_is_not_dropped_again() -> None:
    executor = busy(4)
    executor.stop(Stop(SECOND, void=SECOND))
    executor.held[OUT] = False
    third = Fence(0, 1, 3)
    effects = executor.stop(Stop(third, void=SECOND))
    assert OUT in reports(effects)[0].items
    assert not [e for e in effects if isinstance(e, Retract)]


def test_who_missed_that_stop_drops_at_the_next() -> None:
    executor = busy(4)
    (report,) = reports(executor.stop(Stop(Fence(0, 2, 7), void=SECOND)))
    assert report.items == {BEFORE, FILE}


def test_without_a_void_a_stop_keeps_everything() -> None:
    executor = busy(4)
    effects = executor.stop(Stop(SECOND))
    assert reports(effects)[0].items == {OUT, RED, BEFORE, EARLY, FILE}
    assert not [e for e in effects if isinstance(e, Retract)]


def test_a_new_attempt_ends_all_claims() -> None:
    effects = busy(4).stop(Stop(Fence(1, 1, 3), void=SECOND))
    assert [e.is_new for e in effects if isinstance(e, Retract)] == [True]
