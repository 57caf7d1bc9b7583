"""The back end beyond what the equality test reaches: handing over, refusing, skipping."""

from __future__ import annotations

import math

import pytest
import torch
from tests.agent.compute.bench import Bench

from bamboo_agent.payloads.kinds import Slice, Sum
from bamboo_core.model.items import Item


def sums_of(bench, lo, hi):
    return bench.backend.payload(Item.sum(0, (lo, hi), (0, 1))).buffer.tensor


def undisturbed():
    """Both stages of a pipeline of two on one agent, one leaf."""
    bench = Bench()
    bench.run("INIT[0:6]", *(f"F[{r}] m{m}" for m in (0, 1) for r in ("0:3", "3:6")))
    bench.run(*(f"B[{r}] m{m}" for m in (0, 1) for r in ("3:6", "0:3")))
    return bench


@pytest.mark.parametrize("stage", ["0:3", "3:6"])
def test_an_activation_that_a_leaver_hands_over_gives_the_same_sum(stage):
    lo, hi = (int(x) for x in stage.split(":"))
    whole, leaver, new_owner = undisturbed(), Bench(), Bench()
    leaver.run("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1", "B[3:6]", "B[3:6] m1")
    new_owner.run("INIT[0:6]")
    if lo:  # the leaver had not begun the backward of this stage
        leaver = Bench()
        leaver.run("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1")
    else:
        for m in (0, 1):
            leaver.give(Item.ingrad(0, 3, m), new_owner)
    for m in (0, 1):
        leaver.give(Item.act(0, (lo, hi), m), new_owner)
    new_owner.run(f"B[{stage}]", f"W[{stage}] m1")
    assert torch.equal(sums_of(new_owner, lo, hi), sums_of(whole, lo, hi))


def test_an_unfinished_sum_can_be_handed_over():
    whole, leaver, new_owner = undisturbed(), Bench(), Bench()
    for bench in (leaver, new_owner):
        bench.run("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1")
    leaver.run("B[3:6]")
    leaver.give(Item.partial(0, (3, 6), 0, 1), new_owner)
    new_owner.run("B[3:6] m1")
    assert torch.equal(sums_of(new_owner, 3, 6), sums_of(whole, 3, 6))
    assert new_owner.backend.payload(Item.sum(0, (3, 6), (0, 1))).losses.keys() == {0, 1}


def test_sums_of_others_are_added_up_before_their_layers_come():
    """Whoever takes a second stage in the step of a loss gets sums and layers in any order."""
    leaver, new_owner = Bench(), Bench()
    leaver.run("INIT[0:6]", *(f"F[{r}] m{m}" for m in range(4) for r in ("0:3", "3:6")))
    leaver.run(*(f"B[3:6] m{m}" for m in range(4)))
    for leaf in (0, 1):
        leaver.give(Item.sum(0, (3, 6), (leaf, leaf + 1)), new_owner)
    for bench in (leaver, new_owner):
        bench.run("FOLD[3:6] m1 0:2", "SLICE[3:6] 0:2 0:1")
    expected, found = (
        bench.backend.payload(Item.piece(0, (3, 6), (0, 2), 0, 1)).tensor
        for bench in (leaver, new_owner)
    )
    assert torch.equal(found, expected)


def test_own_sums_are_added_up_after_their_layers_have_gone():
    bench, whole = Bench(), Bench()
    for each in (bench, whole):
        each.run("INIT[0:6]", *(f"F[{r}] m{m}" for m in range(4) for r in ("0:3", "3:6")))
        each.run(*(f"B[3:6] m{m}" for m in range(4)))
    for layer in (3, 4, 5):
        bench.backend.layers.pop(layer)
    for each in (bench, whole):
        each.run("FOLD[3:6] m1 0:2", "SLICE[3:6] 0:2 0:1")
    piece = Item.piece(0, (3, 6), (0, 2), 0, 1)
    assert torch.equal(bench.backend.payload(piece).tensor, whole.backend.payload(piece).tensor)


def test_a_sum_that_was_handed_out_does_not_change_under_way():
    bench = Bench()
    bench.run("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1", "B[3:6]")
    sent = bench.backend.payload(Item.partial(0, (3, 6), 0, 1)).buffer.tensor
    before = sent.clone()
    bench.run("B[3:6] m1")
    assert torch.equal(sent, before)


def test_a_layer_goes_to_another_agent_whole():
    trained, other = reduced(undisturbed()), Bench()
    record = trained.run("VOTE 0:6 0:6 0:1", "COMMIT {a00}")
    trained.commits[0] = record
    trained.run("UPDATE[0:6] 0:6 0:1")
    for layer in range(6):
        trained.give(Item.ver(1, layer), other)
        mine, theirs = trained.weights(layer), other.weights(layer)
        assert mine.keys() == theirs.keys()
        assert any(name.startswith("optim/") for name in mine)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def reduced(bench, value=None):
    """Give the bench a reduced gradient of all layers under the cut 0:6."""
    torch.manual_seed(3)
    numbers = torch.randn(sum(bench.setup.sizes))
    if value is not None:
        numbers[5] = value
    bench.backend.accept(Item.red(0, (0, 6), 0, 1), Slice(numbers, {0: 1.5, 1: 2.5}))
    return bench


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value):
    bench = Bench()
    bench.run("INIT[0:6]")
    before = bench.weights(0)
    record = reduced(bench, value).run("VOTE 0:6 0:6 0:1", "COMMIT {a00}")
    bench.commits[0] = record
    bench.run("UPDATE[0:6] 0:6 0:1")
    assert not record.finite
    assert record.loss == 2.0
    after = bench.weights(0)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_that_is_not_finite_names_its_first_bad_layer():
    bench = Bench()
    bench.run("INIT[0:6]")
    flat = reduced(bench).backend.payload(Item.red(0, (0, 6), 0, 1)).tensor
    for layer in (4, 2):
        flat[sum(bench.setup.sizes[:layer])] = math.nan
        assert bench.run("VOTE 0:6 0:6 0:1", "COMMIT {a00}").culprit == layer


def test_the_norm_does_not_depend_on_the_cut():
    whole, halves = reduced(Bench()), Bench()
    flat = whole.backend.payload(Item.red(0, (0, 6), 0, 1)).tensor
    middle = sum(halves.setup.sizes[:2])
    for lo, hi, piece in ((0, 2, flat[:middle]), (2, 6, flat[middle:])):
        halves.backend.accept(Item.red(0, (lo, hi), 0, 1), Slice(piece, {}))
    whole.run("INIT[0:6]")
    halves.run("INIT[0:6]")
    one = whole.run("VOTE 0:6 0:6 0:1", "COMMIT {a00}")
    two = halves.run("VOTE 0:2 0:2 0:1 2:6 2:6 0:1", "COMMIT {a00}")
    assert one.grad_norm == two.grad_norm


def test_a_layer_refuses_the_state_of_another():
    bench = Bench()
    bench.run("INIT[0:2]")
    layers = bench.backend.layers
    with pytest.raises(ValueError, match=r"param/.* should be torch.float32"):
        layers[1].restore(layers[0].record())


def test_what_is_not_held_can_be_dropped():
    bench = Bench()
    bench.backend.drop(Item.out(0, 2, 0))
    bench.backend.drop(Item.ver(0, 2))
    assert isinstance(Sum().losses, dict)
