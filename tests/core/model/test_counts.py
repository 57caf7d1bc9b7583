"""Numbers of things in sentences."""

from __future__ import annotations

import pytest

from bamboo_core.model.counts import counted, grid_of, repeated, runs


@pytest.mark.parametrize(("number", "text"), [(0, "0 agents"), (1, "1 agent"), (2, "2 agents")])
def test_a_noun_has_the_number_of_its_count(number: int, text: str) -> None:
    assert counted(number, "agent") == text


def test_a_grid() -> None:
    assert grid_of(1, 4) == "1 pipeline x 4 stages"
    assert grid_of(2, 1) == "2 pipelines x 1 stage"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (0, "no step is repeated"),
        (1, "1 step is repeated"),
        (2, "2 steps are repeated"),
    ],
)
def test_repeated_steps(steps: int, text: str) -> None:
    assert repeated(steps) == text


def test_runs_of_numbers() -> None:
    assert runs({0, 1, 2, 3, 7}) == "0-3, 7"
    assert runs(set(range(0, 20, 2))) == "0, 2, 4, 6, 8, 10, 12, 14, ..."
    assert runs(set()) == ""
