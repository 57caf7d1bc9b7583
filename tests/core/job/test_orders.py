"""Answers to orders of plans."""

from __future__ import annotations

from typing import Any

import pytest

from bamboo_core.arbiter_state.events import ComputePlan
from bamboo_core.job import orders
from bamboo_core.protection.facts import OpenMode, Seen


def test_nothing_is_chosen_for_an_order_that_was_overtaken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_args: Any) -> None:
        raise AssertionError("a choice takes most of a second")

    monkeypatch.setattr(orders, "_choose", fail)
    request: Any = None
    order = ComputePlan(1, request, OpenMode(Seen(0.1), 2))
    assert list(orders.answers(order, lambda: False)) == []
    with pytest.raises(AssertionError, match="most of a second"):
        list(orders.answers(order))
