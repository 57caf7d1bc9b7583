"""Empty seats are those that placement leaves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RedundancyMode
from bamboo_sim.market.step_times.dry import has_copies
from bamboo_sim.market.step_times.patterns import PATTERNS, after_losses, equal_to, patterns

NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_equal_patterns_are_those_with_other_pipelines(
    pipelines: int, stages: int, data: st.DataObject
) -> None:
    seats = st.tuples(st.integers(0, pipelines - 1), st.integers(0, stages - 1))
    holes = data.draw(st.frozensets(seats))
    order = data.draw(st.permutations(range(pipelines)))
    found = equal_to(pipelines, holes)
    assert found == equal_to(pipelines, frozenset((order[d], s) for d, s in holes))
    assert found == equal_to(pipelines, found)
    assert sorted(s for _, s in found) == sorted(s for _, s in holes)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 6), st.data())
def test_as_many_seats_are_empty_as_was_asked(
    first: int, second: int, stages: int, data: st.DataObject
) -> None:
    """Also where all agents of a pipeline have been lost before, and the others have moved."""
    pipelines, most = sorted((first, second))
    empty = data.draw(st.integers(0, stages - 1))
    holes = after_losses(Random(data.draw(st.integers())), most, pipelines, stages, empty)
    assert len(holes) == empty
    assert all(0 <= d < pipelines and 0 <= s < stages for d, s in holes)


def test_patterns_are_different_and_have_copies() -> None:
    for pipelines in (1, 2, 4):
        for empty in range(1, 4):
            found = patterns(REPLICA, 4, pipelines, 8, empty)
            assert len(set(found)) == len(found) == PATTERNS
            assert all(has_copies(REPLICA, pipelines, 8, holes) for holes in found)
            assert found == patterns(REPLICA, 4, pipelines, 8, empty)


def test_an_undisturbed_grid_is_one_pattern() -> None:
    assert patterns(REPLICA, 4, 4, 8, 0) == (frozenset(),)
    assert patterns(REPLICA, 4, 2, 8, 0) == (frozenset(),)


def test_where_no_copy_can_be_left_there_is_no_pattern() -> None:
    assert patterns(NONE, 4, 1, 8, 1) == ()
    assert patterns(REPLICA, 4, 1, 8, 5) == ()
    assert len(patterns(REPLICA, 4, 1, 4, 2)) == 2  # every second seat


def test_more_empty_seats_than_placement_leaves_are_refused() -> None:
    with pytest.raises(ValueError, match="empty is 8 for 8 stages; give 0 to 7"):
        patterns(REPLICA, 4, 3, 8, 8)
