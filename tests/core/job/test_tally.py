"""Which agents count as lost, and which as failed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.controller.builders import nodes, pod

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller.view import ClusterView, Losses, PodPhase, PodView
from bamboo_core.evidence.pod_troubles import PodTrouble
from bamboo_core.job.tally import DECIDE_S, GONE_S, MOST_WORDS, Tally
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Hello

AGENT = pod()
NAME = AGENT.agent


def record(reason: EventReason, agent: AgentId = NAME, cause: str = "") -> Record:
    facts = {EventFact.AGENTS: agent} | ({EventFact.CAUSE: cause} if cause else {})
    return Record(Severity.WARNING, reason, f"{agent}: {cause}", facts)


def seen(*pods: PodView) -> ClusterView:
    return ClusterView(nodes(a=1), pods)


def lost(*pods: PodView) -> Tally:
    """An agent is lost without notice; then its pod is one of these."""
    tally = Tally(Losses(4, 1))
    tally.observe(seen(AGENT))
    tally.hear(record(EventReason.AGENT_LOST), set(), now=100.0)
    assert not tally.settle(100.0)
    tally.observe(seen(*pods))
    return tally


def end(code: int | None, reason: str = "Error") -> PodView:
    return replace(AGENT, phase=PodPhase.FAILED, exit_code=code, exit_reason=reason)


@pytest.mark.parametrize("pods", [(end(137),), (end(None, "Evicted"),), (end(3),)])
def test_an_agent_whose_machine_or_pod_went_away_is_a_loss(pods: tuple[PodView, ...]) -> None:
    tally = lost(*pods)
    assert tally.settle(100.5)
    assert tally.losses == Losses(5, 1)
    assert not tally.settle(200.0)


def test_an_agent_that_has_ended_in_order_while_nobody_led_left_with_notice() -> None:
    """Its exit code says that it got SIGTERM; the leader that heard its notice is gone."""
    tally = lost(end(143))
    assert tally.settle(100.5)
    assert tally.losses == Losses(5, 2)
    assert not tally.settle(200.0)


def test_an_agent_whose_pod_is_gone_is_a_loss_if_no_event_tells_its_end() -> None:
    tally = lost()
    assert not tally.settle(100.5)
    tally.observe(seen())
    assert not tally.settle(100.4 + GONE_S)
    assert tally.settle(100.5 + GONE_S)
    assert tally.losses == Losses(5, 1)


def test_the_end_of_a_deleted_pod_may_be_told_late() -> None:
    tally = lost()
    assert not tally.settle(100.5)
    tally.observe(seen(end(137, "OOMKilled")))
    assert not tally.settle(100.6)
    assert not tally.settle(500.0)
    assert tally.losses == Losses(4, 1)


@pytest.mark.parametrize("ended", [end(137, "OOMKilled"), end(1), end(139), end(2)])
def test_an_agent_that_failed_by_itself_is_none(ended: PodView) -> None:
    """Its container ended with the supervisor in it, so there are no last words."""
    tally = lost(ended)
    assert not tally.settle(100.5)
    tally.hear(record(EventReason.AGENT_LOST), set(), now=101.0)
    tally.observe(seen())
    assert not tally.settle(500.0)
    assert (tally.losses, tally.failed) == (Losses(4, 1), ())


def test_an_agent_that_ends_without_an_order_is_none() -> None:
    """A command that ends before its agent: it is counted as a failure, and was lost, too."""
    tally = lost(end(0, "Completed"))
    assert not tally.settle(100.5)
    tally.observe(seen())
    assert not tally.settle(500.0)
    assert tally.losses == Losses(4, 1)


def test_a_loss_is_decided_after_a_while() -> None:
    """A machine that cannot be reached does not report the pod's end."""
    tally = lost(AGENT)
    assert not tally.settle(99.0 + DECIDE_S)
    assert tally.settle(100.0 + DECIDE_S)
    assert tally.losses == Losses(5, 1)


def test_a_loss_shortly_before_the_end_of_the_job_is_decided_at_its_end() -> None:
    tally = lost(AGENT)
    assert not tally.settle(101.0)
    tally.close()
    assert tally.settle(101.0)
    assert tally.losses == Losses(5, 1)
    tally.close()
    assert not tally.settle(200.0)


def test_last_words_decide() -> None:
    tally = lost(AGENT)
    tally.hear(record(EventReason.WORKER_FAILED, cause="TaskFailed"), set(), now=101.0)
    tally.observe(seen())
    assert not tally.settle(500.0)
    assert [words.agent for words in tally.failed] == [NAME]


def test_a_pod_that_no_list_has_shown_yet_is_undecided() -> None:
    tally = Tally(Losses())
    tally.hear(record(EventReason.AGENT_LOST), set(), now=0.0)
    assert not tally.settle(1.0)
    assert tally.settle(DECIDE_S)


def test_an_agent_with_notice_is_counted_at_once() -> None:
    tally = Tally(Losses())
    tally.hear(record(EventReason.AGENT_LEFT), {NAME}, now=0.0)
    assert tally.settle(0.0)
    tally.hear(record(EventReason.AGENT_LOST), {NAME}, now=0.0)
    other = AgentId("other")
    tally.hear(record(EventReason.AGENT_LEFT, other), set(), now=0.0)  # it was not needed
    assert not tally.settle(100.0)
    assert tally.losses == Losses(1, 1)


def test_words_come_with_the_place_of_the_agent() -> None:
    tally = Tally(Losses())
    tally.connected(Hello(NAME, "uid", "node-a", "a", "uid-node-a/boot", "x:1", "x:2"))
    for _ in range(2):
        tally.hear(record(EventReason.WORKER_FAILED, cause="UserCodeFailed"), set(), now=0.0)
    (words,) = tally.failed
    assert (words.node, words.machine) == ("node-a", "uid-node-a/boot")
    assert words.is_user_error


def test_a_refused_agent_has_failed() -> None:
    tally = Tally(Losses())
    refused = record(EventReason.AGENT_REFUSED, cause="FingerprintMismatch")
    tally.hear(refused, set(), now=0.0)
    tally.hear(record(EventReason.AGENT_LOST), set(), now=0.0)
    assert not tally.settle(DECIDE_S)
    (words,) = tally.failed
    assert (words.cause, words.is_refused, words.is_user_error) == (
        "FingerprintMismatch",
        True,
        False,
    )


def test_words_are_bounded() -> None:
    tally = Tally(Losses())
    for n in range(2 * MOST_WORDS):
        agent = AgentId(f"a{n}")
        tally.hear(record(EventReason.WORKER_FAILED, agent, "TaskFailed"), set(), now=0.0)
    assert [w.agent for w in tally.failed] == [f"a{n}" for n in range(MOST_WORDS, 2 * MOST_WORDS)]


def test_an_eviction_whose_reason_comes_late_is_no_loss() -> None:
    """The kubelet reports the end of the container first."""
    killed = replace(AGENT, exit_code=137, exit_reason="Error")
    tally = lost(killed)
    assert not tally.settle(100.5)
    beside = PodTrouble("Evicted", "Pod ephemeral local storage usage exceeds the limit")
    tally.observe(seen(replace(killed, phase=PodPhase.FAILED, beside=beside)))
    assert not tally.settle(101.0)
    assert tally.losses == Losses(4, 1)


def test_agents_that_are_there_stay_known_however_many_come_and_go() -> None:
    tally = Tally(Losses(), heard=[AgentId("member")])
    assert tally.heard == {"member": ""}
    tally.connected(hello(AGENT.agent))
    tally.observe(seen(AGENT))
    for number in range(5000):
        tally.connected(hello(AgentId(f"gone-{number}")))
    assert tally.heard[AGENT.agent] == "machine"
    assert len(tally.heard) == 4096
    assert "gone-4999" in tally.heard


def hello(agent: AgentId) -> Hello:
    return Hello(agent, "uid", "node", "a", "machine", "x:1", "x:2")
