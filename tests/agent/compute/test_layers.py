"""A record of a layer carries all that decides the next update; those of before still load."""

from __future__ import annotations

import base64
import json

import pytest
import safetensors.torch
import torch
from torch import nn

from bamboo_agent.compute import optim
from bamboo_agent.compute.layers import Layer
from bamboo_agent.compute.optimizer_state import RATE
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import StateError, have_equal_bits
from bamboo_agent.payloads.serialization import pack, unpack
from bamboo_core.model.items import Kind

CPU = torch.device("cpu")
FILE_OF_BEFORE = (
    "YAMAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJleHRyYSI6IntcIndlaWdodFwiOiB7XCJub3RlXCI6IFtcImFcIiwg"
    "MS41LCBudWxsXX19In0sIm9wdGltL3NjYWxlL2V4cF9hdmciOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6W10sImRh"
    "dGFfb2Zmc2V0cyI6WzAsNF19LCJvcHRpbS9zY2FsZS9leHBfYXZnX3NxIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUi"
    "OltdLCJkYXRhX29mZnNldHMiOls0LDhdfSwib3B0aW0vc2NhbGUvbXVfcHJvZHVjdCI6eyJkdHlwZSI6IkYzMiIs"
    "InNoYXBlIjpbXSwiZGF0YV9vZmZzZXRzIjpbOCwxMl19LCJvcHRpbS9zY2FsZS9zdGVwIjp7ImR0eXBlIjoiRjMy"
    "Iiwic2hhcGUiOltdLCJkYXRhX29mZnNldHMiOlsxMiwxNl19LCJvcHRpbS93ZWlnaHQvZXhwX2F2ZyI6eyJkdHlw"
    "ZSI6IkYzMiIsInNoYXBlIjpbMiwzXSwiZGF0YV9vZmZzZXRzIjpbMTYsNDBdfSwib3B0aW0vd2VpZ2h0L2V4cF9h"
    "dmdfc3EiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzIsM10sImRhdGFfb2Zmc2V0cyI6WzQwLDY0XX0sIm9wdGlt"
    "L3dlaWdodC9tdV9wcm9kdWN0Ijp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOltdLCJkYXRhX29mZnNldHMiOls2NCw2"
    "OF19LCJvcHRpbS93ZWlnaHQvc3RlcCI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbXSwiZGF0YV9vZmZzZXRzIjpb"
    "NjgsNzJdfSwicGFyYW0vc2NhbGUiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6W10sImRhdGFfb2Zmc2V0cyI6Wzcy"
    "LDc2XX0sInBhcmFtL3dlaWdodCI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMiwzXSwiZGF0YV9vZmZzZXRzIjpb"
    "NzYsMTAwXX0sImJ1ZmZlci9tYXNrIjp7ImR0eXBlIjoiQk9PTCIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6"
    "WzEwMCwxMDJdfX0gICBcj8I9qAEDOip2Tz4AAABAXI/Cvei0gb3otAG9XI9Csei0AT3otIE9qAEDOn7maDl+5mg4"
    "qAEDIX7maDh+5mg5KnZPPgAAAEBYsyM9lYnrPsrEFT/KxDU/aHkmP1yzIz3W7Cg+AQA="
)
"""A checkpoint's file that the version before wrote for the layer below, after two updates."""
CHECKSUM_OF_BEFORE = 2274660468156181


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3) / 8)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("mask", torch.tensor([True, False]))


class Keeper(torch.optim.Optimizer):
    """Adds what the test says to its state in each step, and moves the weights by it."""

    def __init__(self, parameters, keep=lambda *_: None, **defaults):
        super().__init__(parameters, {"lr": 0.1, "rounds": 0, **defaults})
        self.keep = keep

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["rounds"] += 1
            for parameter in group["params"]:
                self.keep(self, group, parameter)
                parameter.add_(parameter.grad, alpha=-group["lr"] * group["rounds"])


def layer(make, module=Weights):
    return Layer(module(), make)


def keeper(keep=lambda *_: None, **defaults):
    return lambda parameters: Keeper(parameters, keep, **defaults)


def update(found, steps, begin=0):
    size = sum(p.numel() for p in found.parameters)
    for step in range(begin, begin + steps):
        optim.update(found, torch.linspace(-1, 1, size), scale=0.5, step=step)


def copy(found, make, module=Weights):
    """A fresh layer with the record, which has passed a wire."""
    sent = pack(found.record())
    fresh = layer(make, module)
    fresh.restore(unpack(Kind.VER, sent.meta, sent.tensors, CPU))
    return fresh


def assert_equal(one, other):
    mine, theirs = one.record(), other.record()
    assert mine.extra == theirs.extra
    assert mine.tensors.keys() == theirs.tensors.keys()
    for name, tensor in mine.tensors.items():
        assert tensor.dtype == theirs.tensors[name].dtype
        assert have_equal_bits(tensor, theirs.tensors[name]), name
    assert one.checksum() == other.checksum()


def count_in_state(optimizer, group, parameter):
    optimizer.state[parameter]["count"] = optimizer.state[parameter].get("count", 0) + 1


def tensors_in_a_list(optimizer, group, parameter):
    q = optimizer.state[parameter].setdefault("Q", [torch.zeros(2), (torch.ones(()), 1)])
    q[0].add_(1)


def tensors_in_a_dictionary(optimizer, group, parameter):
    kept = optimizer.state[parameter].setdefault("kept", {"a": torch.zeros(2), "#b": (1, "x")})
    kept["a"].sub_(0.5)


def shared_state(optimizer, group, parameter):
    shared = optimizer.state.setdefault("all", {"norm": torch.zeros(())})
    shared["norm"].add_(parameter.grad.norm())


def tensor_in_the_group(optimizer, group, parameter):
    group["d"] = group.get("d", torch.ones(())) * 1.5


def own_rate(optimizer, group, parameter):
    group["lr"] *= 0.5


def other_dtypes(optimizer, group, parameter):
    state = optimizer.state[parameter]
    state["low"] = parameter.detach().bfloat16()
    state["flags"] = torch.tensor([True, False])
    state["wide"] = torch.full((3,), 1e-300, dtype=torch.float64)


KEPT = [
    count_in_state,
    tensors_in_a_list,
    tensors_in_a_dictionary,
    shared_state,
    tensor_in_the_group,
    own_rate,
    other_dtypes,
]


@pytest.mark.parametrize("keep", KEPT)
def test_a_copy_goes_on_as_its_original(keep):
    make = keeper(keep)
    one = layer(make)
    update(one, 2)
    other = copy(one, make)
    assert_equal(one, other)
    for found in (one, other):
        update(found, 2, begin=2)
    assert_equal(one, other)


def test_types_of_values_stay():
    make = keeper(tensors_in_a_dictionary)
    one = layer(make)
    update(one, 1)
    other = copy(one, make)
    kept = other.optimizer.state[other.parameters[0]]["kept"]
    assert list(kept) == ["#b", "a"]
    assert kept["#b"] == (1, "x")
    assert type(kept["#b"]) is tuple


def test_a_restore_forgets_what_the_record_does_not_have():
    make = keeper(tensor_in_the_group)
    fresh, used = layer(make), layer(make)
    update(used, 2)
    used.restore(fresh.record())
    assert "d" not in used.optimizer.param_groups[0]
    assert_equal(fresh, used)


def set_value(value):
    return lambda optimizer, group, parameter: optimizer.state[parameter].update(odd=value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (torch.float32, "optim/weight/odd is a torch.dtype; use a tensor, a number"),
        (object(), "optim/weight/odd is a object"),
        ([torch.ones(1).to_sparse()], "optim/weight/odd/0 is not a dense tensor"),
        ({1: 2}, "optim/weight/odd has the key 1; keys must be texts"),
        ({"\udce9": torch.ones(1)}, r"'optim/weight/odd/\\udce9' cannot be written as UTF-8; ren"),
    ],
)
def test_what_a_record_cannot_carry_is_named(value, complaint):
    found = layer(keeper(set_value(value)))
    update(found, 1)
    with pytest.raises(StateError, match=complaint):
        found.record()


def test_a_group_that_is_added_or_loses_a_value_is_named():
    found = layer(keeper())
    del found.optimizer.param_groups[0]["rounds"]
    with pytest.raises(StateError, match=r"param_groups\[0\] has lost 'rounds'"):
        found.record()
    found = layer(keeper())
    found.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(StateError, match="param_groups has 2 groups, 1 at first"):
        found.record()


def test_state_under_an_unknown_object_is_named():
    found = layer(keeper())
    found.optimizer.state[nn.Parameter(torch.ones(1))] = {"x": 1}
    with pytest.raises(StateError, match="a key of type Parameter"):
        found.record()


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.25)


class ChannelsLast(nn.Module):
    def __init__(self):
        super().__init__()
        made = torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(made)


def test_moments_keep_the_order_of_their_dimensions():
    one = layer(adam, ChannelsLast)
    update(one, 1)
    other = copy(one, adam, ChannelsLast)
    for key in ("exp_avg", "exp_avg_sq"):
        found = other.optimizer.state[other.parameters[0]][key]
        assert found.stride() == one.optimizer.state[one.parameters[0]][key].stride()
        assert not found.is_contiguous()
    assert_equal(one, other)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.down.weight = self.up.weight


def test_a_parameter_with_two_names_is_carried_once():
    one = layer(adam, Tied)
    update(one, 1)
    other = copy(one, adam, Tied)
    assert [name for name in one.record().tensors if name.startswith("param/")] == [
        "param/up.weight"
    ]
    assert other.module.down.weight is other.module.up.weight
    assert_equal(one, other)


@pytest.mark.parametrize("capturable", [False, True])
def test_state_goes_to_the_device_where_it_was(capturable):
    """Moments of a parameter without dimensions too; steps stay on the host unless a graph on the
    device counts them."""

    def make(parameters):
        return torch.optim.NAdam(parameters, lr=0.25)

    one = layer(make)
    update(one, 1)
    elsewhere = Layer(Weights().to("meta"), make)
    extra = one.record().extra
    if capturable:
        extra = '{"": {"places": {"optim/scale/step": "device"}}}'
    elsewhere.restore(LayerRecord(one.record().tensors, extra))
    weight, scale = (elsewhere.optimizer.state[p] for p in elsewhere.parameters)
    assert {k: v.device.type for k, v in weight.items()} == {
        "step": "cpu", "mu_product": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"
    }  # fmt: skip
    assert scale["exp_avg"].device.type == scale["exp_avg_sq"].device.type == "meta"
    assert scale["step"].device.type == ("meta" if capturable else "cpu")


def test_a_record_says_where_state_is_that_one_would_not_look_for_there():
    found = Layer(Weights().to("meta"), adam)
    on_host, on_device = torch.zeros(()), torch.zeros((), device="meta")
    weight, scale = found.parameters
    found.optimizer.state[weight] = {"step": on_host, "exp_avg": torch.zeros(2, 3)}
    found.optimizer.state[scale] = {"step": on_device, "exp_avg": on_device.clone()}
    assert json.loads(found.state().extra) == {
        "": {"places": {"optim/weight/exp_avg": "host", "optim/scale/step": "device"}}
    }


def nadam(parameters):
    made = torch.optim.NAdam(parameters, lr=0.25)
    setattr(made, RATE, None)
    return made


def test_a_file_of_the_version_before_loads_and_both_have_one_checksum():
    data = base64.b64decode(FILE_OF_BEFORE)
    header = int.from_bytes(data[:8], "little")
    assert b"extra" in data[8 : 8 + header]
    record = LayerRecord(safetensors.torch.load(data), '{"weight": {"note": ["a", 1.5, null]}}')
    loaded = layer(nadam)
    loaded.restore(record)
    again = layer(nadam)
    update(again, 2)
    again.optimizer.state[again.parameters[0]]["note"] = ["a", 1.5, None]
    assert loaded.checksum() == again.checksum() == CHECKSUM_OF_BEFORE
    for found in (loaded, again):
        update(found, 1, begin=2)
    assert_equal(loaded, again)
