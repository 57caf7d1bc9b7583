"""Groups of parameters, schedules, and clipping by groups."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import nn

from bamboo_agent.compute.layers import LayerBuilder, Use
from bamboo_agent.compute.optim import (
    check_patterns,
    check_ties,
    gradient_norm,
    group_norms,
    grouping,
    optimizer_factory,
    update,
)
from bamboo_agent.compute.votes import count
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.payloads import serialization
from bamboo_agent.payloads.kinds import Vote
from bamboo_core.api.spec import FactorySpec, OptimizerSpec, ParameterGroup
from bamboo_core.model.items import Kind

CPU = torch.device("cpu")
GROUPS = (
    ParameterGroup(("*bias", "norm.*"), {"weight_decay": 0.0}),
    ParameterGroup(("*weight",), {"lr": 0.5, "betas": [0.5, 0.75]}),
)
ADAMW = OptimizerSpec("torch.optim:AdamW", {"lr": 0.25, "weight_decay": 0.125}, GROUPS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.scale = nn.Parameter(torch.ones(3))


def built(spec, module=Block):
    make = optimizer_factory(spec, seed=1)
    model = Model([module], nn.functional.mse_loss)
    return LayerBuilder(model, make, seed=1, device=CPU, group=grouping(spec)).build(0)


def seen(layer):
    """Names of parameters, lr and weight decay of each group."""
    names = dict(zip(map(id, layer.parameters), layer.names, strict=True))
    return [
        ([names[id(p)] for p in group["params"]], group["lr"], group["weight_decay"])
        for group in layer.optimizer.param_groups
    ]


def test_the_first_group_that_matches_decides_and_the_rest_have_args_alone():
    assert seen(built(ADAMW)) == [
        (["inner.bias", "norm.weight", "norm.bias"], 0.25, 0.0),
        (["inner.weight"], 0.5, 0.125),
        (["scale"], 0.25, 0.125),
    ]


def test_groups_without_parameters_in_a_layer_are_left_out():
    layer = built(ADAMW, lambda: nn.Linear(2, 2, bias=False))
    assert seen(layer) == [(["weight"], 0.5, 0.125)]


def test_a_layer_without_parameters_has_no_optimizer():
    assert built(ADAMW, nn.ReLU).optimizer is None


SCHEDULE = FactorySpec("bamboo_agent.schedules:linear", {"total_steps": 4})


def test_a_schedule_multiplies_each_groups_own_rate():
    layer = built(replace(ADAMW, schedule=SCHEDULE))
    rates = []
    for step in range(5):
        update(layer, torch.ones(layer.size), scale=1.0, step=step)
        rates.append([group["lr"] for group in layer.optimizer.param_groups])
    assert rates == [[0.25 * x, 0.5 * x, 0.25 * x] for x in (1.0, 0.75, 0.5, 0.25, 0.0)]


def test_a_copy_goes_on_with_the_same_bits_and_the_names_of_its_groups(users):
    def named(groups, **args):
        """As a factory that gives torch named parameters makes them."""
        named = [
            {**group, "params": [(f"p{i}.{j}", p) for j, p in enumerate(group["params"])]}
            for i, group in enumerate(groups)
        ]
        return torch.optim.AdamW(named, **args)

    spec = replace(ADAMW, factory=users(named), schedule=SCHEDULE)
    one, copy = built(spec), built(spec)
    gradient = torch.linspace(-1, 1, one.size)
    for step in range(3):
        update(one, gradient, scale=1.0, step=step)
    copy.restore(one.record())
    for layer in (one, copy):
        update(layer, gradient, scale=0.5, step=3)
    assert one.checksum() == copy.checksum()
    names = [group["param_names"] for group in copy.optimizer.param_groups]
    assert names == [["p0.0", "p0.1", "p0.2"], ["p1.0"], ["p2.0"]]


@pytest.fixture
def users(monkeypatch):
    """Puts a function into a module, and returns its name."""

    def put(function):
        module = ModuleType("users_optimizer")
        module.build = function
        monkeypatch.setitem(sys.modules, "users_optimizer", module)
        return "users_optimizer:build"

    return put


def test_a_factory_of_the_users_sees_torchs_groups_or_without_groups_a_list(users):
    given = []

    def build(parameters, **args):
        kept = [dict(x) for x in parameters] if isinstance(parameters[0], dict) else parameters
        given.append((kept, args))
        return torch.optim.SGD(parameters, **args)

    group = ParameterGroup(("bias",), {"momentum": 0.5})
    layer = built(OptimizerSpec(users(build), {"lr": 0.5}, (group,)), lambda: nn.Linear(2, 2))
    (parameters, args) = given[-1]
    assert args == {"lr": 0.5}
    assert [(len(x["params"]), x.get("momentum")) for x in parameters] == [(1, 0.5), (1, None)]
    assert parameters[0]["params"][0] is layer.module.bias
    built(OptimizerSpec(users(build), {"lr": 0.5}), lambda: nn.Linear(2, 2))
    assert all(isinstance(p, nn.Parameter) for p in given[-1][0])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ({"weight_decai": 0.0}, "refuses them with TypeError: .*'weight_decai'"),
        ({"lr": -1.0}, "refuses them with ValueError: Invalid learning rate: -1"),
    ],
)
def test_args_that_the_optimizer_refuses_are_named_with_group_and_layer(args, complaint):
    spec = replace(ADAMW, groups=(*GROUPS, ParameterGroup(("scale",), args)))
    where = r"^layer 0, Block: spec\.training\.optimizer\.groups\[2\]\.args: torch.optim:AdamW "
    with pytest.raises(FactoryError, match=where + complaint):
        built(spec)


def test_an_arg_that_is_no_option_of_a_group_is_refused():
    group = ParameterGroup(("*",), {"warmup_steps": 3})
    spec = OptimizerSpec("bamboo_agent.compute.optim:adamw", {}, (group,))
    with pytest.raises(FactoryError, match=r"groups\[0\].args: 'warmup_steps' is no option of a"):
        built(spec)


def test_a_pattern_that_matches_nothing_is_refused_with_near_names():
    names = [("embed.weight",), ("inner.weight", "inner.bias", "norm.weight", "norm.bias")]
    check_patterns(ADAMW, names)
    spec = replace(ADAMW, groups=(*GROUPS, ParameterGroup(("*bias", "*.biass"), {})))
    with pytest.raises(FactoryError) as error:
        check_patterns(spec, names)
    assert str(error.value) == (
        "spec.training.optimizer.groups[2].parameters: '*.biass' matches no parameter of any layer;"
        " names within layers are norm.bias, inner.bias, ..."
    )


def test_a_tied_parameter_is_in_one_group():
    group = ParameterGroup(("table.*",), {"weight_decay": 0.0})
    tie = (Use(0, "table.weight", slice(0, 4)), Use(3, "project.weight", slice(4, 8)))
    check_ties(ADAMW, [tie])
    with pytest.raises(
        FactoryError, match=r"table.weight of layer 0 and project.weight of layer 3"
    ):
        check_ties(replace(ADAMW, groups=(group,)), [tie])


GIVES = "spec.training.optimizer.schedule: the function of users_optimizer:build gives"


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (lambda: 0.5, "returned a float; return a function of the step"),
        (lambda: lambda step: 1.0 - step, f"{GIVES} -1.0 for step 2; it must give a number"),
        (lambda: lambda step: math.nan, f"{GIVES} nan for step 2"),
    ],
)
def test_schedules_that_give_no_factor(made, complaint, users):
    spec = replace(ADAMW, schedule=FactorySpec(users(made)))
    with pytest.raises(FactoryError, match=complaint):
        update(layer := built(spec), torch.ones(layer.size), scale=1.0, step=2)


def test_a_rate_that_raises_names_its_factory(users):
    def rate(step):
        raise RuntimeError("no rate.")

    def made(parameters):
        return torch.optim.SGD(parameters, lr=0.1), rate

    layer = built(OptimizerSpec(users(made)))
    with pytest.raises(FactoryError) as error:
        update(layer, torch.ones(layer.size), scale=1.0, step=60)
    assert str(error.value) == (
        "spec.training.optimizer.factory: the rate of users_optimizer:build raised RuntimeError: no"
        " rate for step 60; it must give a number from 0 on"
    )


def test_a_schedule_beside_a_rate_and_without_a_learning_rate_are_refused(users):
    rated = OptimizerSpec("bamboo_agent.compute.optim:adamw", {}, schedule=SCHEDULE)
    with pytest.raises(FactoryError, match="return the optimizer alone, or leave the schedule out"):
        built(rated)

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"size": 1.0})

    with pytest.raises(FactoryError, match=r"param_groups\[0\] of Own has no lr"):
        built(OptimizerSpec(users(Own), schedule=SCHEDULE))


# ------------------------------------------------------------ clipping


def test_norms_of_groups():
    gradient = torch.tensor([3.0, 4.0, 12.0, 2.0, 0.0])
    assert group_norms(gradient, [2, 1, 2], [0, 0, 2], 3) == (13.0, 0.0, 2.0)
    assert group_norms(torch.zeros(0), [], [], 2) == (0.0, 0.0)


def test_norms_do_not_depend_on_where_the_gradient_lies():
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(1000, generator=generator)
    found = set()
    for offset in range(5):
        buffer = torch.cat([torch.zeros(offset), gradient])
        found.add(group_norms(buffer[offset:], [333, 667], [0, 1], 2))
    assert len(found) == 1


def test_each_parameter_is_scaled_by_itself():
    layer = built(OptimizerSpec("torch.optim:SGD", {"lr": 1.0}), lambda: nn.Linear(2, 1))
    before = [p.detach().clone() for p in layer.parameters]
    update(layer, torch.ones(3), scale=[0.5, 0.25], step=0)
    changes = [(b - p).flatten().tolist() for b, p in zip(before, layer.parameters, strict=True)]
    assert changes == [pytest.approx([0.5, 0.5]), pytest.approx([0.25])]


def test_votes_carry_norms_of_groups_and_commits_add_them_up_over_layers():
    cast = [
        Vote({1: 5.0}, {0: 1.0}, group_norms={1: (3.0, 4.0)}),
        Vote({0: 4.0, 1: 5.0}, {1: 1.0}, group_norms={0: (4.0, 0.0), 1: (3.0, 4.0)}),
    ]
    record = count(3, cast, {})
    assert record == count(3, cast[::-1], {})
    assert record.group_norms == (5.0, 4.0)
    assert count(3, [Vote({0: 1.0})], {}).group_norms == ()
    packed = serialization.pack(cast[1])
    meta = {**packed.meta, "claims": {}}
    assert serialization.unpack(Kind.VOTE, meta, (), CPU) == cast[1]
    assert "group_norms" not in serialization.pack(Vote({0: 1.0})).meta  # as before


@pytest.mark.parametrize("offset", range(17))
def test_a_norm_is_taken_at_an_aligned_address(offset, monkeypatch):
    addresses, inner = [], torch.linalg.vector_norm
    buffer = torch.linspace(-1, 1, 1000)
    usual = inner(buffer[offset:].clone())

    def watched(values):
        addresses.append(values.data_ptr())
        return inner(values)

    monkeypatch.setattr(torch.linalg, "vector_norm", watched)
    assert torch.equal(gradient_norm(buffer[offset:]), usual)
    (address,) = addresses
    assert address % 64 == 0
