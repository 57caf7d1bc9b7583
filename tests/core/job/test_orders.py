"""Answers to orders of plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.events import ComputePlan
from bamboo_core.job import orders
from bamboo_core.model.numerics import BatchShape
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


def test_a_mode_is_chosen_by_the_sums_that_the_job_has(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(orders.facts, "gather", lambda *_, batch, **__: given.append(batch))
    monkeypatch.setattr(orders, "choose", lambda _: SimpleNamespace(mode=RedundancyMode.NONE))
    request: Any = SimpleNamespace(spec=None, costs=(), layers=2, batch=BatchShape(16, 8, 2))
    orders._choose(request, OpenMode(Seen(0.1), 2))
    assert given == [BatchShape(16, 8, 2)]


def test_what_may_be_asked_later_is_computed_after_both_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery does not wait for it, and it ends when the order is overtaken."""
    told: list[str] = []
    wanted = True

    class Steps:
        def prepare(self, is_wanted: Any) -> None:
            told.append(f"prepare {is_wanted()}")

    verdict: Any = SimpleNamespace(mode=RedundancyMode.NONE, facts=SimpleNamespace(steps=Steps()))

    def plan(_request: Any, _is_wanted: Any) -> Any:
        for part in ("resume", "rest"):
            told.append(part)
            yield part

    monkeypatch.setattr(orders, "_choose", lambda *_: verdict)
    request: Any = SimpleNamespace(spec=SimpleNamespace(redundancy=None))
    monkeypatch.setattr(orders, "replace", lambda value, **_: value)
    order = ComputePlan(1, request, OpenMode(Seen(0.1), 2))
    answers = orders.answers(order, lambda: wanted, plan=plan)
    assert [next(answers).result, next(answers).result] == ["resume", "rest"]
    assert told == ["resume", "rest"]
    wanted = False
    assert list(answers) == []
    assert told[2:] == ["prepare False"]
