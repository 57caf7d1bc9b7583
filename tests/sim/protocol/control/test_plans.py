"""The explorer's cache of plans gives what the planner gives."""

from __future__ import annotations

from dataclasses import replace

from tests.core.planning.test_speeds import A0, request

from bamboo_core.model.ids import Fence
from bamboo_core.planning import planner
from bamboo_sim.protocol.control.plans import Plans


def test_remembered_answers_depend_on_the_speeds_and_are_the_planner_s() -> None:
    plans, base = Plans(), request({})
    for number in range(2):
        for speeds in ({}, {A0: 0.3}, {A0: 0.5}):
            asked = replace(base, speeds=speeds, fence=Fence(0, 1, 7 + number))
            assert list(plans.answer(asked)) == list(planner.compute(asked))
