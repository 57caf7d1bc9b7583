"""Slow tests that take turns: which of them a commit leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import rotated_out
from tests.rotation import in_turn


@dataclass(frozen=True)
class Collected:
    nodeid: str
    path: Path
    share: int = 0

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "rotating"
        return pytest.Mark(name, (self.share,), {}, _ispytest=True) if self.share else None


def items(path: str, count: int, share: int) -> list[Collected]:
    return [Collected(f"{path}::{n}", Path(path), share) for n in range(count)]


def test_a_commit_runs_one_in_so_many_of_each_file() -> None:
    collected = [*items("a", 13, 3), *items("b", 2, 4), *items("c", 5, 0)]
    left_out = rotated_out(collected, "1234")
    assert [len([x for x in left_out if x.path == Path(p)]) for p in "abc"] == [8, 1, 0]
    assert left_out == rotated_out(collected, "1234")


def test_each_share_of_a_file_is_counted_apart() -> None:
    collected = [*items("a", 6, 3), *items("a", 8, 4)]
    left_out = rotated_out(collected, "1234")
    assert [len([x for x in left_out if x.share == share]) for share in (3, 4)] == [4, 6]


def test_cases_take_turns_and_keep_their_arguments() -> None:
    one, other = in_turn(3, [5, (6, "x")])
    assert (one.values, other.values) == ((5,), (6, "x"))
    assert {mark.name: mark.args for mark in (*one.marks, *other.marks)} == {"rotating": (3,)}


def test_a_rotation_without_cases_is_refused() -> None:
    with pytest.raises(ValueError, match="no case that could have its turn"):
        in_turn(3, [])


def test_every_test_has_its_turn() -> None:
    collected = items("a", 13, 3)
    run = [set(collected) - rotated_out(collected, f"commit {n}") for n in range(40)]
    assert set.union(*run) == set(collected)
