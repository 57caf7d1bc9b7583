"""The best checkpoint: what it is, and that no history of seals, forks and bad marks removes it."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest

from bamboo_core.model.pruning import Mark, best, removable, worth_keeping

KEEP = 2


def test_the_least_value_is_best_or_the_greatest() -> None:
    values = {(0, 1): 3.0, (0, 2): 1.0, (0, 3): 2.0}
    assert best(values, (), is_max=False) == (0, 2)
    assert best(values, (), is_max=True) == (0, 1)


def test_of_equal_values_the_earliest_step_is_best() -> None:
    for is_max in (False, True):
        assert best({(0, 4): 1.0, (0, 2): 1.0, (1, 2): 1.0}, (), is_max=is_max) == (0, 2)


@pytest.mark.parametrize("value", [None, nan, inf, -inf])
def test_what_is_no_finite_number_is_never_best(value: float | None) -> None:
    for is_max in (False, True):
        assert best({(0, 2): value}, (), is_max=is_max) is None
        assert best({(0, 2): value, (0, 4): 9.0}, (), is_max=is_max) == (0, 4)


def test_what_a_restore_has_left_behind_is_not_best() -> None:
    values = {(0, 2): 3.0, (0, 4): 2.0, (0, 6): 1.0, (1, 6): 2.5}
    assert best(values, (), is_max=False) == (0, 6)
    assert best(values, ((1, 4),), is_max=False) == (0, 4)
    assert best(values, ((1, 2),), is_max=False) == (1, 6)


def test_the_best_of_the_good_ones_stays_beside_one_that_counts_as_wrong() -> None:
    values = {(0, 2): 1.0, (0, 4): 2.0, (0, 6): 3.0}
    assert worth_keeping(values, {(0, 2)}, (), is_max=False) == {(0, 2), (0, 4)}


class Folder:
    """Agents seal, attempts begin anew, and what has been found wrong is known late or never."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_max = self.random.random() < 0.5
        self.values: dict[Mark, float | None] = {}
        self.ever: dict[Mark, float | None] = {}
        self.forks: list[tuple[int, int]] = []
        self.bad: set[Mark] = set()
        self.attempt = self.step = self.removed = 0

    def seal(self) -> None:
        self.step += self.random.randint(1, 3)
        mark = self.attempt, self.step
        value = self.random.choice([None, nan, *range(6)])
        self.values[mark] = self.ever[mark] = value
        known = {mark for mark in self.bad if self.random.random() < 0.8}
        kept = worth_keeping(self.values, known, self.forks, is_max=self.is_max)
        for gone in removable(
            self.values,
            newest=mark,
            keep=KEEP,
            sealed=self.values.keys() - known,
            forks=self.forks,
            best=kept,
        ):
            del self.values[gone]
            self.removed += 1

    def restore(self) -> None:
        """From the newest one, or further back, as the user wants it. What was deleted for one that
        is left behind now does not come back."""
        self.ever = dict(self.values)
        began = [0, *(step for _, step in self.values)]
        self.attempt, self.step = self.attempt + 1, self.random.choice(began)
        self.forks.append((self.attempt, self.step))

    def find_wrong(self) -> None:
        if self.values:
            self.bad.add(self.random.choice(sorted(self.values)))


@pytest.mark.parametrize("seed", range(300))
def test_the_best_that_was_ever_sealed_on_the_way_to_the_present_weights_is_there(
    seed: int,
) -> None:
    folder = Folder(seed)
    for _ in range(60):
        folder.random.choices([folder.seal, folder.restore, folder.find_wrong], [8, 1, 1])[0]()
        wanted = best(folder.ever, folder.forks, is_max=folder.is_max)
        assert wanted is None or wanted in folder.values
    assert folder.removed


def test_without_it_the_best_would_go() -> None:
    values = {(0, step): float(step) for step in (1, 2, 3, 4)}
    gone = removable(values, newest=(0, 4), keep=KEEP, sealed=values, forks=())
    assert best(values, (), is_max=False) in gone
