"""A loss that is a sum with a count: the gradient is that of one mean over the step's targets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.agent.compute.bench import BATCH, Bench
from torch.nn import functional

from bamboo_agent.compute import stage
from bamboo_agent.compute.backend import Backend
from bamboo_agent.device.random_state import seed_forward
from bamboo_agent.losses.forms import LossError, LossForm
from bamboo_agent.model import Model
from bamboo_agent.payloads.flow import Flow
from bamboo_core.model.items import Item

SPACE = 32  # stands for padding: it is in every micro-batch, never equally often
STEP = [
    "INIT[0:6]",
    *(f"F[0:6] m{m}" for m in range(4)),
    *(f"B[0:6] m{m}" for m in range(4)),
    *("FOLD[0:6] m1 0:2", "SLICE[0:6] 0:2 0:1", "REDUCE[0:6] 0:1 0:2", "VOTE 0:6 0:6 0:1"),
]


def summed(output, target):
    """Negative log-likelihood of what is no space."""
    logits, labels = output.flatten(0, -2), target.flatten()
    total = functional.cross_entropy(logits, labels, reduction="sum", ignore_index=SPACE)
    return total, (labels != SPACE).sum()


def bench_of(loss, usual_count=1, *, is_counted=True):
    bench = Bench()
    model = Model(bench.setup.model.layers, loss)
    bench.setup = replace(
        bench.setup, model=model, loss_form=LossForm(is_counted), usual_count=usual_count
    )
    bench.backend = Backend(bench.setup, lambda *_: None, bench.commits)
    bench.backend.adopt_batch(BATCH)
    return bench


def gradient_of_one_batch(setup):
    """The gradient of the mean over all targets but spaces, all micro-batches in one graph."""
    layers = [setup.builder.build(i) for i in range(6)]
    total, count = torch.zeros(()), 0
    for m in range(4):
        inputs, target = setup.data.training(0, m)
        values = Flow.of(inputs)
        for index, layer in enumerate(layers):
            layer.set_training(True)
            seed_forward(setup.seed, 0, m, index, setup.device)
            values = stage.run_layers([layer], values, lambda _: None)
        part, own = summed(values.value, target)
        total, count = total + part, count + int(own)
    (total / count).backward()
    grads = [p.grad.reshape(-1) for layer in layers for p in layer.parameters]
    return torch.cat(grads), count, float(total.detach()) / count


@pytest.mark.parametrize("usual_count", [1, 29])
def test_the_gradient_is_that_of_one_mean_over_all_targets(usual_count):
    bench = bench_of(summed, usual_count)
    bench.run(*STEP)
    record = bench.run("COMMIT {a00}")
    expected, count, loss = gradient_of_one_batch(bench.setup)
    counts = {int(summed(torch.zeros(2, 16, 256), t)[1]) for _, t in samples(bench.setup)}
    assert len(counts) > 1
    assert (record.targets, record.finite) == (count, True)
    assert record.loss == pytest.approx(loss, rel=1e-6)
    assert record.grad_norm == pytest.approx(float(expected.norm()), rel=1e-5)
    found = bench.backend.sums.gradient((0, 6), 0, 1).tensor * (4 * usual_count / count)
    assert (found - expected).abs().max() < 1e-6


def samples(setup):
    return [setup.data.training(0, m) for m in range(4)]


def test_the_usual_count_does_not_decide_the_update():
    """Up to the rounding of one division."""
    weights = []
    for usual_count in (8, 32):
        bench = bench_of(summed, usual_count)
        bench.run(*STEP)
        bench.commits[0] = bench.run("COMMIT {a00}")
        bench.run("UPDATE[0:6] 0:6 0:1")
        weights.append([bench.weights(layer) for layer in range(6)])
    for one, other in zip(*weights, strict=True):
        for name, tensor in one.items():
            if tensor.is_floating_point():  # a power of two between both: only exponents differ
                assert torch.equal(tensor, other[name])


def test_a_step_without_targets_changes_no_layer():
    bench = bench_of(lambda output, target: (output.sum() * 0, 0), 29)
    bench.run(*STEP)
    before = [bench.weights(layer) for layer in range(6)]
    before = [{name: tensor.clone() for name, tensor in own.items()} for own in before]
    record = bench.commits[0] = bench.run("COMMIT {a00}")
    assert (record.finite, record.targets, record.culprit) == (False, 0, -1)
    assert (record.skipped, record.skipped_in_row) == (1, 1)
    assert math.isnan(record.loss)
    bench.run("UPDATE[0:6] 0:6 0:1")
    for layer, own in enumerate(before):
        after = bench.weights(layer)
        assert all(torch.equal(tensor, after[name]) for name, tensor in own.items())
        assert bench.backend.layers[layer].version == 1


def test_validation_has_one_denominator():
    bench = bench_of(summed, 29)
    bench.run("INIT[0:6]", "V[0:6] m0", "V[0:6] m1")
    scores = [bench.backend.store[Item.score(0, m)] for m in (0, 1)]
    (one, first), (two, second) = (score.read().pairs[0] for score in scores)
    record = bench.run("COMMIT")
    assert record.validation_loss == (0.0 + one + two) / (first + second)
    assert record.targets is None


def test_a_loss_that_becomes_another_is_refused_with_its_place():
    plain = bench_of(lambda output, target: summed(output, target)[0])
    plain.run("INIT[0:6]")
    with pytest.raises(LossError, match=r"^micro-batch 2 of step 0: the loss returns a mean; "):
        plain.run("F[0:6] m2")
    with pytest.raises(LossError, match=r"^validation micro-batch 1 of step 0: "):
        plain.run("V[0:6] m1")
