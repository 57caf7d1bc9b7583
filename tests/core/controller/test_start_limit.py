"""Failed starts and spec.runPolicy.backoffLimit: one counts in each round, and a mended template
forgets them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.reasons import FailureCause, Reason
from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller import failures, turn
from bamboo_core.controller.failures import (
    AVOID_S,
    MOST_RECENT,
    FailedStarts,
    Failure,
    Failures,
)
from bamboo_core.controller.view import Memory, PodView
from bamboo_core.model.ids import AgentId

from .builders import nodes, pod, spec
from .failing_starts import KINDS, Cluster, after

SMALL, LARGE = (
    spec(),
    replace(spec(stages=8), pipelines=replace(spec().pipelines, stages=8, count=4)),
)
WRONG = "a command that fails"
PAUSES_S = 5 + 15 + 45
POLICY = spec().run_policy


def cluster_of(wanted: object, kind: str = WRONG) -> Cluster:
    """It has room for every seat."""
    return Cluster(KINDS[kind], wanted, there=nodes(a=64, b=64))  # type: ignore[arg-type]


def ends_after_s(cluster: Cluster) -> int:
    """Seconds until the job has failed."""
    for second in range(300):
        if cluster.has_failed:
            return second
        cluster.live(1)
    raise AssertionError("the job has not failed")


@pytest.mark.parametrize("wanted", [SMALL, LARGE])
@pytest.mark.parametrize("kind", [WRONG, "an init container that fails"])
def test_the_default_limit_leaves_the_pauses_whatever_the_size_of_the_grid(
    wanted: object, kind: str
) -> None:
    cluster = cluster_of(wanted, kind)
    assert PAUSES_S < ends_after_s(cluster) <= PAUSES_S + 10
    known = cluster.memory.failures
    assert (known.unforgiven, known.starts.rounds) == (4, 4)
    assert cluster.memory.reason == Reason.BACKOFF_LIMIT_EXCEEDED
    assert cluster.memory.message.startswith(
        "agents have failed 4 times (pods that end before their agents are heard count once in"
        " each round of new pods), more than spec.runPolicy.backoffLimit 3; the last: agent job-"
    )


@settings(max_examples=25)
@given(st.lists(st.integers(0, 20), min_size=8, max_size=8), st.data())
def test_seats_that_fail_at_different_times_do_not_end_the_job_sooner(
    starts_s: list[int], data: st.DataObject
) -> None:
    """As on a cluster that grows: each seat's pods end so many seconds after they were made."""
    wanted = spec(stages=8)
    cluster = cluster_of(wanted)

    def fails(seen: PodView) -> PodView:
        is_due = cluster.now >= seen.created_at + starts_s[seen.slot.stage]
        return (KINDS[WRONG](seen) or seen) if is_due else seen

    cluster.change = fails
    first_s = None
    for second in range(400):
        cluster.live(1)
        if first_s is None and cluster.memory.failures.total:
            first_s = second
        if cluster.has_failed:
            break
    assert cluster.has_failed
    assert first_s is not None
    assert second - first_s >= PAUSES_S


def test_a_new_operator_counts_a_round_once() -> None:
    """The seats of a round fail one after the other, and each is seen by another operator."""
    memory = Memory()
    for stage in range(4):
        seen = KINDS[WRONG](pod(0, stage))
        assert seen is not None
        known = after(seen, memory=memory).memory
        memory = Memory(failures=known.failures, settled=known.settled)
    assert (memory.failures.total, memory.failures.unforgiven) == (4, 1)


def test_an_end_of_the_same_pause_counts_if_only_its_node_was_blamed_before() -> None:
    """Else a seat that fails by its node would hide the job's own fault in another one."""
    both = [KINDS["no healthy device"](pod()), KINDS[WRONG](pod(0, 1, zone="b"))]
    assert both[0] is not None
    assert both[1] is not None
    first = after(both[0]).memory
    found = after(both[0], both[1], memory=first).memory.failures
    assert (found.total, found.unforgiven, found.starts.rounds) == (2, 1, 1)


def test_a_large_round_keeps_the_failure_that_counts() -> None:
    """It is listed, so that it can be forgotten with its template."""
    known = Failures()
    for number in range(3 * MOST_RECENT):
        is_first = number == 0
        failure = Failure(
            AgentId(f"job-p0-s{number}-i0"), FailureCause.START_FAILED, 0, 5.0,
            is_tolerated=not is_first, template="old",
        )  # fmt: skip
        known = failures.add(known, failure, "no", POLICY)
    assert (len(known.recent), known.older, known.unforgiven) == (MOST_RECENT, 0, 1)
    assert failures.of_template(known, "new").unforgiven == 0


# ---------------------------------------------------------------- another template


def mended(wanted: object) -> object:
    return replace(wanted, worker=WorkerSpec("agent:2"))  # type: ignore[type-var]


@pytest.mark.parametrize("wanted", [SMALL, LARGE])
def test_another_wrong_template_has_all_its_attempts(wanted: object) -> None:
    cluster = cluster_of(wanted)
    cluster.live(60)
    assert (cluster.has_failed, cluster.memory.failures.starts.rounds) == (False, 3)
    cluster.wanted = mended(wanted)  # type: ignore[assignment]
    cluster.live(1)
    assert cluster.memory.failures.unforgiven <= 1
    assert PAUSES_S - 5 < ends_after_s(cluster) <= PAUSES_S + 10


def test_an_end_of_an_old_pod_after_the_change_counts_neither_for_the_job_nor_for_its_node() -> (
    None
):
    seen = KINDS[WRONG](pod(template="old"))
    assert seen is not None
    found = after(seen).memory.failures
    assert (found.total, found.unforgiven, found.avoided) == (1, 0, ())
    assert found.starts == FailedStarts()


def test_failures_of_agents_that_were_heard_stay() -> None:
    heard = Failure(
        AgentId("job-p0-s0-i0"), FailureCause.TASK_FAILED, 0, 5.0, "node-a", "machine-a"
    )
    start = replace(heard, cause=FailureCause.AGENT_FAILED, template="old")
    known = failures.add(failures.add(Failures(), heard, "", POLICY), start, "", POLICY)
    assert known.unforgiven == 2
    left = failures.of_template(known, "new")
    assert (left.recent, left.total) == ((heard,), 2)


@pytest.mark.parametrize("kind", [WRONG, "no healthy device", "a liveness probe that kills"])
def test_nodes_are_not_avoided_because_of_pods_of_another_template(kind: str) -> None:
    cluster = cluster_of(SMALL, kind)
    cluster.live(15)
    assert cluster.memory.failures.avoided
    cluster.wanted = mended(SMALL)  # type: ignore[assignment]
    cluster.change = None
    cluster.live(1)
    assert cluster.memory.failures.avoided == ()


@pytest.mark.parametrize(
    ("templates", "is_kept"),
    [
        (["old", "old"], False),
        (["", "old"], False),
        (["old", ""], False),
        (["", ""], True),
        (["old", "", "old", ""], True),
        (["", "", "old"], True),
        (["old", "old", "old", ""], False),
    ],
)
def test_a_node_stays_avoided_if_enough_others_have_failed_there(
    templates: list[str], is_kept: bool
) -> None:
    """With the default limit of 2 for a node."""
    known = Failures()
    for number, template in enumerate(templates):
        failure = Failure(
            AgentId(f"job-p0-s0-i{number}"), FailureCause.AGENT_FAILED, 0, 5.0, "node-a",
            "machine-a", template=template,
        )  # fmt: skip
        known = failures.add(known, failure, "", POLICY)
    assert known.avoided_until() == {"machine-a": 5.0 + AVOID_S}
    assert failures.of_template(known, "old") == known
    assert bool(failures.of_template(known, "new").avoided) is is_kept


def test_a_suspension_alone_forgets_nothing() -> None:
    cluster = cluster_of(SMALL)
    cluster.live(30)
    known = cluster.memory.failures
    assert known.unforgiven == 3
    assert {failure.template for failure in known.recent} == {turn.template(SMALL)}
    cluster.wanted = replace(SMALL, suspend=True)
    cluster.live(1)
    assert cluster.memory.failures.unforgiven == 3
