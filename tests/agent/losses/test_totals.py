"""The figures of a step do not depend on who adds them up."""

from __future__ import annotations

import math

from bamboo_agent.losses.forms import LossForm
from bamboo_agent.losses.totals import rescale, total
from bamboo_agent.payloads.kinds import Figures

COUNTED = LossForm(is_counted=True, metrics=(("hits", True), ("share", False)))


def test_means_are_added_in_the_order_of_micro_batches():
    found = total({2: 0.1, 0: 0.2, 3: 0.7, 1: 0.3}, LossForm())
    assert found is not None
    assert found.loss == (0.2 + 0.3 + 0.1 + 0.7) / 4
    assert (found.metrics, found.targets) == ({}, None)
    assert total({}, LossForm()) is None


def test_sums_have_one_denominator():
    losses = {
        1: Figures(((9.0, 3), (0.0, 0), (0.5, 1))),
        0: Figures(((1.0, 1), (1.0, 2), (0.25, 1))),
    }
    found = total(dict(losses), COUNTED)
    assert found is not None
    assert (found.loss, found.targets) == (2.5, 4)
    assert found.metrics == {"hits": 0.5, "share": 0.375}


def test_without_targets_there_is_no_mean():
    found = total({0: Figures(((0.0, 0), (0.0, 0), (0.5, 1)))}, COUNTED)
    assert found is not None
    assert math.isnan(found.loss)
    assert math.isnan(found.metrics["hits"])
    assert (found.targets, found.metrics["share"]) == (0, 0.5)


def test_the_gradient_is_scaled_only_if_targets_are_counted():
    assert (rescale(None, 96), rescale(0, 96), rescale(48, 96)) == (1.0, 1.0, 2.0)
