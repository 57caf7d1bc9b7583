"""A led job through defects of its arbiter, and while it is uncertain who leads.

Afterwards the arbiter knows the desired state, every session, every certain loss and every notice,
and a healthy job goes on in its attempt.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from unittest.mock import patch

import pytest
from tests.core.controller.builders import pod, spec

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ComputePlan,
    DesiredState,
    Dismiss,
    Effect,
    Event,
    Persist,
    Persisted,
    Record,
    Send,
    Tick,
)
from bamboo_core.controller.view import LastWords, Losses, PodPhase
from bamboo_core.job import leadership
from bamboo_core.job.leadership import Restarted, Wake
from bamboo_core.job.tally import GONE_S
from bamboo_core.job.training_view import LastReported, ended
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import (
    AgentReport,
    Cause,
    Failure,
    Heartbeat,
    Notice,
    Stop,
    Suspicion,
    Welcome,
)

from .led import BEGUN, MEMBERS, PODS, Led, defect, ready

FIRST, SECOND = MEMBERS
PAUSE_S = leadership.FIRST_PAUSE_S


def break_down(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """One defect; the pause begins."""
    monkeypatch.setattr(led.leadership.arbiter, "handle", defect)
    led.tick()


def one_that_suspects() -> tuple[Led, Heartbeat]:
    """A job in its first epoch of a new leader; a heartbeat of the first member that has lost its
    connection to the second one."""
    led = Led(BEGUN)
    led.observe()
    for agent in MEMBERS:
        led.connect(agent, Fence(0, 2, 1))
        led.receive(agent, ready())
    led.until(lambda: bool(led.sent(FIRST, Stop)))
    fence = led.leadership.arbiter.fence
    suspicion = Suspicion(SECOND, Cause.CHANNEL_BROKEN, fence)
    return led, Heartbeat(1, 0, 0, fence, suspicions=(suspicion,))


def desired(led: Led) -> DesiredState | None:
    return led.leadership.arbiter.state.desired


@pytest.mark.parametrize("is_observed_in_the_pause", [True, False])
def test_the_desired_state_is_repeated(
    monkeypatch: pytest.MonkeyPatch, *, is_observed_in_the_pause: bool
) -> None:
    led = Led()
    led.observe()
    before, woken = desired(led), led.woken()
    break_down(led, monkeypatch)
    assert led.woken() > woken
    assert desired(led) is None
    if is_observed_in_the_pause:
        led.observe()
    led.tick(PAUSE_S)
    led.observe()
    assert desired(led) == before is not None


def test_an_agent_that_connects_in_the_pause_gets_its_welcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    led = Led()
    led.observe()
    led.connect(FIRST)
    break_down(led, monkeypatch)
    assert [str(r.cause) for r in led.found(Restarted)] == ["'one defect, once'"]
    led.connect(FIRST)
    led.connect(SECOND)
    led.disconnect(SECOND)
    assert len(led.sent(FIRST, Welcome)) == 1
    led.tick(PAUSE_S)
    assert [w.term for w in led.sent(FIRST, Welcome) if isinstance(w, Welcome)] == [2, 3]
    assert led.leadership.view().connected == {FIRST}


def test_a_healthy_job_goes_on_in_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is longer than a new leader waits for members."""
    led = Led(BEGUN)
    led.observe()
    break_down(led, monkeypatch)
    for agent in MEMBERS:
        led.connect(agent, Fence(0, 2, 1))
    led.observe()
    led.tick(PAUSE_S)
    for agent in MEMBERS:
        led.receive(agent, ready())
    led.until(lambda: all(led.sent(agent, Stop) for agent in MEMBERS))
    for agent in MEMBERS:
        (stop,) = led.sent(agent, Stop)
        assert isinstance(stop, Stop)
        assert stop.fence == Fence(0, 3, 2)
        led.receive(agent, AgentReport(stop.fence, BEGUN.plan, {}, frozenset()))
    assert len(led.found(ComputePlan)) == 1
    assert led.leadership.view().attempt == 0
    assert not led.lost()


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_a_certain_loss_is_repeated_but_counted_once(
    monkeypatch: pytest.MonkeyPatch, *, is_seen_before: bool
) -> None:
    led = Led(BEGUN)
    dead = (PODS[0], replace(PODS[1], phase=PodPhase.FAILED, exit_code=137))
    if is_seen_before:
        led.pods = dead
    led.observe()
    break_down(led, monkeypatch)
    led.pods = dead
    led.observe()
    led.observe()
    led.tick(PAUSE_S)
    led.observe()
    assert SECOND in led.leadership.arbiter.state.membership.dead
    assert led.lost() == [SECOND] * (2 if is_seen_before else 1)
    assert led.leadership.view().losses == Losses(1, 0)


def test_certain_losses_are_reported_once_with_their_evidence() -> None:
    led = Led(BEGUN)
    led.pods = (replace(PODS[0], phase=PodPhase.FAILED, exit_code=137),
                replace(PODS[1], node="node-z"))  # fmt: skip
    led.observe()
    led.observe()
    assert [record.message for record in led.records(EventReason.AGENT_LOST)] == [
        f"{FIRST}: its pod has ended with exit code 137",
        f"{SECOND}: its node node-z is gone",
    ]


def test_a_notice_in_the_pause_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members repeat it in every session; it is not lost in this one."""
    led = Led(BEGUN)
    led.observe()
    break_down(led, monkeypatch)
    led.connect(FIRST)
    led.receive(FIRST, Notice(30.0, "spot"))
    led.tick(PAUSE_S)
    assert led.leadership.arbiter.state.membership.agents[FIRST].departs_at == led.now + 30.0
    assert led.leadership.view().departing == {FIRST}


def test_a_defect_while_held_events_are_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next arbiter hears nothing of closed sessions, and all of the cluster."""
    led = Led()
    led.observe()
    break_down(led, monkeypatch)
    led.observe()
    led.connect(FIRST)
    good = led.leadership.arbiter.handle

    def choke(event: Event, now: float, heard_at: float) -> list[Effect]:
        is_good = isinstance(event, Tick | DesiredState)
        return (good if is_good else defect)(event, now, heard_at)

    monkeypatch.setattr(led.leadership.arbiter, "handle", choke)
    woken = led.woken()
    led.tick(PAUSE_S)
    assert len(led.found(Restarted)) == 2
    assert led.woken() > woken
    assert not led.sent(FIRST, Welcome)
    led.connect(FIRST)
    led.observe()
    led.tick(2 * PAUSE_S)
    (welcome,) = led.sent(FIRST, Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.term == 4
    assert desired(led) is not None


def test_half_a_change_is_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that fails has no effect, whatever the arbiter changed before."""
    led = Led(BEGUN)
    arbiter = led.leadership.arbiter

    def half(event: Event, now: float, heard_at: float) -> list[Effect]:
        arbiter.state.out.save(attempt=1, members=())
        raise KeyError("in the midst of a restore")

    monkeypatch.setattr(arbiter, "handle", half)
    led.observe()
    durable = led.leadership.arbiter.durable
    assert (durable.attempt, durable.members) == (0, MEMBERS)


def test_orders_of_the_failed_arbiter_are_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts and plans that it asked for would be taken for those of the next one."""
    led = Led()
    arbiter = led.leadership.arbiter
    good = arbiter.handle

    def choke(event: Event, now: float, heard_at: float) -> list[Effect]:
        is_good = isinstance(event, DesiredState)
        return (good if is_good else defect)(event, now, heard_at)

    monkeypatch.setattr(arbiter, "handle", choke)
    led.is_leading = False
    led.observe(spec(suspend=True))
    led.disconnect(FIRST)
    led.is_leading = True
    led.tick()
    assert led.found(Restarted)
    assert not led.found(Persist)


def test_a_status_that_raises_is_a_defect_too(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()

    def broken() -> None:
        raise KeyError("status")

    monkeypatch.setattr(led.leadership.arbiter, "status", broken)
    for _ in range(4):
        led.tick()
    assert len(led.found(Restarted)) == 1
    assert led.leadership.view().connected == frozenset()


def test_pauses_grow_up_to_a_bound() -> None:
    led = Led()
    for wanted in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        led.leadership.fail(KeyError("defect"), led.now)
        led.observe()
        led.tick(wanted - 0.01)
        assert desired(led) is None
        led.tick(0.02)
        assert desired(led) is not None
    for _ in range(10_000):  # a day of them
        led.leadership.fail(KeyError("defect"), led.now)
    led.observe()
    led.tick(60.0)
    assert desired(led) is not None


def test_held_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "MOST_HELD", 20)
    led = Led()
    led.observe()
    break_down(led, monkeypatch)
    for _ in range(100):
        led.connect(FIRST)
        led.disconnect(FIRST)
        led.tick(0.001)
        assert len(led.leadership._held) <= 20
    assert {str(r.cause) for r in led.found(Restarted)[1:]} == {"too many events were held"}
    led.connect(SECOND)
    led.observe()  # repeats what was dropped with the sessions
    led.tick(PAUSE_S)
    assert led.sent(SECOND, Welcome)
    assert desired(led) is not None


# ---------------------------------------------------------------- a lease not renewed in time


def test_events_count_once_leadership_is_certain_again() -> None:
    led = Led()
    arbiter = led.leadership.arbiter
    led.is_leading = False
    led.observe()
    led.connect(FIRST)
    led.receive(FIRST, Heartbeat(1, 1, 1))
    led.tick()
    assert (desired(led), led.actions) == (None, [])
    led.is_leading = True
    led.tick()
    (welcome,) = led.sent(FIRST, Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.term == 2
    assert desired(led) is not None
    assert led.leadership.arbiter is arbiter


def test_heartbeats_that_were_dropped_are_no_silence() -> None:
    """The first sign of life afterwards is one that suspects another agent."""
    led, suspects = one_that_suspects()
    led.is_leading = False
    for _ in range(40):
        led.now += 0.25
        led.heard_at = led.now - 0.25
        led.receive(SECOND, Heartbeat(1, 0, 0, suspects.fence))
        led.receive(FIRST, suspects)
    led.is_leading = True
    led.now += 0.25
    led.receive(FIRST, suspects)
    assert not led.lost()
    led.heard_at = inf
    for _ in range(5):
        led.tick()
        led.receive(FIRST, suspects)
    assert led.lost() == [SECOND]


def test_a_session_that_broke_and_came_back_meanwhile_is_no_loss() -> None:
    led, suspects = one_that_suspects()
    led.receive(FIRST, suspects)
    led.is_leading = False
    led.disconnect(SECOND)
    led.connect(SECOND, Fence(0, 2, 1))
    led.is_leading = True
    led.tick()
    assert not led.lost()
    led.disconnect(SECOND)
    assert led.lost() == [SECOND]


def test_facts_that_became_durable_meanwhile_count() -> None:
    led = Led()
    led.are_facts_durable, led.pods = False, ()
    led.observe(spec(suspend=True))
    *_, newest = led.found(Persist)
    assert newest.durable.outcome is Outcome.SUSPENDED
    led.is_leading = False
    led.tell(Persisted(newest.version))
    woken = led.woken()
    led.is_leading = True
    led.tick()
    assert led.woken() > woken  # the arbiter reports that the job is over


# ---------------------------------------------------------------- the spec, the cluster, losses


def test_a_new_step_is_shown_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led()
    for _ in range(4):
        led.tick()
    arbiter, before = led.leadership.arbiter, led.found(Wake)
    seen = replace(arbiter.glance(), progress=TrainingProgress(3, loss=0.5))
    monkeypatch.setattr(arbiter, "glance", lambda: seen)
    for _ in range(8):
        led.tick()
    assert led.found(Wake) == [*before, Wake(is_urgent=False)]
    assert led.leadership.view().progress == seen.progress


def test_a_glance_agrees_with_the_status() -> None:
    led = Led()
    for agent in (None, FIRST, SECOND):
        if agent is not None:
            led.connect(agent)
            assert led.leadership.arbiter.glance().connected >= {agent}
            led.receive(agent, ready())
        led.observe()
        seen, status = led.leadership.arbiter.glance(), led.leadership.arbiter.status()
        for name in ("phase", "detail", "fence", "progress", "checkpoint", "stall", "outcome"):
            assert getattr(seen, name) == getattr(status, name)
        for name in ("members", "connected", "slow"):
            assert sorted(getattr(seen, name)) == list(getattr(status, name))
        assert seen.has_ready == bool(status.ready)
    assert seen.members == {FIRST, SECOND}


def test_a_slow_agent_is_not_one_that_leaves_with_its_node() -> None:
    led = Led()
    led.connect(FIRST)
    led.receive(FIRST, Notice(120.0, "spot"))
    status = replace(led.leadership.arbiter.status(), slow=(SECOND,))
    with patch.object(led.leadership.arbiter, "status", return_value=status):
        view = led.leadership.view()
    assert (view.slow, view.departing) == ({SECOND}, {FIRST})


def test_a_suspended_job_may_come_back_with_another_grid() -> None:
    """Its arbiter begins again from the same facts; what users know of it stays."""
    progress = TrainingProgress(6, loss=1.5, validation_loss=2.5)
    resting = spec(suspend=True)
    led = Led(Durable(committed=6), job_spec=resting, reported=LastReported(progress=progress))
    led.pods = ()
    led.observe()
    assert led.leadership.view().outcome is Outcome.SUSPENDED
    led.observe(spec(count=2, stages=3))
    view = led.leadership.view()
    assert (view.outcome, view.progress) == (None, progress)
    assert [r.cause for r in led.found(Restarted)] == ["the spec has changed"]


def test_the_spec_stays_as_long_as_an_agent_is_connected() -> None:
    led = Led()
    led.connect(FIRST)
    led.observe(spec(stages=3))
    assert not led.found(Restarted)


def test_args_that_are_put_back_reach_new_agents() -> None:
    """An operator that began while they were changed knows no others."""
    changed = spec()
    led = Led(job_spec=replace(changed, model=replace(changed.model, args={"layers": 9})))
    led.connect(FIRST)
    led.observe(spec())
    led.connect(SECOND)
    assert not led.found(Restarted)
    welcomes = [x.message for x in led.found(Send) if isinstance(x.message, Welcome)]
    told = [json.loads(x.spec_json)["model"].get("args", {}) for x in welcomes]
    assert told == [{"layers": 9}, changed.model.args]


def test_losses_and_failures_are_told_apart() -> None:
    """A worker that ends by itself is no preemption; who was preempted has not failed."""
    led = Led(BEGUN)
    led.observe()
    led.connect(FIRST, BEGUN.plan)
    led.receive(FIRST, Failure("WorkerExited", "the worker ended with code 0", False, 0))
    view = led.leadership.view()
    assert FIRST in led.lost()
    assert FIRST in view.dismissed
    assert view.losses == Losses()
    text = f"{FIRST}: WorkerExited: the worker ended with code 0"
    assert view.failed == (LastWords(FIRST, "WorkerExited", text, False, "node", FIRST),)


@pytest.mark.parametrize("code", [0, 3, 137])
def test_an_agent_that_ends_by_itself_was_not_told_to(code: int) -> None:
    """Whatever its exit code: it is a failed start, and no order. Its pod stays for its log."""
    led = Led()
    led.pods = (pod(0, 0, zone="a", phase=PodPhase.FAILED, exit_code=code), PODS[1])
    led.observe()
    assert FIRST in led.leadership._reported_lost
    assert not led.found(Dismiss)
    assert led.leadership.view().dismissed == frozenset()


def test_a_loss_is_shown_as_soon_as_it_is_certain() -> None:
    led = Led(BEGUN)
    led.observe()
    record = Record(Severity.WARNING, EventReason.AGENT_LOST, "x", {EventFact.AGENTS: FIRST})
    led.leadership._apply(record, led.now, is_known=False)
    assert led.leadership.view().losses == Losses()
    woken = led.woken()
    led.pods = PODS[1:]
    led.observe()
    led.tick(GONE_S)
    assert led.woken() > woken
    assert led.leadership.view().losses == Losses(1, 0)


def test_the_outcome_is_never_shown_without_the_last_losses() -> None:
    """Users read the status as soon as it names the outcome, which may be before it is durable."""
    led = Led(job_spec=spec(suspend=True))
    led.are_facts_durable = False
    record = Record(Severity.WARNING, EventReason.AGENT_LOST, "x", {EventFact.AGENTS: FIRST})
    led.leadership._apply(record, led.now, is_known=False)
    led.pods = ()
    led.observe()
    view = led.leadership.view()
    assert (view.outcome, view.losses) == (Outcome.SUSPENDED, Losses(1, 0))


def test_an_agent_with_notice_is_counted_when_it_leaves() -> None:
    """Its notice is repeated to every operator, its end is not."""
    led = Led()
    led.connect(FIRST)
    woken = led.woken()
    led.receive(FIRST, Notice(120.0, "spot"))
    assert led.woken() == woken + 1
    view = led.leadership.view()
    assert (view.departing, view.losses) == ({FIRST}, Losses())
    led.leadership._desired = DesiredState(1, drained=frozenset({SECOND}))
    left = Record(Severity.NORMAL, EventReason.AGENT_LEFT, "x", {EventFact.AGENTS: FIRST})
    lost = Record(Severity.WARNING, EventReason.AGENT_LOST, "x", {EventFact.AGENTS: SECOND})
    for record in (left, left, lost):
        led.leadership._apply(record, led.now, is_known=False)
    assert led.leadership.view().losses == Losses(2, 2)


def test_a_job_has_begun_once_an_agent_was_ready() -> None:
    led = Led()
    led.observe()
    led.connect(FIRST)
    assert not led.leadership.view().has_begun
    led.receive(FIRST, ready())
    assert led.leadership.view().has_begun
    led.disconnect(FIRST)
    for _ in range(40):
        led.tick()
    assert led.leadership.view().has_begun
    assert Led(BEGUN).leadership.view().has_begun


def test_the_channel_is_known_when_the_agents_have_left() -> None:
    """Also to the next leader, and at the end of the job."""
    led = Led()
    led.observe()
    led.connect(FIRST)
    assert led.leadership.view().route is None
    led.receive(FIRST, ready())
    route = led.leadership.view().route
    assert route is not None
    led.receive(FIRST, Failure("WorkerExited", "the worker ended with code 0", False, 0))
    assert not led.leadership.arbiter.state.membership.has_ready()
    assert led.leadership.view().route == route
    reported = LastReported(route=route)
    assert Led(BEGUN, reported=reported).leadership.view().route == route
    assert ended(BEGUN, reported).route == route


def test_an_agent_that_was_heard_once_stays_heard() -> None:
    """Its end is judged by it, however long it has been silent, and also by the next leader."""
    led = Led()
    led.observe()
    assert led.leadership.view().heard == {}
    led.connect(FIRST)
    led.disconnect(FIRST)
    for _ in range(40):
        led.tick()
    assert led.leadership.view().connected == frozenset()
    assert led.leadership.view().heard == {FIRST: FIRST}, "its machine in these tests"
    assert Led(BEGUN).leadership.view().heard == dict.fromkeys(MEMBERS, "")


def test_a_member_that_ends_while_nobody_leads_was_heard() -> None:
    led = Led(BEGUN)
    led.pods = (replace(PODS[0], exit_code=137), PODS[1])
    led.observe()
    assert FIRST in led.leadership.view().heard
