"""Failed starts of a job whose pods the line takes: the limit of pods for each seat holds, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.controller import ends
from bamboo_core.controller.failures import FailedStarts, Failures, add_start, add_taken
from bamboo_core.controller.reconcile import step
from bamboo_core.controller.turn import Turn, Word, is_set_back
from bamboo_core.controller.view import ClusterView, Memory, PodPhase, PodView, Slot, TrainingView

from .builders import JOB, nodes, pod
from .failing_starts import KINDS, PATIENT, Cluster

WINDOW_S = 600
MOST = 6
WAITS, STARTS = Turn(Word.WAITS, 0, 2), Turn(Word.STARTS)
WRONG = KINDS["a command that fails"]


def runs(found: PodView) -> PodView:
    return replace(found, phase=PodPhase.RUNNING)


def taken_back(cluster: Cluster, seconds: int, *, every_s: int) -> None:
    """The line takes the job's pods one second in so many."""
    for second in range(seconds):
        cluster.turn = WAITS if second % every_s == every_s - 1 else STARTS
        cluster.live(1)


@pytest.mark.parametrize("every_s", [3, 30, 100])
def test_pods_that_the_line_takes_count_to_the_limit_of_their_seat(every_s: int) -> None:
    """After the first round they would run, if the line let them."""
    cluster = Cluster(WRONG)
    cluster.live(2)
    cluster.change = runs
    taken_back(cluster, WINDOW_S - 2, every_s=every_s)
    assert max(cluster.made_of.values()) <= MOST
    assert min(cluster.made_of.values()) > 1


@pytest.mark.parametrize("every_s", [2, 5])
def test_a_seat_whose_pods_never_live_to_fail_is_limited_as_the_one_that_fails(
    every_s: int,
) -> None:
    def one_fails(found: PodView) -> PodView:
        return (WRONG(found) or found) if found.slot == Slot(0, 0) else runs(found)

    cluster = Cluster(one_fails)
    taken_back(cluster, WINDOW_S, every_s=every_s)
    # The first pod of the other seat was made before any had failed.
    assert max(cluster.made_of.values()) <= MOST + 1


def test_without_a_failed_start_the_line_costs_no_pause() -> None:
    cluster = Cluster(runs)
    taken_back(cluster, 6, every_s=3)
    assert cluster.memory.failures.starts == FailedStarts()
    assert set(cluster.made_of.values()) == {2}


def test_what_the_line_takes_is_no_failure_and_no_event() -> None:
    cluster = Cluster(WRONG)
    cluster.live(2)
    cluster.change = runs
    cluster.live(8)
    before, records = cluster.memory.failures, cluster.records
    taken_back(cluster, 1, every_s=1)
    known = cluster.memory.failures
    assert known.starts.rounds == before.starts.rounds + 1
    assert (known.counts, known.unforgiven) == (before.counts, before.unforgiven)
    assert (known.starts.message, cluster.records) == (before.starts.message, records)


def test_a_seat_whose_agent_was_heard_waits_too_if_the_line_takes_it() -> None:
    starts = FailedStarts(1, 900.0, frozenset({(0, 0)}), 0, "text", first=0)
    memory = Memory(failures=Failures(starts=starts), incarnation=1)
    heard = replace(pod(0, 0, zone="a", incarnation=1), created_at=990.0, started_at=990.0)
    training = TrainingView(heard={heard.agent: ""}, connected=frozenset({heard.agent}))
    there = nodes(a=8, b=8)
    taken = step(
        PATIENT, ClusterView(there, (heard,)), training, memory, job=JOB, now=1000.0, turn=WAITS
    )
    ending = replace(heard, deleting_at=1030.0)
    found = step(
        PATIENT, ClusterView(there, (ending,)), training, taken.memory, job=JOB, now=1001.0,
        turn=STARTS,
    )  # fmt: skip
    assert (0, 0) in found.memory.failures.starts.held(1001.0)
    assert is_set_back(training, found.memory, 1001.0)


def test_one_kill_stays_one_if_the_line_takes_the_next_pod() -> None:
    """It may have been that of a node that went, so nothing is said to be stuck."""
    killed = FailedStarts(1, 900.0, frozenset({(0, 0)}), 0, "text", were_heard=True, first=0)
    known = add_taken(Failures(starts=killed), {(0, 0): 1}, now=1000.0)
    assert (known.starts.rounds, known.starts.failed_rounds) == (2, 1)
    view, memory = ClusterView(nodes(a=8, b=8), ()), Memory(failures=known)
    assert not ends.are_failing(view, TrainingView(), memory, now=1001.0)
    again = add_start(known, (0, 0), 2, "text", "", is_heard=True, now=2000.0)
    assert again.starts.failed_rounds == 2
    assert ends.are_failing(view, TrainingView(), Memory(failures=again), now=2001.0)


def test_a_seat_whose_agent_is_heard_while_it_leaves_waits_too() -> None:
    """It was starting when the line took its pod, and said a word before it ended."""
    starts = FailedStarts(1, 900.0, frozenset({(0, 0)}), 0, "text", first=0)
    memory = Memory(failures=Failures(starts=starts), incarnation=1)
    new, there = replace(pod(incarnation=1), created_at=990.0, started_at=990.0), nodes(a=8, b=8)
    taken = step(
        PATIENT, ClusterView(there, (new,)), TrainingView(), memory, job=JOB, now=1000.0, turn=WAITS
    )
    heard = TrainingView(heard={new.agent: ""}, connected=frozenset({new.agent}))
    ending = ClusterView(there, (replace(new, deleting_at=1030.0),))
    found = step(PATIENT, ending, heard, taken.memory, job=JOB, now=1001.0, turn=STARTS)
    assert (0, 0) in found.memory.failures.starts.held(1001.0)


def test_the_first_end_of_a_pause_that_the_line_began_counts() -> None:
    seats = frozenset({(0, 0), (0, 1)})
    before = FailedStarts(1, 900.0, seats, 1, "text", first=1, is_counted=True)
    known = add_taken(Failures(starts=before), {(0, 0): 2}, now=1000.0)
    assert known.starts.until > 1000.0
    assert not known.starts.is_counted_at(1000.0)
    in_pause = replace(before, until=1001.0)
    known = add_taken(Failures(starts=in_pause), {(0, 0): 2}, now=1000.0)
    assert known.starts.is_counted_at(1000.0)
