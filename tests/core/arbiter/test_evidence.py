"""Who counts as lost, and which links as broken."""

from __future__ import annotations

from bamboo_core.arbiter.evidence import Evidence, Patience, expel
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause

A, B, C = AgentId("a"), AgentId("b"), AgentId("c")


def evidence() -> Evidence:
    known = Evidence(Patience(silence_s=1.0, unreachable_s=3.0, link_s=1.0))
    for agent in (A, B, C):
        known.hear(agent, 0.0)
    return known


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


def test_a_suspicion_makes_one_second_enough() -> None:
    known = evidence()
    known.suspect(A, B, Cause.LIVENESS_SILENT, 0.5)
    assert known.lost({A}, 0.9) == []
    assert known.lost({A}, 1.0)


def test_a_suspicion_of_a_disconnected_agent_is_enough() -> None:
    known = evidence()
    known.disconnect(A, 0.1)
    known.suspect(A, B, Cause.LIVENESS_CLOSED, 0.1)
    assert known.lost({A}, 0.1)


def test_a_sign_of_life_clears() -> None:
    known = evidence()
    known.disconnect(A, 0.1)
    known.hear(A, 0.2)
    known.suspect(A, B, Cause.LIVENESS_CLOSED, 0.3)
    assert known.lost({A}, 0.4) == []


def test_a_pause_of_the_operator_is_not_held_against_agents() -> None:
    known = evidence()
    known.look(0.0)
    known.look(60.0)
    assert known.lost({A}, 60.0) == []
    for at in (60.5, 61.0, 61.5, 62.0, 62.5, 63.0):
        known.look(at)
    assert known.lost({A}, 63.0)


def test_a_new_epoch_forgets_suspicions() -> None:
    known = evidence()
    known.suspect(A, B, Cause.LIVENESS_SILENT, 0.5)
    known.begin_epoch()
    assert known.lost({A}, 2.0) == []


def test_a_link_is_broken_only_while_training_stands() -> None:
    known = evidence()
    known.suspect(A, B, Cause.CHANNEL_BROKEN, 1.0)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=1.9) == []
    assert known.broken({A, B}, progress_at=1.5, patience_s=0.0, now=2.0) == []
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=2.0) == [(A, B)]
    assert known.broken({A}, progress_at=0.0, patience_s=0.0, now=2.0) == []


def test_a_silent_link_is_given_the_time_of_a_step() -> None:
    known = evidence()
    known.suspect(A, B, Cause.LIVENESS_SILENT, 1.0)
    assert known.broken({A, B}, progress_at=0.0, patience_s=4.0, now=4.9) == []
    assert known.broken({A, B}, progress_at=0.0, patience_s=4.0, now=5.0) == [(A, B)]
    assert known.broken({A, B}, progress_at=4.0, patience_s=4.0, now=7.9) == []
    assert known.broken({A, B}, progress_at=4.0, patience_s=4.0, now=8.0) == [(A, B)]


def test_forgotten_agents_leave_no_trace() -> None:
    known = evidence()
    known.suspect(A, B, Cause.CHANNEL_BROKEN, 1.0)
    known.suspect(B, A, Cause.CHANNEL_BROKEN, 1.0)
    known.forget(A)
    assert known.broken({A, B}, progress_at=0.0, patience_s=0.0, now=9.0) == []


def test_the_agent_in_most_broken_links_goes() -> None:
    assert expel([(A, B), (A, C)], lambda agent: False) == [A]


def test_sole_holders_are_kept_if_possible() -> None:
    assert expel([(A, B)], lambda agent: agent == A) == [B]
