"""Rows of timed runs in processes."""

from __future__ import annotations

import gc
from functools import partial

import pytest

from bamboo_sim.timed.parallel import rows


def test_rows_come_in_their_order_with_all_results() -> None:
    jobs = {n: {base: partial(int, str(n), base) for base in (10, 16)} for n in (31, 20, 10)}
    assert list(rows(jobs)) == [
        (31, {10: 31, 16: 49}),
        (20, {10: 20, 16: 32}),
        (10, {10: 10, 16: 16}),
    ]


def test_the_garbage_collector_is_off_there() -> None:
    assert list(rows({"a": {"b": gc.isenabled}})) == [("a", {"b": False})]


def test_what_a_run_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(rows({"a": {"b": partial(int, "x")}}))
