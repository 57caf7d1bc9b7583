"""Where ours stands: the sentences follow from the rows."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from tests.sim.market.compare.test_comparison import small

from bamboo_sim.market.compare.comparison import DEFAULT, Comparison, Table, compared
from bamboo_sim.market.compare.several import standings
from bamboo_sim.market.compare.verdict import best_other, factors, systems, verdict


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(small(), tmp_path_factory.mktemp("step-times"), 1)


def changed(found: Comparison, name: str, times: float) -> Comparison:
    """The same, but a system has so many times the samples."""
    rows = tuple(
        replace(
            row,
            samples_per_s=row.samples_per_s * times,
            samples_per_dollar=row.samples_per_dollar * times,
        )
        if (row.table, row.name) == (Table.COMMON, name)
        else row
        for row in found.rows
    )
    return replace(found, rows=rows)


def test_factors_multiply_to_the_ratio(found: Comparison) -> None:
    ours = found.row(DEFAULT)
    for other in systems(found):
        ratio = ours.samples_per_dollar / other.samples_per_dollar
        assert prod(x.ratio for x in factors(found, ours, other)) == pytest.approx(ratio)


def test_the_best_of_the_others_is_none_of_ours(found: Comparison) -> None:
    best = best_other(found)
    others = [row for row in systems(found) if not row.name.startswith("ours")]
    assert best.samples_per_dollar == max(row.samples_per_dollar for row in others)


def test_where_ours_is_behind_it_says_by_how_much_and_why(found: Comparison) -> None:
    slow = changed(found, DEFAULT, 0.5)
    ours, other = slow.row(DEFAULT), best_other(slow)
    text = "\n".join(verdict(slow))
    behind = 1 - ours.samples_per_dollar / other.samples_per_dollar
    assert f"Ours is behind by {behind:.1%}. What makes the ratio, the worst first: steps," in text
    worst = min(factors(slow, ours, other), key=lambda part: part.ratio)
    assert f"{worst.name}, x {worst.ratio:.3f}: {worst.text}" in text
    assert "more than the default" in text


def test_where_ours_is_ahead_it_says_so(found: Comparison) -> None:
    fast = changed(found, DEFAULT, 3.0)
    text = "\n".join(verdict(fast))
    assert "No other system has more" in text
    assert "No other mode of ours has more." in text
    assert "behind" not in text


def test_the_on_demand_baseline_is_stated(found: Comparison) -> None:
    line = verdict(found)[-1]
    steady = found.row("on demand")
    assert f"{1e6 / steady.samples_per_dollar:.2f} on 8 on-demand nodes" in line
    faster = verdict(changed(found, DEFAULT, 9.0))[-1]
    assert "% faster." in faster


def test_an_undecided_difference_is_called_that(found: Comparison) -> None:
    ours, other = found.row(DEFAULT), best_other(found)
    theirs = found.resampled[other.key]
    wide = theirs._replace(
        values=tuple(x * (0.9 if n % 2 else 1.1) for n, x in enumerate(theirs.values))
    )
    undecided = replace(found, resampled={**found.resampled, ours.key: wide})
    assert "does not decide between the two" in "\n".join(verdict(undecided))


def test_one_fleet_alone_has_no_standings(found: Comparison) -> None:
    assert standings([found]) == []
    both = standings([found, changed(found, DEFAULT, 3.0)])
    assert [each.rank for each in both] == sorted(each.rank for each in both)
    ours = next(each for each in both if each.name == DEFAULT)
    assert ours.ratios[1] == pytest.approx(3 * ours.ratios[0])
    assert ours.rank == 1
