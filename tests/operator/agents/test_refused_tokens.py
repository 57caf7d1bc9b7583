"""Refused tokens: how long they are remembered, how many, and how fast others may follow."""

from __future__ import annotations

import pytest

from bamboo_operator.agents import refused_tokens
from bamboo_operator.agents.refused_tokens import KEPT_S, OF_ADDRESS, OF_POD, RefusedTokens, Sender
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.trust.authentication import claimed_pod

from ..agent_client import token_of
from ..objects import SEALS, pod_object

A, B = Sender("a"), Sender("b")


def test_a_token_is_refused_for_a_while() -> None:
    now = 0.0
    known = RefusedTokens(clock=lambda: now)
    known.note(A, "token", "made up")
    now = KEPT_S - 0.1
    assert (known.why("token"), known.why("other")) == ("made up", "")
    now = KEPT_S
    assert known.why("token") == ""


@pytest.mark.parametrize("sender", [A, Sender("a", "uid-1")])
def test_a_sender_has_so_many_at_once_and_then_a_rate(sender: Sender) -> None:
    now = 0.0
    known = RefusedTokens(clock=lambda: now)
    share = OF_POD if sender.pod else OF_ADDRESS
    for number in range(int(share.burst)):
        assert not known.is_over(sender)
        known.note(sender, str(number), "made up")
    assert known.is_over(sender)
    assert not known.is_over(B)
    now = 1 / share.rate
    assert not known.is_over(sender)
    known.note(sender, "one more", "made up")
    assert known.is_over(sender)


def test_whoever_knows_the_uid_of_a_pod_locks_it_out_from_his_own_address_only() -> None:
    """Anybody can write a token that names the pod: its signature is not checked yet."""
    known = RefusedTokens(clock=lambda: 0.0)
    for number in range(int(OF_POD.burst)):
        known.note(Sender("stranger", "uid-1"), str(number), "made up")
    assert known.is_over(Sender("stranger", "uid-1"))
    assert not known.is_over(Sender("node", "uid-1"))
    assert not known.is_over(Sender("stranger", "uid-2"))


def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_tokens, "MOST", 2)
    known = RefusedTokens(clock=lambda: 0.0)
    for name in "abc":
        known.note(Sender(name), name, "made up")
    assert [known.why(name) for name in "abc"] == ["", "made up", "made up"]
    assert list(known._owed) == [B, Sender("c")]


def test_only_pods_that_an_operator_has_made_are_judged_apart() -> None:
    usage = Usage(SEALS.is_ours)
    usage.put(pod_object("job-p0-s0-i0"))
    forged = pod_object("forged")
    forged["metadata"]["annotations"] = {}
    usage.put(forged)
    assert usage.is_agent(claimed_pod(token_of("job-p0-s0-i0")))
    assert not usage.is_agent(claimed_pod(token_of("forged")))
    assert not usage.is_agent(claimed_pod(token_of("unknown")))


@pytest.mark.parametrize("token", ["", "a", "a.b.c", "a.W10.c", "a.e30.c", "a.eyJhIjp7fX0.c"])
def test_a_token_that_names_no_pod(token: str) -> None:
    assert claimed_pod(token) == ""
