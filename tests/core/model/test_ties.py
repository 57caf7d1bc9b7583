"""Layers that have a parameter in common."""

from __future__ import annotations

from bamboo_core.model.ties import other_stages, partners

TIES = ((0, 5), (2, 3, 5))
CUT = ((0, 2), (2, 4), (4, 6))


def test_partners_are_all_layers_with_a_parameter_in_common() -> None:
    assert partners(TIES) == {0: (5,), 2: (3, 5), 3: (2, 5), 5: (0, 2, 3)}
    assert partners(()) == {}


def test_other_stages_are_those_of_partners() -> None:
    assert other_stages(TIES, CUT, (0, 1), but=(0,)) == [2]
    assert other_stages(TIES, CUT, (2, 3), but=(1,)) == [2]
    assert other_stages(TIES, CUT, (5,), but=(2,)) == [0, 1]
    assert other_stages(TIES, CUT, (5,), but=()) == [0, 1]
    assert other_stages(TIES, CUT, (1, 4), but=()) == []
    assert other_stages((), CUT, (0, 5), but=()) == []
