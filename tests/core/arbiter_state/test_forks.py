"""Forks in the facts: those that rule out nothing go, and no checkpoint counts that did not."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.arbiter_state.durable import (
    Durable,
    Fork,
    computed_on,
    eligible,
    shrunk,
    to_json,
    with_manifest,
)
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.protocol.messages import Manifest

STEPS = st.integers(0, 12)


def file(attempt: int, step: int) -> Manifest:
    return Manifest(attempt, step, f"{attempt}/{step}", "d")


def facts(steps: list[int], *more: Manifest, **options: object) -> Durable:
    """Attempt n began from the n-th step."""
    forks = tuple(Fork(n, step) for n, step in enumerate(steps, start=1))
    return Durable(attempt=len(steps), forks=forks, manifests=more, **options)  # type: ignore[arg-type]


@given(st.lists(STEPS, max_size=20), st.integers(0, 20), STEPS)
def test_the_same_files_are_eligible(steps: list[int], attempt: int, step: int) -> None:
    before = facts(steps, file(attempt, step))
    after = replace(before, forks=shrunk(before))
    assert eligible(after) == eligible(before)
    found = [fork.step for fork in after.forks]
    assert found == sorted(set(found)), "each one rules out what no later one does"


@given(
    st.lists(STEPS, min_size=40, max_size=80, unique=False).map(sorted),
    st.lists(st.tuples(st.integers(0, 80), STEPS), max_size=6),
    st.integers(0, 80),
    STEPS,
)
def test_of_many_forks_no_known_file_is_lost_and_no_unknown_one_won(
    steps: list[int], known: list[tuple[int, int]], attempt: int, step: int
) -> None:
    steps = [n + at for n, at in enumerate(steps)]  # each one rules out something
    before = facts(steps, *(file(*mark) for mark in known))
    after = replace(before, forks=shrunk(before))
    assert len(after.forks) <= 32 + 6
    assert eligible(after) == eligible(before)
    other = file(attempt, step)
    if other in eligible(replace(after, manifests=(other,))):
        assert other in eligible(replace(before, manifests=(other,)))


@given(st.lists(STEPS, max_size=30), st.lists(st.tuples(STEPS, STEPS), max_size=4))
def test_the_same_kinds_of_processor_have_computed_the_state(
    steps: list[int], kinds: list[tuple[int, int]]
) -> None:
    named = tuple(ProcessorKind(f"cpu:{n}", "", s, n) for n, s in kinds)
    before = facts(steps, processors=named)
    assert computed_on(replace(before, forks=shrunk(before))) == computed_on(before)


def test_ten_thousand_restores_stay_small() -> None:
    for move in (lambda n: n, lambda n: 10_000 - n, lambda n: n * 7919 % 10_007, lambda _: 4):
        durable = Durable()
        for n in range(1, 10_001):
            step = move(n)
            known = with_manifest(durable, file(n - 1, step))
            durable = replace(durable, attempt=n, manifests=known)
            durable = replace(durable, forks=(*shrunk(durable), Fork(n, step)))
        assert len(json.dumps(to_json(durable))) < 2_000
