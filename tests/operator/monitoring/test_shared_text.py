"""A text that many ask for is made once."""

from __future__ import annotations

import logging

import pytest

from bamboo_operator.monitoring.shared_text import KEPT_S, SharedText


def test_it_is_kept_for_a_while() -> None:
    now, made = 0.0, 0

    def make() -> bytes:
        nonlocal made
        made += 1
        return b"%d" % made

    shared = SharedText(make, clock=lambda: now)
    assert [shared.get(), shared.get()] == [b"1", b"1"]
    now = KEPT_S + 0.5
    assert [shared.get(), shared.get()] == [b"2", b"2"]


def test_a_costly_one_is_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes two seconds of a processor is kept for eight."""
    now, used_s, made = 0.0, 0.0, 0

    def make() -> bytes:
        nonlocal used_s, made
        used_s, made = used_s + 2.0, made + 1
        return b"%d" % made

    monkeypatch.setattr("bamboo_operator.monitoring.shared_text.time.thread_time", lambda: used_s)
    shared = SharedText(make, clock=lambda: now)
    assert shared.get() == b"1"
    now = 7.9
    assert shared.get() == b"1"
    now = 8.1
    assert shared.get() == b"2"


def test_a_failure_is_kept_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now, is_broken = 0.0, True

    def make() -> bytes:
        if is_broken:
            raise RuntimeError("changed during iteration")
        return b"text"

    shared = SharedText(make, clock=lambda: now)
    with caplog.at_level(logging.ERROR):
        assert [shared.get(), shared.get()] == [None, None]
    assert len(caplog.records) == 1
    is_broken, now = False, KEPT_S
    assert shared.get() == b"text"
