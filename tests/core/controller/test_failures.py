"""What is remembered of failed agents: forgiving, limits, and nodes to avoid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.reasons import FailureCause, failure_cause
from bamboo_core.api.spec import RunPolicy
from bamboo_core.controller import failures
from bamboo_core.controller.failures import (
    AVOID_S,
    LONGEST_MESSAGE,
    MOST_AVOIDED,
    MOST_RECENT,
    Avoided,
    Failure,
    Failures,
    Misfits,
)
from bamboo_core.model.ids import AgentId

POLICY = RunPolicy()


def failure(number: int = 0, *, step: int = 0, at: float = 0.0, machine: str = "") -> Failure:
    return Failure(
        AgentId(f"job-p0-s0-i{number}"),
        FailureCause.WORKER_EXITED,
        step,
        at,
        f"n-{machine}",
        machine,
    )


def after(*found: Failure, policy: RunPolicy = POLICY) -> Failures:
    known = Failures()
    for one in found:
        known = failures.add(known, one, f"{one.agent}: gone", policy)
    return known


def test_every_failure_counts_until_enough_steps_are_committed() -> None:
    known = after(failure(0, step=10), failure(1, step=60))
    assert (known.total, known.unforgiven) == (2, 2)
    for committed, unforgiven in ((109, 2), (110, 1), (159, 1), (160, 0)):
        seen = failures.settle(known, committed, POLICY, now=0.0)
        assert (seen.total, seen.unforgiven) == (2, unforgiven)
    assert seen.last == known.last
    assert seen.message == "job-p0-s0-i1: gone"


def test_the_fourth_flaky_gpu_in_a_month_does_not_end_the_job() -> None:
    known = Failures()
    for month in range(12):
        known = failures.settle(known, 10_000 * month, POLICY, now=0.0)
        known = failures.add(known, failure(month, step=10_000 * month), "", POLICY)
        assert not known.is_exceeded(POLICY)
    assert (known.total, known.unforgiven) == (12, 1)


def test_failures_without_progress_exceed_the_limit() -> None:
    known = after(*(failure(n) for n in range(3)))
    assert not known.is_exceeded(POLICY)
    known = failures.add(known, failure(3), "", POLICY)
    assert known.is_exceeded(POLICY)


def test_zero_steps_means_never() -> None:
    policy = RunPolicy(forgive_after_steps=0)
    known = after(failure(step=0), policy=policy)
    assert failures.settle(known, 10**9, policy, now=0.0).unforgiven == 1


def test_after_a_restore_the_steps_count_from_there() -> None:
    """Repeated steps are progress, too; what is forgiven stays forgiven."""
    known = after(failure(0, step=10), failure(1, step=500))
    known = failures.settle(known, 500, POLICY, now=0.0)
    assert known.unforgiven == 1
    known = failures.settle(known, 300, POLICY, now=0.0)
    assert failures.settle(known, 399, POLICY, now=0.0).unforgiven == 1
    assert failures.settle(known, 400, POLICY, now=0.0).unforgiven == 0


def test_the_list_is_bounded_and_none_is_forgotten() -> None:
    policy = RunPolicy(backoff_limit=1000)
    known = after(*(failure(n, step=n) for n in range(MOST_RECENT + 5)), policy=policy)
    assert len(known.recent) == MOST_RECENT
    assert (known.total, known.unforgiven) == (MOST_RECENT + 5,) * 2
    seen = failures.settle(known, 103, policy, now=0.0)
    assert seen.unforgiven == MOST_RECENT + 5
    seen = failures.settle(known, 104, policy, now=0.0)  # the newest of the older ones is step 4
    assert (seen.older, seen.unforgiven) == (0, MOST_RECENT)
    assert failures.settle(known, 120, policy, now=0.0).unforgiven == 0


def test_tolerated_failures_never_count_towards_the_limit() -> None:
    tolerated = (replace(failure(n), is_tolerated=True) for n in range(2 * MOST_RECENT))
    known = after(*tolerated)
    assert (known.total, known.unforgiven) == (2 * MOST_RECENT, 0)


def test_a_node_that_fails_twice_is_avoided_and_comes_back() -> None:
    known = after(failure(0, at=5.0, machine="m"), failure(1, at=6.0, machine="other"))
    assert known.avoided_until() == {}
    known = failures.add(known, failure(2, at=7.0, machine="m"), "", POLICY)
    assert known.avoided_until() == {"m": 7.0 + AVOID_S}
    assert known.avoided[0].node == "n-m"
    kept = failures.settle(known, 100, POLICY, now=6.0 + AVOID_S)
    assert kept.avoided_until() == {"m": 7.0 + AVOID_S}, "progress elsewhere says nothing of it"
    assert failures.settle(known, 0, POLICY, now=7.0 + AVOID_S).avoided == ()


def test_another_failure_on_an_avoided_node_extends_the_time() -> None:
    known = after(failure(0, machine="m"), failure(1, machine="m"))
    known = failures.settle(known, 100, POLICY, now=50.0)
    assert known.unforgiven == 0
    known = failures.add(known, failure(2, step=100, at=60.0, machine="m"), "", POLICY)
    assert known.avoided_until() == {"m": 60.0 + AVOID_S}


def test_forgiven_failures_do_not_make_a_node_bad() -> None:
    known = failures.settle(after(failure(0, machine="m")), 100, POLICY, now=0.0)
    known = failures.add(known, failure(1, step=100, machine="m"), "", POLICY)
    assert known.avoided == ()


@pytest.mark.parametrize(("limit", "machine"), [(0, "m"), (1, "")])
def test_nodes_that_are_not_avoided(limit: int, machine: str) -> None:
    policy = RunPolicy(node_failure_limit=limit)
    found = (failure(n, machine=machine) for n in range(5))
    assert after(*found, policy=policy).avoided == ()


def test_one_wrong_result_is_enough_to_avoid_a_node() -> None:
    wrong = replace(failure(0, at=5.0, machine="m"), cause=FailureCause.CORRUPTION)
    assert after(wrong).avoided_until() == {"m": 5.0 + AVOID_S}
    other = failure(1, at=6.0, machine="other")
    assert after(wrong, other).avoided_until() == {"m": 5.0 + AVOID_S}
    for policy in (RunPolicy(node_failure_limit=0), POLICY):
        unknown = wrong if not policy.node_failure_limit else replace(wrong, machine="")
        assert after(unknown, policy=policy).avoided == ()


def test_avoided_machines_and_messages_are_bounded() -> None:
    policy = RunPolicy(node_failure_limit=1)
    known = after(*(failure(n, at=n, machine=f"m{n}") for n in range(40)), policy=policy)
    assert [place.machine for place in known.avoided] == [
        f"m{n}" for n in range(40 - MOST_AVOIDED, 40)
    ]
    for letter in "x", "层":
        message = failures.add(known, failure(), letter * 5000, policy).message
        assert LONGEST_MESSAGE - 3 < len(message.encode()) <= LONGEST_MESSAGE
        assert message.endswith(letter + "...")


def test_causes_are_counted() -> None:
    known = failures.add(
        after(failure(0), failure(1)),
        Failure(AgentId("x"), FailureCause.OOM_KILLED, 0, 0.0),
        "",
        POLICY,
    )
    assert dict(known.counts) == {FailureCause.OOM_KILLED: 1, FailureCause.WORKER_EXITED: 2}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("TaskFailed: KeyError: 'text'", FailureCause.TASK_FAILED),
        ("WorkerExited", FailureCause.WORKER_EXITED),
        ("Bus error", FailureCause.AGENT_FAILED),
        ("", FailureCause.AGENT_FAILED),
    ],
)
def test_a_text_begins_with_its_cause(text: str, cause: FailureCause) -> None:
    assert failure_cause(text) is cause


# ---------------------------------------------------------------- other kinds of processor


def misfit(known: Failures, machine: str, *, at: float, policy: RunPolicy = POLICY) -> Failures:
    return failures.add_misfit(known, f"n-{machine}", machine, "t1", "other bits", policy, now=at)


def test_an_agent_on_another_processor_is_no_failure_and_its_node_is_avoided_at_once() -> None:
    known = misfit(Failures(), "m", at=5.0)
    assert (known.total, known.unforgiven, known.recent, known.last) == (0, 0, (), None)
    assert known.avoided == (Avoided("n-m", "m", 5.0 + AVOID_S, is_misfit=True, kind="t1"),)
    assert failures.settle(known, 0, POLICY, now=5.0 + AVOID_S).avoided == ()


def test_the_words_of_a_misfit_are_cut_by_bytes_as_those_of_a_failure() -> None:
    """512 characters were up to 2048 bytes of the status."""
    known = failures.add_misfit(Failures(), "n", "m", "t", "层" * 400 + "\udce9", POLICY, now=5.0)
    assert known.misfits.message == "层" * 169 + "..."
    known = failures.add_misfit(Failures(), "n", "m", "t", "caf\udce9", POLICY, now=5.0)
    assert known.misfits.message == "caf\\udce9"


def test_the_pause_doubles_with_each_round_of_pods_not_with_each_agent() -> None:
    known, now, pauses = Failures(), 100.0, []
    for _ in range(9):
        for machine in ("m1", "m2", "m3"):  # they are refused together
            known = misfit(known, machine, at=now)
        pauses.append(known.misfits.until - now)
        now = known.misfits.until
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert known.misfits.rounds == 9
    kept = failures.settle(known, 10**6, POLICY, now=now + AVOID_S - 1.0)
    assert kept.misfits == known.misfits, "progress elsewhere says nothing of it"
    assert failures.settle(known, 0, POLICY, now=now + AVOID_S).misfits == Misfits()


def test_without_a_limit_of_failures_no_node_of_another_kind_is_avoided() -> None:
    known = misfit(Failures(), "m", at=5.0, policy=RunPolicy(node_failure_limit=0))
    assert (known.avoided, known.misfits.rounds) == ((), 1)
    unknown = misfit(Failures(), "", at=5.0)
    assert (unknown.avoided, unknown.misfits.rounds) == ((), 1)


def test_a_failure_on_a_node_of_another_kind_keeps_its_kind() -> None:
    known = misfit(Failures(), "m", at=5.0)
    known = failures.add(known, failure(0, at=60.0, machine="m"), "", POLICY)
    assert known.avoided == (Avoided("n-m", "m", 60.0 + AVOID_S, is_misfit=True, kind="t1"),)


def test_the_message_of_a_refused_agent_is_bounded() -> None:
    known = failures.add_misfit(Failures(), "n", "m", "", "x" * 5000, POLICY, now=0.0)
    assert len(known.misfits.message) == LONGEST_MESSAGE
