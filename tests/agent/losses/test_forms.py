"""What a loss may return, and what is refused with the remedy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bamboo_agent.losses.forms import (
    Late,
    LossError,
    LossForm,
    read,
    read_all,
    read_as,
    take,
    take_as,
)
from bamboo_agent.payloads.kinds import Figures

ONE = torch.tensor(1.5, requires_grad=True)


def test_a_mean_stays_what_it_is():
    found = read(ONE)
    assert found.tensor is ONE
    assert (found.count, found.form, found.figures) == (1, LossForm(), 1.5)
    assert read({"loss": ONE}).form == LossForm()


@pytest.mark.parametrize(
    "count",
    [6, torch.tensor(6), torch.tensor(6, dtype=torch.uint8), torch.tensor(6.0), np.int64(6), 6.0],
)
def test_a_sum_has_a_whole_count(count):
    found = read((ONE, count))
    assert found.tensor is ONE
    assert (found.count, found.form) == (6, LossForm(is_counted=True))
    assert found.figures == Figures(((1.5, 6),))
    assert type(found.count) is int


def test_metrics_are_in_the_order_of_their_names():
    value = {"b": (2, 4), "loss": (ONE, 3), "a": torch.tensor(0.25), "_C9": np.float32(0.5)}
    found = read(value)
    assert found.form == LossForm(True, (("_C9", False), ("a", False), ("b", True)))
    assert found.figures == Figures(((1.5, 3), (0.5, 1), (0.25, 1), (2.0, 4)))
    assert found.form.names == ("_C9", "a", "b")


def test_a_metric_may_be_no_number_and_its_graph_is_left():
    found = read({"loss": ONE, "share": math.nan, "own": ONE * 2})
    assert isinstance(found.figures, Figures)
    assert found.figures.pairs[1] == (3.0, 1)
    assert math.isnan(found.figures.pairs[2][0])


def metrics(count):
    return {"loss": ONE, **{f"m{i}": i for i in range(count)}}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (1.5, "loss must be a scalar tensor, and it is of the type float"),
        (torch.ones(2), r"a tensor of float32 with the shape \(2,\): use .mean\(\)"),
        ((ONE,), r"the loss returns a tuple of 1: return \(sum, count\)"),
        ((1.5, 3), "loss must be a scalar tensor, and it is of the type float"),
        ((ONE, -1), "the count of the loss is -1: give the number of targets .* at least 0"),
        ((ONE, 2.5), "the count of the loss is 2.5: .* a whole number"),
        ((ONE, math.nan), "the count of the loss is nan: .* a whole number"),
        ((ONE, torch.tensor(math.inf)), "the count of the loss is inf"),
        ((ONE, True), "the count of the loss is of the type bool"),
        ((ONE, torch.tensor(True)), r"is a tensor of bool with the shape \(\)"),
        ((ONE, torch.ones(2)), r"is a tensor of float32 with the shape \(2,\)"),
        ((ONE, None), "is of the type NoneType"),
        ({"accuracy": 0.5}, 'without the key "loss" \\(it has accuracy\\): name what is'),
        ({}, r"\(it has nothing\)"),
        ({"loss": ONE, "top 1": 0.5}, "the name 'top 1': use letters, digits and _"),
        ({"loss": ONE, "1st": 0.5}, "the name '1st'"),
        ({"loss": ONE, "a\n": 0.5}, "the name 'a.n'"),
        ({"loss": ONE, "a" * 41: 0.5}, "up to 40 characters"),
        ({"loss": ONE, 3: 0.5}, "the name 3"),
        (metrics(17), "the loss returns 17 metrics: at most 16 are allowed; leave some out"),
        ({"loss": ONE, "a": "high"}, "metric a is of the type str: return a number"),
        ({"loss": ONE, "a": False}, "metric a is of the type bool"),
        ({"loss": ONE, "a": torch.ones(1)}, r"metric a is a tensor of float32 .* \(1,\)"),
        ({"loss": ONE, "a": (1, -2)}, "the count of metric a is -2"),
        ({"loss": ONE, "a": (1, 2, 3)}, "metric a returns a tuple of 3"),
    ],
)
def test_what_cannot_be_used_is_refused(value, complaint):
    with pytest.raises(LossError, match=complaint):
        read(value)


def test_as_many_metrics_as_are_allowed():
    assert len(read(metrics(16)).form.names) == 16


@pytest.mark.parametrize(
    "later",
    [(ONE, 3), {"loss": ONE}, {"loss": ONE, "b": 1}, {"loss": ONE, "a": (1, 2)}, ONE],
    ids=["counted", "fewer", "other", "other_kind", "alone"],
)
def test_all_micro_batches_return_the_same(later):
    form = read({"loss": ONE, "a": 1}).form
    with pytest.raises(LossError, match=r"micro-batch 3 of step 7: .* had a mean, "):
        read_as(form, later, "micro-batch 3 of step 7")
    assert read_as(form, {"a": 2.0, "loss": ONE}, "").form == form


def test_what_cannot_be_used_later_is_told_with_its_place():
    with pytest.raises(LossError, match=r"^micro-batch 1 of step 2: the count of the loss is -3"):
        read_as(LossForm(is_counted=True), (ONE, -3), "micro-batch 1 of step 2")


# ---------------------------------------------------------------- figures that are read later


class Counted(TorchDispatchMode):
    """Counts copies of values to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def late(value, where="micro-batch 0 of step 0"):
    return Late(take_as(take(value).form, value, where), where)


@pytest.mark.parametrize("value", [ONE, (ONE, torch.tensor(4)), {"loss": (ONE, 2), "a": ONE * 2}])
def test_figures_that_are_read_later_are_those_that_are_read_at_once(value):
    with Counted() as counted:
        found = late(value)
    assert counted.reads == 0
    wanted = read(value).figures
    assert found.read() == wanted
    assert read_all({3: late(value), 1: wanted}) == {3: wanted, 1: wanted}


def test_many_figures_come_in_one_copy_for_each_dtype(monkeypatch):
    copies, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: copies.append(x.dtype) or tolist(x))
    values = {m: late((torch.tensor(m / 8), torch.tensor(m))) for m in range(5)}
    with Counted() as counted:
        found = read_all(values)
    assert found == {m: Figures(((m / 8, m),)) for m in range(5)}
    assert sorted(map(str, copies)) == ["torch.float32", "torch.int64"]
    assert counted.reads == 0
    assert read_all(values) == found  # they are on the host now
    assert len(copies) == 2


def test_a_figure_does_not_change_with_its_tensor():
    seen = torch.tensor(2.0)
    found = late({"loss": ONE, "seen": seen})
    seen.fill_(7.0)
    assert found.read() == Figures(((1.5, 1), (2.0, 1)))


def test_a_count_that_is_wrong_is_told_with_its_micro_batch_when_it_is_read():
    found = {4: late((ONE, torch.tensor(-3)), "micro-batch 4 of step 9")}
    with pytest.raises(LossError, match=r"^micro-batch 4 of step 9: the count of the loss is -3"):
        read_all(found)
