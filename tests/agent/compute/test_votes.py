"""The scalars of a step, and disputes, do not depend on the order of the votes."""

from __future__ import annotations

import math

import pytest

from bamboo_agent.compute.votes import count, unequal
from bamboo_agent.losses.forms import LossForm
from bamboo_agent.payloads.kinds import Figures, Vote
from bamboo_core.model.claims import disputes
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord


@pytest.mark.parametrize(
    ("norms", "loss", "finite", "culprit"),
    [
        ({0: 1.0, 1: math.inf, 2: math.nan}, 1.0, False, 1),
        ({0: 1.0, 1: 2.0}, math.nan, True, -1),  # the update is sound, so it is made
        ({0: 1.0, 1: 2.0}, 1.0, True, -1),
        ({0: 1.0, 1: 1e200}, 1.0, False, 1),  # its square is too large
    ],
)
def test_the_culprit_is_the_lowest_layer_whatever_the_order_of_the_votes(
    norms, loss, finite, culprit
):
    cast = [Vote({layer: norm}, {layer: loss}) for layer, norm in norms.items()]
    for order in (cast, cast[::-1]):
        record = count(3, order, {})
        assert (record.finite, record.culprit) == (finite, culprit)


def test_scalars_are_folded_in_an_order_that_does_not_depend_on_the_votes():
    cast = [Vote({1: 3.0}, {2: 0.1, 3: 0.7}), Vote({0: 4.0, 1: 3.0}, {0: 0.2, 1: 0.3})]
    record = count(5, cast, {0: 1.0, 1: 3.0})
    assert record == count(5, cast[::-1], {1: 3.0, 0: 1.0})
    assert (record.grad_norm, record.validation_loss, record.finite) == (5.0, 2.0, True)
    assert record.loss == (0.2 + 0.3 + 0.1 + 0.7) / 4
    assert count(6, [], {}) == CommitRecord(6)


def test_sums_and_metrics_are_folded_in_an_order_that_does_not_depend_on_the_votes() -> None:
    form = LossForm(is_counted=True, metrics=(("hits", True),))
    losses = {m: Figures(((0.1 * m, m), (0.7 * m, 2 * m))) for m in range(4)}
    cast = [Vote({0: 3.0}, {m: losses[m] for m in (3, 1)}), Vote({1: 4.0}, {2: losses[2]})]
    cast.append(Vote({}, {0: losses[0]}))
    records = [
        count(5, order, {1: losses[1], 3: losses[3]}, form=form, nominal=12)
        for order in (cast, cast[::-1])
    ]
    assert records[0] == records[1]
    record = records[0]
    assert (record.targets, record.grad_norm) == (6, 10.0)
    assert record.loss == (0.0 + 0.1 + 0.2 + 0.1 * 3) / 6
    assert record.metrics == {"hits": (0.0 + 0.7 + 0.7 * 2 + 0.7 * 3) / 12}
    assert record.validation_loss == (0.1 + 0.1 * 3) / 4
    assert record.validation_metrics == {"hits": (0.7 + 0.7 * 3) / 8}


@pytest.mark.parametrize("norm", [0.0, math.nan])
def test_a_step_without_targets_is_skipped(norm: float) -> None:
    form = LossForm(is_counted=True)
    record = count(3, [Vote({0: norm}, {0: Figures(((0.0, 0),))})], {}, form=form, nominal=12)
    assert (record.finite, record.targets, record.skipped, record.skipped_in_row) == (
        False,
        0,
        1,
        1,
    )
    assert math.isnan(record.loss)


def test_skipped_steps_are_counted_from_commit_to_commit() -> None:
    bad, good = Vote({0: math.inf}), Vote({0: 1.0})
    before = None
    rows = []
    for step, vote in enumerate((bad, good, bad, bad, good)):
        before = count(step, [vote], {}, before)
        rows.append((before.skipped, before.skipped_in_row))
    assert rows == [(1, 1), (1, 0), (2, 1), (3, 2), (3, 0)]


A, B, C = map(AgentId, "abc")


def counted(loss, targets, metric=0.5):
    """Losses of one micro-batch."""
    return {0: Figures(((loss, targets), (metric, 1)))}


@pytest.mark.parametrize(
    ("cast", "names"),
    [
        ({A: Vote({1: 0.5}, {0: 2.0}), B: Vote({1: 0.5, 2: 0.5}, {0: 2.0})}, []),
        ({A: Vote({}, {0: 2.0, 1: 3.0}), B: Vote({}, {1: 3.0, 0: 2.0})}, []),
        ({A: Vote({1: float("nan")}), B: Vote({1: float("nan")})}, []),  # not the same object
        ({A: Vote({1: math.nan}), B: Vote({1: math.nan, 2: 0.5}), C: Vote()}, []),
        ({A: Vote({1: math.nan, 2: 0.5}), B: Vote({1: 0.5, 2: 0.5})}, [(1, 0)]),
        ({A: Vote({3: 1.0}, {0: 2.0}), B: Vote({3: 1.0}, {0: 2.5}), C: Vote({1: 3.0})}, [(3, 1)]),
        ({A: Vote({3: 1.0}, {0: 2.0}), B: Vote({3: 1.0}, {1: 2.0})}, [(3, 1)]),
        ({A: Vote({3: 1.0}, {0: math.nan}), B: Vote({3: 1.0}, {0: math.nan})}, []),
        ({A: Vote({0: 1.0, 3: 1.0}, {0: 2.0}), B: Vote({0: 2.0, 3: 2.0}, {})}, [(0, 0), (3, 0)]),
        ({A: Vote({}, counted(2.0, 3)), B: Vote({}, counted(2.0, 3))}, []),
        ({A: Vote({}, counted(math.nan, 3)), B: Vote({}, counted(math.nan, 3))}, []),
        ({A: Vote({3: 1.0}, counted(2.0, 3)), B: Vote({3: 1.0}, counted(2.0, 4))}, [(3, 1)]),
        (
            {A: Vote({3: 1.0}, counted(2.0, 3, 0.5)), B: Vote({3: 1.0}, counted(2.0, 3, 1))},
            [(3, 1)],
        ),
    ],
)
def test_gradients_and_losses_that_differ_are_disputed(cast, names):
    said = unequal(5, cast, 4)
    assert {(item.lo, item.part) for own in said.values() for item in own} == set(names)
    found = disputes(said)
    assert [d.lo for d in found] == [lo for lo, _ in names]
    for dispute in found:
        assert dispute.is_of_gradients
        assert len({claim.digest for claim in dispute.claims}) == 2
        assert {claim.agent for claim in dispute.claims} == {A, B}
