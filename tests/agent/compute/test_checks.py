"""A sampled share is computed twice: one wrong bit in one of the two ends the worker.

Faults are planted in the function that computes, not in the check.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.agent.compute.bench import BATCH, Bench

from bamboo_agent.compute import optim, stage, sums
from bamboo_agent.compute.backend import Backend
from bamboo_agent.compute.checks import CorruptionError
from bamboo_agent.compute.stage import Halves
from bamboo_agent.device.random_state import seed_forward
from bamboo_agent.payloads.kinds import Sum
from bamboo_core.model.items import Item, Kind
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.workers.fleet import CPU

FORWARDS = ("INIT[0:6]", "F[0:3]", "F[3:6]", "F[0:3] m1", "F[3:6] m1")
WHOLE = ("B[3:6]", "B[0:3]", "B[3:6] m1", "B[0:3] m1")
SPLIT = tuple(f"{op}[{r}] m{m}" for m in (0, 1) for r in ("3:6", "0:3") for op in "IW")
SUMS = (
    *("SLICE[0:3] 0:1 0:1", "SLICE[3:6] 0:1 0:1"),
    *("REDUCE[0:3] m0 0:1 0:1", "REDUCE[3:6] m0 0:1 0:1"),
)
END = ("VOTE 0:3 0:3 0:1 3:6 3:6 0:1", "COMMIT {a00}")
NEGATIVE_ZERO, NAN = torch.tensor(-0.0), torch.tensor(float("nan"))
UPDATES = ("UPDATE[0:3] 0:3 0:1", "UPDATE[3:6] 3:6 0:1")


class Checked(Bench):
    """A bench that computes a share twice."""

    def __init__(self, every: int = 1, halves: Halves | None = None) -> None:
        super().__init__()
        ways = self.setup.halves if halves is None else [halves] * 6
        self.setup = replace(self.setup, check_every=every, halves=ways)
        self.backend = Backend(self.setup, lambda *_: None, self.commits)
        self.backend.adopt_batch(replace(BATCH, microbatches=2))

    def step(self, backwards=WHOLE):
        """A whole step of a pipeline of two stages on one agent."""
        self.run(*FORWARDS, *backwards, *SUMS)
        self.commits[0] = self.run(*END)
        self.run(*UPDATES)
        return self

    def states(self):
        return [self.backend.layers[layer].checksum() for layer in range(6)]


def flip(monkeypatch, module, name, tensors_of, calls=(0,), bit=0):
    """Let a function give one wrong bit: in these calls, counted from now."""
    compute, count = getattr(module, name), iter(range(1000))

    def wrong(*arguments, **options):
        result = compute(*arguments, **options)
        if next(count) in calls:
            first = tensors_of(arguments, options, result)
            first.detach().reshape(-1).view(torch.int32)[0] ^= 1 << bit
        return result

    monkeypatch.setattr(module, name, wrong)


def given(_, __, result):
    return result[0]


def weight_gradient(arguments, _, __):
    """The gradient of the stage's first trainable layer, as autograd leaves it."""
    activation = arguments[0]
    return next(p.grad for p in parameters_of(activation) if p.grad is not None)


def parameters_of(activation):
    """Parameters in the graph below an activation's outputs."""
    nodes, seen = [output.grad_fn for output in activation.outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        nodes += [following for following, _ in node.next_functions]


@pytest.mark.parametrize("call", [0, 1])
def test_a_flip_in_a_forward_is_found_before_anything_is_kept(monkeypatch, call):
    bench = Checked()
    bench.run("INIT[0:6]")
    flip(monkeypatch, stage, "run_layers", given, {call})
    with pytest.raises(CorruptionError, match=r"F\[0:3\] m0 gave two results on a00: look"):
        bench.run("F[0:3]")
    assert not any(item.kind in (Kind.ACT, Kind.OUT) for item in bench.backend.store)


def test_a_flip_in_a_forward_that_was_begun_ahead_is_found(monkeypatch):
    bench = Checked()
    flip(monkeypatch, stage, "run_layers", given, bit=22)  # not rounded away in the next layer
    bench.run("INIT[0:6]", "R[0:3] 0:2")
    with pytest.raises(CorruptionError, match=r"F\[0:3\]"):
        bench.run("F[0:3] 2:3")


@pytest.mark.parametrize("call", [0, 1])
@pytest.mark.parametrize("microbatch", [0, 1])
def test_a_flip_in_an_input_gradient_is_found(monkeypatch, microbatch, call):
    bench = Checked()
    bench.run(*FORWARDS, *WHOLE[:2][:microbatch])
    flip(monkeypatch, stage, "backward", given, {call})
    with pytest.raises(CorruptionError, match=rf"B\[3:6\] m{microbatch} gave"):
        bench.run(f"B[3:6] m{microbatch}")
    assert Item.ingrad(0, 3, microbatch) not in bench.backend.store


@pytest.mark.parametrize("microbatch", [0, 1])
def test_a_flip_in_the_sum_of_weight_gradients_is_found(monkeypatch, microbatch):
    bench = Checked()
    bench.run(*FORWARDS, *WHOLE[:1][:microbatch])
    whole = stage.backward

    def wrong(activation, gradients):
        parameters = list(parameters_of(activation))
        result = whole(activation, gradients)
        monkeypatch.setattr(stage, "backward", whole)
        next(p for p in parameters if p.grad is not None).grad.view(-1).view(torch.int32)[0] ^= 1
        return result

    monkeypatch.setattr(stage, "backward", wrong)
    with pytest.raises(CorruptionError):
        bench.run(f"B[3:6] m{microbatch}")
    assert Item.sum(0, (3, 6), (0, 1)) not in bench.backend.store


@pytest.mark.parametrize("halves", Halves)
def test_a_flip_in_one_half_of_a_backward_is_found(monkeypatch, halves):
    bench = Checked(halves=halves)
    bench.run(*FORWARDS)
    with monkeypatch.context() as patch:
        flip(patch, stage, "backward_input", given)
        with pytest.raises(CorruptionError, match=r"I\[3:6\]"):
            bench.run("I[3:6]")
    bench = Checked(halves=halves)
    bench.run(*FORWARDS, "I[3:6]")
    half = stage.backward_weight

    def wrong(activation, gradients, parameters, way):
        half(activation, gradients, parameters, way)
        monkeypatch.setattr(stage, "backward_weight", half)
        parameters[0].grad.view(-1).view(torch.int32)[0] ^= 1

    monkeypatch.setattr(stage, "backward_weight", wrong)
    with pytest.raises(CorruptionError, match=r"W\[3:6\]"):
        bench.run("W[3:6]")


def test_a_flip_in_a_sum_is_found(monkeypatch):
    bench = Checked()
    bench.run(*FORWARDS, *WHOLE)
    for name, line, tensor in (
        ("flatten", SUMS[0], lambda _, __, result: result.tensor),
        ("add_tree", SUMS[2], lambda _, options, __: options["out"]),
    ):
        with monkeypatch.context() as patch:
            flip(patch, sums, name, tensor)
            with pytest.raises(CorruptionError, match=line.replace("[", r"\[")):
                bench.run(line)
        bench.run(line)


@pytest.mark.parametrize("call", [0, 1])
def test_a_flip_where_two_sums_are_added_up_is_found(monkeypatch, call):
    bench = Checked()
    bench.backend.adopt_batch(replace(BATCH, microbatches=2, leaf_size=1))
    bench.run(*FORWARDS, *WHOLE)
    flip(monkeypatch, sums, "merge", lambda _, __, result: result.buffer.tensor, {call})
    with pytest.raises(CorruptionError, match=r"FOLD\[0:3\] m1"):
        bench.run("FOLD[0:3] m1 0:2")


def sums_of(*values):
    """Sums of leaves 0 and 1 as autograd leaves them. None: nothing has used the parameters."""
    bench = Checked()
    bench.backend.adopt_batch(replace(BATCH, microbatches=2, leaf_size=1))
    shapes = [x.shape for x in bench.backend.state.outlines(0, 3)]
    for leaf, value in enumerate(values):
        parts = [None if value is None else value.expand(x).clone() for x in shapes]
        bench.backend.state.store[Item.sum(0, (0, 3), (leaf, leaf + 1))] = Sum(parts=parts)
    return bench


@pytest.mark.parametrize("values", [(NEGATIVE_ZERO, None), (None, NEGATIVE_ZERO), (None, None)])
def test_gradients_that_are_missing_are_no_fault_of_the_device(values):
    sums_of(*values).run("FOLD[0:3] m1 0:2")


@pytest.mark.parametrize("flat", [0, 1])
def test_two_numbers_that_are_none_of_both_signs_are_no_fault_of_the_device(flat):
    bench = sums_of(NAN, -NAN)
    state, total = bench.backend.state, Item.sum(0, (0, 3), (flat, flat + 1))
    bench.backend.sums.flatten(state.store[total], state.outlines(0, 3))
    bench.run("FOLD[0:3] m1 0:2")


def test_a_flip_in_a_norm_is_found(monkeypatch):
    bench = Checked()
    bench.run(*FORWARDS, *WHOLE, *SUMS)
    flip(monkeypatch, torch.linalg, "vector_norm", lambda _, __, result: result)
    with pytest.raises(CorruptionError, match="VOTE"):
        bench.run(END[0])


def test_a_flip_in_the_optimizer_is_found_and_names_the_layer(monkeypatch):
    bench = Checked()
    bench.run(*FORWARDS, *WHOLE, *SUMS)
    bench.commits[0] = bench.run(*END)
    flip(monkeypatch, optim, "update", lambda arguments, _, __: arguments[0].parameters[0], {2})
    with pytest.raises(CorruptionError, match="the update of layer 1 in step 0 gave two results"):
        bench.run(*UPDATES)


def test_a_fault_that_repeats_exactly_is_not_found(monkeypatch):
    bench = Checked()
    bench.run("INIT[0:6]")
    flip(monkeypatch, stage, "run_layers", given, {0, 1})
    bench.run("F[0:3]")


def test_without_detection_nothing_is_computed_twice(monkeypatch):
    bench = Checked(every=0)
    flip(monkeypatch, stage, "run_layers", given)
    flip(monkeypatch, optim, "update", lambda arguments, _, __: arguments[0].parameters[0])
    spoiled = bench.step().states()
    monkeypatch.undo()
    assert spoiled != Checked(every=0).step().states()


@pytest.mark.parametrize("backwards", [WHOLE, SPLIT], ids=["whole", "split"])
@pytest.mark.parametrize("halves", [None, *Halves])
def test_checks_change_no_bit(backwards, halves):
    plain, checked = (Checked(every, halves).step(backwards) for every in (0, 1))
    assert checked.commits[0] == plain.commits[0]
    assert checked.states() == plain.states()


def test_checks_leave_the_random_state_as_it_would_be():
    drawn = []
    for every in (0, 1):
        bench = Checked(every)
        seed_forward(1, 2, 3, 4, CPU)
        bench.run(*FORWARDS[:3], "B[3:6]")
        drawn.append(float(torch.rand(())))
    assert drawn[0] == drawn[1]


def test_only_what_is_due_is_computed_twice(monkeypatch):
    """Each micro-batch and each layer has its turn in one of three steps."""
    bench = Checked(every=3)
    bench.run(*FORWARDS, *WHOLE, *SUMS)
    updates = []
    update = optim.update
    monkeypatch.setattr(
        optim,
        "update",
        lambda layer, *rest, **options: updates.append(layer) or update(layer, *rest, **options),
    )
    bench.commits[0] = bench.run(*END)
    bench.run(*UPDATES)
    held = [bench.backend.layers[layer] for layer in range(6)]
    assert [updates.count(layer) for layer in held] == [2, 1, 1, 2, 1, 1]


def test_an_update_that_changes_nothing_is_not_checked():
    bench = Checked()
    bench.run("INIT[0:6]")
    before = bench.states()
    bench.commits[0] = CommitRecord(0, finite=False)
    bench.run(*UPDATES)
    assert bench.states() == before
