"""A run as the cluster's objects and events tell it."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import make_node, make_pod
from tests.cli.events import event

from bamboo_cli.job.state import read_job
from bamboo_cli.run.cost import money_text
from bamboo_cli.run.faults import FaultLog
from bamboo_cli.run.from_cluster import from_cluster
from bamboo_cli.run.from_watching import Frame, from_frames
from bamboo_cli.run.model import Account, Life, Run, Span
from bamboo_cli.views.page import page
from bamboo_cli.views.terminal.run_report import text_report
from bamboo_core.api.events import EventReason as Reason
from bamboo_core.controller.view import Slot

A, B, C, D = "gpt-p0-s0-i0", "gpt-p0-s1-i0", "gpt-p0-s1-i1", "gpt-p0-s0-i1"
EVENTS = [
    event(2.0, Reason.PLANNED, epoch=1, step=0, agents=f"{A},{B}"),
    event(10.0, Reason.AGENT_LOST, agents=B),
    event(10.1, Reason.STOPPED, epoch=2, agents=B),
    event(11.0, Reason.RESUMED, epoch=2, step=4, pause_s=0.9),
    event(20.0, Reason.PLANNED, epoch=3, step=12, agents=f"{A},{C}"),
    event(30.0, Reason.CHECKPOINT_SEALED, step=16),
]


@pytest.fixture
def finished(training: dict[str, Any]) -> dict[str, Any]:
    """From second 0 to second 40, at step 20."""
    training["status"] |= {
        "startTime": "1970-01-01T00:00:00Z", "completionTime": "1970-01-01T00:00:40Z",
    }  # fmt: skip
    training["status"]["progress"]["reportTime"] = "1970-01-01T00:00:40Z"
    return training


def pods() -> list[dict[str, Any]]:
    """A runs still, C has ended, B is gone."""
    first, second = make_pod(A, "n0"), make_pod(C, "n1", "Succeeded")
    first["status"]["startTime"] = "1970-01-01T00:00:01Z"
    second["status"]["startTime"] = "1970-01-01T00:00:18Z"
    ended = {"terminated": {"finishedAt": "1970-01-01T00:00:35Z"}}
    second["status"]["containerStatuses"] = [{"name": "agent", "state": ended}]
    return [first, second, make_pod("stranger", "n0"), make_pod("gpt-p1-s0-i0", phase="Pending")]


def nodes() -> list[dict[str, Any]]:
    found = [make_node("n0", "a"), make_node("n1", "b"), make_node("n2", "c")]
    found[1]["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] = "spot"
    return found


def scheduled(pod: str, node: str) -> dict[str, Any]:
    message = f"Successfully assigned team/{pod} to {node}"
    at = "1970-01-01T00:00:01.500000Z"
    return {"involvedObject": {"name": pod}, "message": message, "eventTime": at}


def test_lives_come_from_pods_and_from_plans(finished: dict[str, Any]) -> None:
    run = from_cluster(finished, EVENTS, pods(), nodes(), [scheduled(B, "n2")], now=99.0)
    assert run.span == Span(0.0, 40.0)
    assert list(run.lives) == [
        Life(A, "a", "", Span(1.0, 40.0)),
        Life(B, "c", "", Span(1.5, 10.0)),
        Life(C, "b", "spot", Span(18.0, 35.0)),
    ]
    assert run.fleet("c") == [(0.0, 0), (1.5, 1), (10.0, 0), (40.0, 0)]
    assert run.agent_hours() == pytest.approx({"a": 39 / 3600, "b": 17 / 3600, "c": 8.5 / 3600})
    assert [(g.at, g.agent, g.zone, g.is_noticed) for g in run.gone] == [(10.0, B, "c", False)]


def test_an_agent_that_no_plan_had_ran_from_when_its_pod_got_a_node(
    finished: dict[str, Any],
) -> None:
    lost = event(3.5, Reason.AGENT_LOST, agents=B)
    run = from_cluster(finished, [lost], [], nodes(), [scheduled(B, "n2")], now=99.0)
    assert list(run.lives) == [Life(B, "c", "", Span(1.5, 3.5))]
    without = from_cluster(finished, [lost], [], nodes(), [], now=99.0)
    assert not without.lives


SUSPENSION = [
    EVENTS[0],
    event(4.0, Reason.PLANNED, epoch=2, step=9, agents=f"{A},{B}"),
    event(5.0, Reason.CHECKPOINT_SEALED, step=10),
    event(6.0, Reason.SUSPENDED),
    event(25.0, Reason.RESTORING, attempt=1, step=10, repeated_steps=0, cause="Resumed"),
    event(34.0, Reason.PLANNED, epoch=3, step=10, agents=f"{C},{D}"),
]


@pytest.mark.parametrize(
    ("left_out", "until"),
    [((), 6.0), ((4,), 6.0), ((3,), 5.0), ((2, 3), 4.0)],
    ids=["whole", "its resume is gone", "of an earlier version", "without a checkpoint"],
)
def test_agents_of_a_suspended_job_do_not_count_while_it_rests(
    finished: dict[str, Any], left_out: tuple[int, ...], until: float
) -> None:
    """Nor while the resumed job waits for agents: the next plan comes long after."""
    known = [each for n, each in enumerate(SUSPENSION) if n not in left_out]
    started = [scheduled(C, "n1"), scheduled(D, "n1")]
    for each in started:
        each["eventTime"] = "1970-01-01T00:00:30Z"
    run = from_cluster(finished, known, [], nodes(), started, now=99.0)
    assert [(life.agent, life.span) for life in run.lives] == [
        (A, Span(2.0, until)), (B, Span(2.0, until)), (D, Span(30.0, 40.0)), (C, Span(30.0, 40.0)),
    ]  # fmt: skip


def test_a_job_that_was_resumed_and_waits_has_only_the_agents_that_are_there(
    finished: dict[str, Any],
) -> None:
    pod = make_pod(C, "n1")
    pod["status"]["startTime"] = "1970-01-01T00:00:30Z"
    run = from_cluster(finished, SUSPENSION[:-1], [pod], nodes(), [], now=99.0)
    assert [(life.agent, life.span.end) for life in run.lives] == [(A, 6.0), (B, 6.0), (C, 40.0)]
    at_rest = [[n for at, n in run.fleet(zone) if at <= 27.0][-1] for zone in run.zones]
    assert at_rest == [0, 0]


def test_a_restore_of_a_job_that_trains_ends_no_agent(finished: dict[str, Any]) -> None:
    lost = event(25.0, Reason.RESTORING, attempt=1, step=10, repeated_steps=3, cause="LayerLost")
    run = from_cluster(finished, [EVENTS[0], lost], [], nodes(), [], now=99.0)
    assert [life.span.end for life in run.lives] == [40.0, 40.0]


def test_short_lives_are_not_rounded_away(finished: dict[str, Any]) -> None:
    """A node was killed in a job of 40 s."""
    run = from_cluster(finished, EVENTS, pods(), nodes(), [scheduled(B, "n2")], now=99.0)
    prices = {"others": 0.9}
    out = io.StringIO()
    Console(file=out, width=200).print(text_report(run, prices))
    for said in (" ".join(out.getvalue().split()), page(run, prices)):
        assert "0.0024" in said  # 8.5 s
        assert "0.0021" in said  # and what they cost
        assert ">0.00<" not in said
        assert " 0.00 " not in said
    unknown = replace(run, lives=[])
    out = io.StringIO()
    Console(file=out, width=200).print(text_report(unknown, {}))
    assert "zone not known not known 1 not known" in " ".join(
        out.getvalue().replace("c  ", "zone not known  ").split()
    )


def test_pauses_and_progress_come_from_the_events(finished: dict[str, Any]) -> None:
    run = from_cluster(finished, EVENTS, [], [], [], now=99.0)
    (pause,) = run.pauses
    assert (pause.begin, pause.end) == (pytest.approx(10.1), 11.0)
    assert [step for _, step in run.progress] == [4, 4, 5, 16, 20]
    rates = run.throughput(2)
    assert sum(rate * span.seconds for span, rate in rates) == pytest.approx((20 - 4) * 32)


def test_a_job_that_rests_is_shown_until_its_agents_have_gone(finished: dict[str, Any]) -> None:
    del finished["status"]["completionTime"]
    since = {"lastTransitionTime": "1970-01-01T00:00:30Z", "status": "True", "reason": "x"}
    finished["status"] |= {"phase": "Suspended", "conditions": [{"type": "Suspended"} | since]}
    run = from_cluster(finished, EVENTS, [], [], [], now=99.0)
    assert run.span.end == 30.0
    assert max(life.span.end for life in run.lives) == 30.0
    finished["status"]["phase"] = "Suspending"
    assert from_cluster(finished, EVENTS, [], [], [], now=99.0).span.end == 99.0


def test_the_pause_with_which_a_job_fails_is_told(finished: dict[str, Any]) -> None:
    finished["status"]["phase"] = "Failed"
    failed = [
        event(38.0, Reason.WORKER_FAILED, agents=A),
        event(38.0, Reason.AGENT_LOST, agents=A),
        event(38.1, Reason.STOPPED, epoch=4, agents=A),
    ]
    run = from_cluster(finished, [*EVENTS, *failed], [], [], [], now=99.0)
    assert [(pause.begin, pause.end) for pause in run.pauses][1:] == [(38.1, 40.0)]


LEFT_AND_BACK = [
    event(2.0, Reason.PLANNED, epoch=1, agents=f"{A},{B}"),
    event(5.0, Reason.AGENT_LEFT, agents=B),
    event(5.1, Reason.PLANNED, epoch=2, agents=A),
]


@pytest.mark.parametrize(
    ("later", "end"),
    [
        ([], 5.0),
        ([event(9.0, Reason.PLANNED, epoch=3, agents=f"{A},{B}")], 40.0),
        ([event(9.0, Reason.PLANNED, epoch=3, agents=f"{A},{B}"),
          event(11.0, Reason.PLANNED, epoch=4, agents=A)], 11.0),
        ([event(21.0, Reason.AGENT_LOST, agents=B)], 21.0),
    ],
)  # fmt: skip
def test_an_agent_that_has_no_seat_may_come_back(
    finished: dict[str, Any], later: list[Any], end: float
) -> None:
    run = from_cluster(finished, [*LEFT_AND_BACK, *later], [], [], [], now=99.0)
    assert [life.span for life in run.lives if life.agent == B] == [Span(2.0, end)]


@pytest.mark.parametrize(
    ("phase", "later", "end"),
    [
        ("Running", [], 40.0),
        ("Failed", [], 5.0),
        ("Running", [event(21.0, Reason.AGENT_LOST, agents=B)], 21.0),
        ("Running", [event(21.0, Reason.AGENT_LOST, agents=B),
                     event(22.0, Reason.PLANNED, epoch=3, agents=f"{A},{B}")], 40.0),
    ],
)  # fmt: skip
def test_a_pod_that_runs_is_alive_also_without_a_seat(
    finished: dict[str, Any], phase: str, later: list[Any], end: float
) -> None:
    pod = make_pod(B, "n0", phase)
    pod["status"]["startTime"] = "1970-01-01T00:00:01Z"
    run = from_cluster(finished, [*LEFT_AND_BACK, *later], [pod], nodes(), [], now=99.0)
    assert [life.span for life in run.lives if life.agent == B] == [Span(1.0, end)]


def restored(until: list[dict[str, Any]], training: dict[str, Any], step: int) -> Run:
    """16 steps in 20 s; a restore at 30 takes 12 of them back; then half a step a second."""
    training["status"]["progress"] |= {"step": step, "reportTime": "1970-01-01T00:00:40Z"}
    events = [
        event(2.0, Reason.RESUMED, epoch=1, step=0, pause_s=2.0),
        event(20.0, Reason.CHECKPOINT_SEALED, step=4),
        event(30.0, Reason.RESUMED, epoch=3, step=4, pause_s=10.0, undone_steps=12),
        *until,
    ]
    return from_cluster(training, events, [], [], [], now=99.0)


def test_a_restore_takes_steps_back_and_its_time_counts(finished: dict[str, Any]) -> None:
    run = restored([], finished, step=9)
    assert list(run.progress) == [
        (0, 0), (2, 0), (2, 1), (20, 4), (20, 16), (30, 16), (30, 5), (40, 9),
    ]  # fmt: skip
    assert run.rate == run.new_samples / 40 == 16 * 32 / 40
    speeds = [rate for _, rate in run.throughput(8)]
    assert speeds[4:] == pytest.approx([12 * 32 / 5, 0.0, 2 * 32 / 5, 2 * 32 / 5])
    lives = [Life("x", "a", "", Span(0.0, 3600.0))]
    assert "1953.12 USD per million" in money_text(replace(run, lives=lives), {"a": 1.0})


def test_a_late_seal_takes_no_step_back(finished: dict[str, Any]) -> None:
    sealed = event(31.0, Reason.CHECKPOINT_SEALED, step=4)
    run = restored([sealed], finished, step=20)
    assert 31.0 not in dict(run.progress)
    assert run.rate == 20 * 32 / 40


def test_a_restore_that_is_not_over(finished: dict[str, Any]) -> None:
    """The status has taken the steps back, and only an event knows them."""
    finished["status"] |= {"phase": "Recovering", "planEpoch": 2}
    finished["status"]["progress"] |= {"step": 4, "reportTime": "1970-01-01T00:00:22Z"}
    begun = [
        event(0.0, Reason.RESUMED, epoch=1, step=0, pause_s=0.0),
        event(20.0, Reason.RESTORING, attempt=1, step=4, repeated_steps=12),
        event(21.0, Reason.RESTORING, attempt=2, step=4, repeated_steps=0),
    ]
    run = from_cluster(finished, begun, [], [], [], now=99.0)
    assert list(run.progress) == [(0, 0), (0, 0), (0, 1), (20, 16), (22, 4), (40, 4)]
    assert run.rate == 16 * 32 / 40
    over = event(30.0, Reason.RESUMED, epoch=3, step=4, pause_s=10.5, undone_steps=12)
    run = from_cluster(finished, [*begun, over], [], [], [], now=99.0)  # newer than the status
    assert list(run.progress)[3:] == [(19.5, 16), (20, 16), (30, 16), (30, 5)]


def test_a_pause_that_lasts_counts(finished: dict[str, Any]) -> None:
    finished["status"]["phase"] = "Recovering"
    finished["status"]["progress"]["reportTime"] = "1970-01-01T00:00:32Z"
    run = from_cluster(finished, EVENTS, [], [], [], now=99.0)
    assert list(run.progress)[-3:] == [(30.0, 16), (32.0, 20), (40.0, 20)]


def test_the_start_is_no_pause(finished: dict[str, Any]) -> None:
    started = event(3.0, Reason.RESUMED, epoch=1, step=0, pause_s=1.0)
    run = from_cluster(finished, [EVENTS[0], started, *EVENTS[1:]], [], [], [], now=99.0)
    assert [pause.end for pause in run.pauses] == [11.0]
    again = event(20.0, Reason.RESUMED, epoch=1, step=0, pause_s=1.0)
    run = from_cluster(finished, [*EVENTS, again], [], [], [], now=99.0)
    assert [pause.end for pause in run.pauses] == [11.0, 20.0]


def test_a_start_with_a_loss_is_a_pause_as_the_operator_counts_it(
    finished: dict[str, Any],
) -> None:
    lost = event(3.0, Reason.RESUMED, epoch=1, step=0, pause_s=1.0, cause="Loss")
    run = from_cluster(finished, [EVENTS[0], lost], [], [], [], now=99.0)
    assert [(pause.end, pause.cause) for pause in run.pauses] == [(3.0, "Loss")]
    begun = event(3.0, Reason.RESUMED, epoch=1, step=0, pause_s=1.0, cause="")
    assert not from_cluster(finished, [EVENTS[0], begun], [], [], [], now=99.0).pauses


def test_a_pause_that_ends_in_the_last_second_is_listed(finished: dict[str, Any]) -> None:
    """The status has whole seconds."""
    last = event(40.7, Reason.RESUMED, epoch=3, step=19, pause_s=0.5, cause="Loss")
    run = from_cluster(finished, [*EVENTS, last], [], [], [], now=99.0)
    assert [pause.end for pause in run.pauses] == [11.0, 40.7]
    assert run.span.end == 40.7
    later = event(41.0, Reason.CHECKPOINT_SEALED, step=20)
    assert from_cluster(finished, [*EVENTS, later], [], [], [], now=99.0).span.end == 40.0


def test_pauses_that_follow_each_other_at_once_are_two(finished: dict[str, Any]) -> None:
    """The operator measures a pause with another clock than that of its events."""
    again = event(12.0, Reason.RESUMED, epoch=3, step=5, pause_s=1.003, cause="Change")
    nothing = event(12.0, Reason.RESUMED, epoch=4, step=6, pause_s=0.0, cause="Change")
    run = from_cluster(finished, [*EVENTS, again, nothing], [], [], [], now=99.0)
    assert [(pause.begin, pause.end) for pause in run.pauses] == [
        (pytest.approx(10.1), 11.0), (11.0, 12.0), (12.0, 12.0),
    ]  # fmt: skip


def test_what_is_gone_is_said(finished: dict[str, Any]) -> None:
    finished["status"]["startTime"] = "1969-12-31T22:00:00Z"
    run = from_cluster(finished, EVENTS[1:], [], [], [], now=99.0)
    assert run.span.begin == 10.0
    assert run.notes[0].startswith("Events before 1970-01-01 00:00:10 UTC are gone")
    assert run.notes[1] == (
        "The zones of some agents are not known, since the right to list nodes is missing, or there"
        " are no nodes."
    )
    run = from_cluster(finished, EVENTS[1:], [], nodes(), [], now=99.0)
    assert run.notes[1] == (
        "The zones of some agents are not known, since their pods and nodes are gone."
    )
    assert run.notes[-1].startswith("The status keeps only the newest loss")
    assert list(run.loss) == [(20, 2.5)]


def test_nothing_is_missing_if_the_first_plan_is_there(finished: dict[str, Any]) -> None:
    finished["status"]["startTime"] = "1969-12-31T22:00:00Z"
    run = from_cluster(finished, EVENTS, pods(), nodes(), [scheduled(B, "n2")], now=99.0)
    assert not any("are gone" in note for note in run.notes)


EARLY, LATE = "1969-12-31T22:00:00Z", "1970-01-01T00:00:25Z"


def resumed(training: dict[str, Any], started: str = LATE) -> dict[str, Any]:
    """Created 2 hours before the events."""
    training["metadata"]["creationTimestamp"] = EARLY
    training["status"]["startTime"] = started
    return training


def test_a_resumed_job_is_shown_from_its_first_event(finished: dict[str, Any]) -> None:
    run = from_cluster(resumed(finished), EVENTS, [], [], [], now=99.0)
    assert run.span == Span(2.0, 40.0)
    assert [(gone.at, gone.agent) for gone in run.gone] == [(10.0, B)]
    assert not any(word in note for note in run.notes for word in ("Events before", "resumed"))
    run = from_cluster(resumed(finished), EVENTS[1:], [], [], [], now=99.0)
    assert run.span.begin == 10.0
    assert run.notes[0].startswith("Events before 1970-01-01 00:00:10 UTC are gone")


@pytest.mark.parametrize("events", [[], [event(30.0, Reason.CHECKPOINT_SEALED, step=16)]])
def test_a_resumed_job_whose_first_events_are_gone(
    finished: dict[str, Any], events: list[Any]
) -> None:
    run = from_cluster(resumed(finished), events, [], [], [], now=99.0)
    assert run.span.begin == 25.0
    assert run.notes[0] == (
        "The job began, or was last resumed after a suspension, at 1970-01-01 00:00:25 UTC. What"
        " happened before is not shown."
    )


def test_a_suspended_job_whose_first_events_are_gone(finished: dict[str, Any]) -> None:
    del resumed(finished)["status"]["startTime"], finished["status"]["completionTime"]
    run = from_cluster(finished, EVENTS[1:], [], [], [], now=59.0)
    assert run.span == Span(10.0, 59.0)
    assert run.notes[0].startswith("Events before 1970-01-01 00:00:10 UTC are gone")
    run = from_cluster(finished, [], [], [], [], now=59.0)
    assert run.notes[0].startswith("The job is suspended, and its events are gone")


def test_a_job_that_waits_in_a_queue_has_missed_nothing(finished: dict[str, Any]) -> None:
    finished["status"]["planEpoch"] = 0
    run = from_cluster(resumed(finished), [], [], [], [], now=99.0)
    assert run.span.begin == 25.0
    assert not any("before" in note for note in run.notes)


def test_a_prometheus_knows_a_job_since_its_creation(finished: dict[str, Any]) -> None:
    run = from_cluster(resumed(finished), EVENTS[1:], [], [], [], now=99.0, has_history=True)
    assert run.span == Span(-7200.0, 40.0)
    assert run.notes[0].endswith("Earlier losses and pauses are not shown.")
    run = from_cluster(resumed(finished), EVENTS[-1:], [], [], [], now=99.0, has_history=True)
    assert run.notes[0].startswith("Events before 1970-01-01 00:00:30 UTC are gone")


def test_a_job_that_has_not_begun(manifest: dict[str, Any]) -> None:
    del manifest["status"]
    run = from_cluster(manifest, [], [], [], [], now=99.0)
    assert (run.span, list(run.lives), run.throughput()) == (Span(99.0, 99.0), [], [])


@pytest.mark.parametrize(
    ("events", "gone"),
    [
        ([event(5.0, Reason.AGENT_LEFT, agents=A)], []),
        (
            [event(4.0, Reason.AGENT_LEAVING, agents=A), event(5.0, Reason.AGENT_LEFT, agents=A)],
            [(5.0, True)],
        ),
        (
            [event(4.0, Reason.AGENT_LEAVING, agents=A), event(5.0, Reason.AGENT_LOST, agents=A)],
            [(5.0, True)],
        ),
        ([event(5.0, Reason.AGENT_LOST, agents=A), event(6.0, Reason.AGENT_LEFT, agents=A)],
         [(5.0, False)]),
        ([event(5.0, Reason.AGENT_LEFT, agents=A), event(6.0, Reason.AGENT_LEAVING, agents=A),
          event(21.0, Reason.AGENT_LOST, agents=A)], [(21.0, True)]),
        ([event(4.0, Reason.AGENT_LEAVING, agents=A), event(5.0, Reason.AGENT_LEFT, agents=A),
          event(6.0, Reason.PLANNED, agents=A), event(21.0, Reason.AGENT_LOST, agents=A)],
         [(21.0, True)]),
        ([event(4.0, Reason.AGENT_LEAVING, agents=A), event(5.0, Reason.AGENT_LEFT, agents=A),
          event(6.0, Reason.PLANNED, agents=A)], []),
    ],
)  # fmt: skip
def test_only_agents_that_were_not_let_go_are_losses(
    finished: dict[str, Any], events: list[Any], gone: list[Any]
) -> None:
    run = from_cluster(finished, events, [], [], [], now=99.0)
    assert [(g.at, g.is_noticed) for g in run.gone] == gone


def test_what_the_quick_start_saw(training: dict[str, Any]) -> None:
    job = read_job(training)
    frames = [Frame(100.0 + t, replace(job, step=t), {Slot(0, 0): A}, {A: "a"}) for t in range(5)]
    run = from_frames(frames, FaultLog(), batch=32)
    assert (run.span, run.batch) == (Span(100.0, 104.0), 32)
    assert list(run.lives) == [Life(A, "a", "", Span(100.0, 104.0))]
    assert run.progress[-1] == (104.0, 4)
    assert list(run.loss) == [(t, 2.5) for t in range(5)]
    assert list(run.notes) == []


def test_money_is_that_of_the_whole_life_though_events_are_gone(manifest: dict[str, Any]) -> None:
    """The operator writes when a price changes; until the end of the report the last one holds."""
    now = datetime(2026, 7, 1, 12, 30, tzinfo=UTC).timestamp()
    assert from_cluster(manifest, [], [], [], [], now).account is None
    manifest["status"]["cost"] = {
        "dollarsPerHour": 3.0, "onDemandDollarsPerHour": 5.0, "dollars": 6.0,
        "onDemandDollars": 10.0, "since": "2026-07-01T12:00:00.000000Z",
        "unpricedNodes": 2,
    }  # fmt: skip
    found = from_cluster(manifest, [], [], [], [], now).account
    assert found == Account((3.0, 5.0), (7.5, 12.5), unpriced=2)
    earlier = from_cluster(manifest, [], [], [], [], now - 7200).account
    assert earlier is not None
    assert earlier.spent == (6.0, 10.0)
    del manifest["status"]["cost"]["since"]
    found = from_cluster(manifest, [], [], [], [], now).account
    assert found == Account((3.0, 5.0), None, unpriced=2)
