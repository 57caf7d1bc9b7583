"""The back end beyond what the equality test reaches: handing over, refusing, skipping."""

from __future__ import annotations

import math

import pytest
import torch
from tests.agent.compute.bench import Bench
from torch import nn

from bamboo_agent.compute.kinds import FileRecord, Slice, Sum, Vote
from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.optim import clip_scale, optimizer_factory, update
from bamboo_agent.compute.serialization import SerializationError, pack, unpack
from bamboo_agent.compute.votes import count, unequal
from bamboo_core.api.spec import FactorySpec
from bamboo_core.model.claims import Said, disputes
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.workers.fleet import CPU


def sums_of(bench, lo, hi):
    return bench.backend.payload(Item.leaf(0, (lo, hi), 0)).buffer.tensor


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
    assert new_owner.backend.payload(Item.leaf(0, (3, 6), 0)).losses.keys() == {0, 1}


def test_a_sum_that_was_handed_out_does_not_change_under_way():
    bench = Bench()
    bench.run("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1", "B[3:6]")
    sent = bench.backend.payload(Item.partial(0, (3, 6), 0, 1)).buffer.tensor
    before = sent.clone()
    bench.run("B[3:6] m1")
    assert torch.equal(sent, before)


def test_a_layer_goes_to_another_agent_whole():
    trained, other = reduced(undisturbed()), Bench()
    record = trained.run("VOTE 0:6 0:6", "COMMIT {a00}")
    trained.commits[0] = record
    trained.run("UPDATE[0:6] 0:6")
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
    bench.backend.accept(Item.red(0, (0, 6), 0), Slice(numbers, {0: 1.5, 1: 2.5}))
    return bench


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value):
    bench = Bench()
    bench.run("INIT[0:6]")
    before = bench.weights(0)
    record = reduced(bench, value).run("VOTE 0:6 0:6", "COMMIT {a00}")
    bench.commits[0] = record
    bench.run("UPDATE[0:6] 0:6")
    assert not record.finite
    assert record.loss == 2.0
    after = bench.weights(0)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_that_is_not_finite_names_its_first_bad_layer():
    bench = Bench()
    bench.run("INIT[0:6]")
    flat = reduced(bench).backend.payload(Item.red(0, (0, 6), 0)).tensor
    for layer in (4, 2):
        flat[sum(bench.setup.sizes[:layer])] = math.nan
        assert bench.run("VOTE 0:6 0:6", "COMMIT {a00}").culprit == layer


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


def test_the_norm_does_not_depend_on_the_cut():
    whole, halves = reduced(Bench()), Bench()
    flat = whole.backend.payload(Item.red(0, (0, 6), 0)).tensor
    middle = sum(halves.setup.sizes[:2])
    for lo, hi, piece in ((0, 2, flat[:middle]), (2, 6, flat[middle:])):
        halves.backend.accept(Item.red(0, (lo, hi), 0), Slice(piece, {}))
    whole.run("INIT[0:6]")
    halves.run("INIT[0:6]")
    one = whole.run("VOTE 0:6 0:6", "COMMIT {a00}")
    two = halves.run("VOTE 0:2 0:2 2:6 2:6", "COMMIT {a00}")
    assert one.grad_norm == two.grad_norm


def test_scalars_are_folded_in_an_order_that_does_not_depend_on_the_votes():
    cast = [Vote({1: 3.0}, {2: 0.1, 3: 0.7}), Vote({0: 4.0, 1: 3.0}, {0: 0.2, 1: 0.3})]
    record = count(5, cast, {0: 1.0, 1: 3.0})
    assert record == count(5, cast[::-1], {1: 3.0, 0: 1.0})
    assert (record.grad_norm, record.validation_loss, record.finite) == (5.0, 2.0, True)
    assert record.loss == (0.2 + 0.3 + 0.1 + 0.7) / 4
    assert count(6, [], {}) == CommitRecord(6)


A, B, C = map(AgentId, "abc")


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


@pytest.mark.parametrize(
    ("norm", "bound", "scale"),
    [(2.0, 0.0, 1.0), (0.4, 0.5, 1.0), (0.5, 0.5, 1.0), (2.0, 0.5, 0.5 / (2.0 + 1e-6))],
)
def test_clipping_scales_only_what_is_above_the_bound(norm, bound, scale):
    assert clip_scale(norm, bound) == scale


@pytest.mark.parametrize(
    "payload",
    [
        Vote({1: 0.5}, {3: 1.5}, {Item.prefix(4, (0, 3), 1, 3): Said(7, 2**52 - 1, 5)}),
        FileRecord("p", "h", 3),
        0.25,
    ],
    ids=["VOTE", "FILE", "SCORE"],
)
def test_plain_payloads_round_trip(payload, request):
    kind = Kind[request.node.callspec.id]
    serialized = pack(payload)
    assert unpack(kind, serialized.meta, serialized.tensors, CPU) == payload


@pytest.mark.parametrize(
    ("kind", "meta", "tensors"),
    [
        (Kind.LEAF, {}, (torch.zeros(2),)),
        (Kind.LEAF, {"losses": {}}, ()),
        (Kind.RED, {"losses": {"x": 1}}, (torch.zeros(2),)),
        (Kind.VOTE, {"norms": {}}, ()),
        (Kind.FILE, {"nonsense": 1}, ()),
        (Kind.VER, {"names": ["a"], "extra": "{}"}, ()),
        (Kind.COMMIT, {}, ()),
    ],
)
def test_a_payload_that_does_not_fit_its_item_is_refused(kind, meta, tensors):
    with pytest.raises(SerializationError, match=f"kind {kind.name} is malformed"):
        unpack(kind, meta, tensors, CPU)


def test_a_layer_refuses_the_state_of_another():
    bench = Bench()
    bench.run("INIT[0:2]")
    layers = bench.backend.layers
    with pytest.raises(ValueError, match=r"param/.* should be torch.float32"):
        layers[1].restore(layers[0].record())


def test_parameters_of_half_precision_are_updated():
    layer = Layer(nn.Linear(2, 2, bias=False).bfloat16(), lambda p: _sgd(p))
    before = layer.parameters[0].detach().clone()
    update(layer, torch.ones(4), scale=0.5, step=0)
    assert torch.equal(layer.parameters[0].detach(), before - 0.5)


def _sgd(parameters):
    return optimizer_factory(FactorySpec("torch.optim:SGD", {"lr": 1.0}))(parameters)


def test_what_is_not_held_can_be_dropped():
    bench = Bench()
    bench.backend.drop(Item.out(0, 2, 0))
    bench.backend.drop(Item.ver(0, 2))
    assert isinstance(Sum().losses, dict)


def test_skipped_steps_are_counted_from_commit_to_commit() -> None:
    bad, good = Vote({0: math.inf}), Vote({0: 1.0})
    before = None
    rows = []
    for step, vote in enumerate((bad, good, bad, bad, good)):
        before = count(step, [vote], {}, before)
        rows.append((before.skipped, before.skipped_in_row))
    assert rows == [(1, 1), (1, 0), (2, 1), (3, 2), (3, 0)]
