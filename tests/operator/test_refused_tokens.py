"""Refused tokens: how long they are remembered, how many, and how fast others may follow."""

from __future__ import annotations

import pytest

from bamboo_operator import refused_tokens
from bamboo_operator.auth import claimed_pod
from bamboo_operator.refused_tokens import BURST, KEPT_S, RATE, RefusedTokens
from bamboo_operator.usage import Usage

from .agents import token_of
from .objects import SEALS, pod_object


def test_a_token_is_refused_for_a_while() -> None:
    now = 0.0
    known = RefusedTokens(clock=lambda: now)
    known.note("a", "token", "made up")
    now = KEPT_S - 0.1
    assert (known.why("token"), known.why("other")) == ("made up", "")
    now = KEPT_S
    assert known.why("token") == ""


def test_an_address_has_so_many_at_once_and_then_a_rate() -> None:
    now = 0.0
    known = RefusedTokens(clock=lambda: now)
    for number in range(BURST):
        assert not known.is_over("a")
        known.note("a", str(number), "made up")
    assert known.is_over("a")
    assert not known.is_over("b")
    now = 1 / RATE
    assert not known.is_over("a")
    known.note("a", "one more", "made up")
    assert known.is_over("a")


def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_tokens, "MOST", 2)
    known = RefusedTokens(clock=lambda: 0.0)
    for name in "abc":
        known.note(name, name, "made up")
    assert [known.why(name) for name in "abc"] == ["", "made up", "made up"]
    assert list(known._owed) == ["b", "c"]


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
