"""Values come apart into tensors and a form, and together again, whatever their nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bamboo_agent.payloads.flow import Flow, FlowError, checked
from bamboo_agent.payloads.serialization import SerializationError, pack, unpack
from bamboo_core.model.items import Kind

CONSTANTS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
TENSORS = st.integers(0, 9).map(lambda n: torch.tensor([float(n)]))
VALUES = st.recursive(
    CONSTANTS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(VALUES)
def test_a_value_comes_together_as_it_was(value: Any) -> None:
    flow = Flow.of(value)
    if flow.form is None:
        wanted = value if isinstance(value, torch.Tensor) or len(value) > 1 else value[0]
        assert same(flow.value, tuple(wanted) if isinstance(wanted, list) else wanted)
    else:
        assert same(flow.value, value)
    assert Flow.of(flow) is flow


@given(VALUES)
def test_a_value_travels(value: Any) -> None:
    flow = Flow.of(value)
    packed = pack(flow)
    meta = json.loads(json.dumps(packed.meta))
    again = unpack(Kind.OUT, meta, packed.tensors, torch.device("cpu"))
    assert isinstance(again, Flow)
    assert same(again.value, flow.value)
    assert same(again.arguments, flow.arguments)


@given(VALUES)
def test_a_change_of_tensors_keeps_the_form(value: Any) -> None:
    flow = Flow.of(value)
    changed = flow.map(lambda tensor: tensor + 1)
    assert changed.form == flow.form
    assert [float(x) for x in changed] == [float(x) + 1 for x in flow]


ONE, TWO = torch.tensor([1.0]), torch.tensor([2.0])


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (ONE, (ONE,)),
        ((ONE, TWO), (ONE, TWO)),
        ([ONE, TWO], (ONE, TWO)),
        ((ONE, None), (ONE, None)),
        ([ONE, 3], (ONE, 3)),
        ({"a": ONE}, ({"a": ONE},)),
        ((ONE, {"a": TWO}), (ONE, {"a": TWO})),
    ],
)
def test_parts_of_a_tuple_are_arguments_and_a_dict_is_one(value: Any, arguments: Any) -> None:
    assert same(Flow.of(value).arguments, arguments)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "a object"),
        ((ONE, {1.5}), "a set in place 1 of a tuple"),
        ({"a": [ONE, b"x"]}, "a bytes in place 1 of a list under 'a'"),
        ({"a": {2.5: ONE}}, "a key of type float under 'a'"),
    ],
)
def test_what_cannot_flow_is_named(value: Any, what: str) -> None:
    with pytest.raises(FlowError) as raised:
        Flow.of(value)
    assert raised.value.what == what


@pytest.mark.parametrize(
    "form",
    [
        [],
        "tensor",
        ["tensor", 1],
        ["constant"],
        ["constant", [1]],
        ["set", [["tensor"]]],
        ["tuple", ["tensor"]],
        ["dict", [["a"]]],
        ["dict", [[1.5, ["tensor"]]]],
        ["tuple", [["tensor"], ["tensor"]]],
        {"tensor": 1},
    ],
)
def test_a_form_that_is_none_is_refused(form: Any) -> None:
    with pytest.raises(SerializationError):
        unpack(Kind.OUT, {"form": form}, (ONE,), torch.device("cpu"))


def test_a_form_is_not_endless() -> None:
    form: Any = ["tensor"]
    for _ in range(31):
        form = ["tuple", [form]]
    assert checked(form, 1) == form
    for _ in range(5000):
        form = ["tuple", [form]]
    with pytest.raises(ValueError, match="none"):
        checked(form, 1)
