"""Who counts as lost, and which links as broken."""

from __future__ import annotations

from bamboo_core.evidence.liveness import Evidence, Patience, expel
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Cause, Suspicion

A, B, C = AgentId("a"), AgentId("b"), AgentId("c")


def evidence() -> Evidence:
    known = Evidence(Patience())
    for agent in (A, B, C):
        known.hear(agent, 0.0)
    return known


def suspect(known: Evidence, by: AgentId, agent: AgentId, cause: Cause, now: float) -> bool:
    return known.suspect(by, [Suspicion(agent, cause, Fence())], now)


def test_silence_alone_takes_three_seconds() -> None:
    known = evidence()
    assert known.lost({A}, 2.9) == []
    assert known.lost({A}, 3.0) == [(A, "not heard from for 3.0 s")]


def test_a_closed_session_counts_from_its_end() -> None:
    known = evidence()
    known.disconnect(A, 5.0)
    known.disconnect(A, 6.0)
    assert known.lost({A}, 7.9) == []
    assert known.lost({A}, 8.0)


def test_links_are_forgiven_when_training_goes_on() -> None:
    known = evidence()
    known.settle()
    known.tried.add((A, B))
    known.settle()
    assert known.tried == set()


def test_an_agent_that_is_forgotten_is_not_lost() -> None:
    known = evidence()
    for _ in range(2):
        known.forget(A)
    assert known.lost({A}, 9.0) == []


def test_an_agent_that_comes_back_after_it_was_forgotten_is_heard_anew() -> None:
    known = evidence()
    known.disconnect(A, 1.0)
    known.forget(A)
    known.disconnect(A, 5.0)
    assert known.lost({A}, 7.9) == []
    assert known.lost({A}, 8.0)


def test_a_suspicion_makes_one_second_enough() -> None:
    known = evidence()
    suspect(known, B, A, Cause.LIVENESS_SILENT, 0.5)
    assert known.lost({A}, 0.9) == []
    assert known.lost({A}, 1.0)


def test_a_suspicion_of_a_disconnected_agent_is_enough() -> None:
    known = evidence()
    known.disconnect(A, 0.1)
    suspect(known, B, A, Cause.LIVENESS_CLOSED, 0.1)
    assert known.lost({A}, 0.1)


def test_a_sign_of_life_clears() -> None:
    known = evidence()
    known.disconnect(A, 0.1)
    known.hear(A, 0.2)
    suspect(known, B, A, Cause.LIVENESS_CLOSED, 0.3)
    assert known.lost({A}, 0.4) == []


def test_a_suspicion_that_is_not_repeated_does_not_hold() -> None:
    known = evidence()
    assert suspect(known, B, A, Cause.LIVENESS_SILENT, 0.5)
    assert not suspect(known, B, A, Cause.LIVENESS_SILENT, 0.7)
    assert not known.suspect(B, [], 0.9)
    assert known.lost({A}, 1.5) == []


def test_a_repeated_suspicion_counts_from_its_beginning() -> None:
    known = evidence()
    for at in (1.0, 1.3, 1.6, 1.9):
        suspect(known, B, A, Cause.CHANNEL_BROKEN, at)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=2.0) == [(A, B)]


def test_another_cause_begins_anew() -> None:
    known = evidence()
    suspect(known, B, A, Cause.LIVENESS_SILENT, 1.0)
    suspect(known, B, A, Cause.CHANNEL_BROKEN, 1.5)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=2.4) == []
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=2.5) == [(A, B)]


def test_a_new_epoch_forgets_suspicions() -> None:
    known = evidence()
    suspect(known, B, A, Cause.LIVENESS_SILENT, 0.5)
    known.begin_epoch()
    assert known.lost({A}, 2.0) == []


def test_a_link_is_broken_only_while_training_stands() -> None:
    known = evidence()
    suspect(known, B, A, Cause.CHANNEL_BROKEN, 1.0)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=1.9) == []
    assert known.broken({A, B}, progress_at=1.5, patience_s=0.0, now=2.0) == []
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=2.0) == [(A, B)]
    assert known.broken({A}, progress_at=0.0, patience_s=0.0, now=2.0) == []


def test_a_silent_link_is_given_the_time_of_a_step() -> None:
    known = evidence()
    suspect(known, B, A, Cause.LIVENESS_SILENT, 1.0)
    assert known.broken({A, B}, progress_at=0.0, patience_s=4.0, now=4.9) == []
    assert known.broken({A, B}, progress_at=0.0, patience_s=4.0, now=5.0) == [(A, B)]
    assert known.broken({A, B}, progress_at=4.0, patience_s=4.0, now=7.9) == []
    assert known.broken({A, B}, progress_at=4.0, patience_s=4.0, now=8.0) == [(A, B)]


def test_forgotten_agents_leave_no_trace() -> None:
    known = evidence()
    suspect(known, B, A, Cause.CHANNEL_BROKEN, 1.0)
    suspect(known, A, B, Cause.CHANNEL_BROKEN, 1.0)
    known.forget(A)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=9.0) == []


def test_the_agent_in_most_broken_links_goes() -> None:
    assert expel([(A, B), (A, C)], lambda agent: False) == [A]


def test_sole_holders_are_kept_if_possible() -> None:
    assert expel([(A, B)], lambda agent: agent == A) == [B]


def test_of_every_broken_link_one_end_is_expelled() -> None:
    d = AgentId("d")
    assert expel([(A, B), (C, d)], lambda _: False) == [A, C]
