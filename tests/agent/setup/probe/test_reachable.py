"""What a module and an optimizer can reach, and what of it has changed."""

from __future__ import annotations

import collections
import functools
import itertools
import os
import random
import threading
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from bamboo_agent.setup.probe import reachable

TALLY = [0]


class Counter:
    total = 0

    def __init__(self):
        self.count = 0


class Slotted:
    __slots__ = ("seen",)


class Plain(nn.Module):
    """Each test hangs something on it, or changes what it reaches."""

    def __init__(self, **attributes):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        TALLY[0] += 1
        return self.inner(x)


def look(module):
    carried = {reachable.address(tensor) for tensor in module.parameters()}
    return reachable.snapshot({"Plain": module}, carried)


def closure():
    count = 0

    def hook(*_):
        nonlocal count
        count += 1

    return hook


def slotted():
    made = Slotted()
    made.seen = 1
    return made


@functools.lru_cache
def cached(step):
    TALLY[0] += 1
    return step


class Local(threading.local):
    count = 0


def generated():
    count = 0
    while True:
        count += 1
        yield count


def counts_in_a_class():
    Counter.total += 1


def on_a_parameter(module):
    module.inner.weight.rounds = getattr(module.inner.weight, "rounds", 0) + 1


VARIABLE = ContextVar("count")


class Whole(int):
    """A number of the user's type."""


class Rules:
    def one(self): ...

    def other(self): ...


def point_elsewhere(module):
    module.x[0] = module.x[2]


CHANGES = {
    "method": (lambda: Rules().one, lambda m: setattr(m, "x", Rules().other), "Plain.x"),
    "builtin": (lambda: max, lambda m: setattr(m, "x", min), "Plain.x"),
    "function": (lambda: closure, lambda m: setattr(m, "x", slotted), "Plain.x"),
    "dtype": (lambda: torch.float32, lambda m: setattr(m, "x", torch.bfloat16), "Plain.x"),
    "decimal": (lambda: Decimal(1), lambda m: setattr(m, "x", Decimal(2)), "Plain.x"),
    "fraction": (lambda: Fraction(1), lambda m: setattr(m, "x", Fraction(2)), "Plain.x"),
    "own_number": (lambda: Whole(1), lambda m: setattr(m, "x", Whole(2)), "Plain.x"),
    "other_object": (lambda: [a := Counter(), a, Counter()], point_elsewhere, "Plain.x[1]"),
    "objects_as_keys": (
        lambda: {Counter(): 1, Counter(): 1},
        lambda m: m.x.__setitem__(next(iter(m.x)), 2),
        "Plain.x[Counter 0]",
    ),
    "vocabulary": (
        lambda: {str(i): i for i in range(60_000)}, lambda m: m.x.update({"7": 8}), "Plain.x"
    ),
    "parameter": (lambda: None, on_a_parameter, "Plain.inner.weight.rounds"),
    "tensor_hook": (
        lambda: None, lambda m: m.inner.weight.register_hook(closure()), "weight._backward_hooks"
    ),
    "lru_cache": (lambda: cached, lambda m: m.x(object()), "<global TALLY>[0]"),
    "thread_local": (Local, lambda m: setattr(m.x, "count", 1), "Plain.x.count"),
    "context": (lambda: VARIABLE, lambda m: m.x.set(object()), "Plain.x.get()"),
    "generator": (generated, lambda m: next(m.x), "Plain.x.<"),
    "list_iterator": (lambda: iter([1, 2]), lambda m: next(m.x), "Plain.x.<state>"),
    "cycle": (lambda: itertools.cycle([1, 2]), lambda m: next(m.x), "Plain.x.<state>"),
    "enumerate": (lambda: enumerate([1, 2]), lambda m: next(m.x), "Plain.x.<state>"),
    "class_by_name": (lambda: counts_in_a_class, lambda m: m.x(), "<class total>"),
    "environment": (
        lambda: None, lambda m: os.environ.__setitem__("BAMBOO_TEST", "1"), "os.environ"
    ),
    "attribute": (lambda: 1, lambda m: setattr(m, "x", 2), "Plain.x"),
    "from_none": (lambda: None, lambda m: setattr(m, "x", 2), "Plain.x"),
    "list": (lambda: [1, 2], lambda m: m.x.append(3), "Plain.x[2]"),
    "dict": (lambda: {"a": 1}, lambda m: m.x.update(a=2), "Plain.x['a']"),
    "set": (lambda: {1}, lambda m: m.x.add(2), "Plain.x{}[1]"),
    "deque": (lambda: collections.deque([1]), lambda m: m.x.append(2), "Plain.x[1]"),
    "tensor": (lambda: torch.zeros(2), lambda m: m.x.add_(1), "Plain.x"),
    "array": (lambda: np.zeros(2000), lambda m: m.x.__setitem__(1000, 1), "Plain.x"),
    "object": (Counter, lambda m: setattr(m.x, "count", 1), "Plain.x.count"),
    "class": (Counter, lambda m: setattr(Counter, "total", Counter.total + 1), "<class total>"),
    "slot": (slotted, lambda m: setattr(m.x, "seen", 2), "Plain.x.seen"),
    "closure": (closure, lambda m: m.x(), "Plain.x.<count>"),
    "partial": (lambda: functools.partial(closure()), lambda m: m.x(), "Plain.x.func.<count>"),
    "iterator": (lambda: itertools.count(), lambda m: next(m.x), "Plain.x"),
    "torch_generator": (torch.Generator, lambda m: torch.rand(1, generator=m.x), "Plain.x"),
    "numpy_generator": (lambda: np.random.default_rng(1), lambda m: m.x.random(), "Plain.x"),
    "numpy_state": (lambda: np.random.RandomState(1), lambda m: m.x.rand(), "Plain.x"),
    "python_generator": (lambda: random.Random(1), lambda m: m.x.random(), "Plain.x"),
    "global": (lambda: None, lambda m: m(torch.zeros(2)), "Plain.forward().<global TALLY>[0]"),
    "hook": (closure, lambda m: m.inner.register_forward_hook(m.x), "_forward_hooks"),
    "submodule": (
        lambda: None, lambda m: setattr(m.inner, "in_features", 3), "Plain.inner.in_features"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_named_by_its_path(case, monkeypatch):
    monkeypatch.setenv("BAMBOO_TEST", "0")
    make, change, path = CHANGES[case]
    module = Plain(x=make())
    before = look(module)
    assert reachable.changed(before, look(module)) == []
    change(module)
    found = reachable.changed(before, look(module))
    assert len(found) >= 1
    assert any(path in x for x in found)


def test_parameters_and_views_of_them_are_carried_by_records():
    module = Plain()
    module.view = module.inner.weight.data[0]
    before = look(module)
    with torch.no_grad():
        module.inner.weight.add_(1)
    assert reachable.changed(before, look(module)) == []


def test_generators_are_found_wherever_they_are():
    generator = torch.Generator()
    module = Plain(x=[{"g": generator}])
    ((path, found),) = reachable.generators({"Plain": module}).values()
    assert found is generator
    assert path == "Plain.x[0]['g']"


def test_a_circle_ends():
    module = Plain(x=[])
    module.x.append(module.x)
    assert len(look(module)) < 200


def test_the_optimizer_s_state_is_left_to_its_record():
    module = Plain()
    optimizer = torch.optim.AdamW(module.parameters())
    roots = {"optimizer": optimizer}
    before = reachable.snapshot(roots, (), optimizer)
    module(torch.zeros(2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 2.0
    assert reachable.changed(before, reachable.snapshot(roots, (), optimizer)) == []
    optimizer.rounds = 1
    after = reachable.snapshot(roots, (), optimizer)
    assert reachable.changed(before, after) == ["optimizer.rounds"]


def test_the_state_of_an_optimizer_within_another_is_in_no_record():
    module = Plain()
    outer, inner = (torch.optim.AdamW(module.parameters()) for _ in range(2))
    outer.inner = inner
    carried = [reachable.address(p) for p in module.parameters()]
    before = reachable.snapshot({"optimizer": outer}, carried, outer)
    module(torch.zeros(2)).sum().backward()
    inner.step()
    carried = [reachable.address(p) for p in module.parameters()]
    found = reachable.changed(before, reachable.snapshot({"optimizer": outer}, carried, outer))
    assert found
    assert all(path.startswith("optimizer.inner.state[") for path in found)
