"""Whether a layer comes from (seed, layer) alone, and belongs to nobody else.

A layer is built three times: before its first update, and twice after it. Two builds that share
memory compare equal whatever happens, so sharing is looked for first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bamboo_agent.compute.layers import Layer
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.probe import reachable
from bamboo_agent.setup.probe.reachable import address
from bamboo_agent.setup.probe.refusal import RefusedError

_TIED = (
    "a parameter belongs to one layer, since each layer is updated on its own: give each layer its"
    " own, and name those that are one in Model.ties"
)
_COPY = "a buffer belongs to one layer: register a copy of it (.clone())"
_CUT = (
    "make a new module in the layer's function each time, for example"
    " `layers=[lambda: Block(width), ...]` instead of `[lambda: blocks[0], ...]`"
)


def named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters and buffers with their names."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def check_dense(module: nn.Module) -> None:
    """RefusedError if elements of a parameter or buffer share memory with each other."""
    for name, tensor in named(module):
        if tensor.layout is torch.strided and any(
            not stride and size > 1
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        ):
            raise RefusedError(
                f"its {name} is expanded, so its elements share memory: make it with .contiguous()"
            )


class Owners:
    """Which layer has which parameter, buffer and module. Layers that are gone own nothing."""

    def __init__(self) -> None:
        self._tensors: list[tuple[int, str, Any]] = []
        self._modules: list[tuple[int, str, Any]] = []

    def claim(self, index: int, module: nn.Module) -> None:
        """Note what the layer has. RefusedError if another layer has something of it."""
        storages: dict[int, tuple[int, str]] = {}
        for owner, name, reference in self._tensors:
            tensor = reference()
            if tensor is not None and (key := address(tensor)):
                storages[key] = owner, name
        for name, tensor in named(module):
            if found := storages.get(address(tensor)):
                owner, other = found
                raise RefusedError(f"its {name} is {other} of layer {owner}: {_TIED}")
        others = {id(m): (i, n) for i, n, r in self._modules if (m := r()) is not None}
        for name, child in module.named_modules():
            if found := others.get(id(child)):
                owner, other = found
                raise RefusedError(
                    f"its module {name or 'itself'!r} ({type(child).__name__}) is"
                    f" {other or 'itself'!r} of layer {owner}: {_CUT}"
                )
        self._tensors += [(index, name, weakref.ref(tensor)) for name, tensor in named(module)]
        self._modules += [
            (index, name, weakref.ref(child)) for name, child in module.named_modules()
        ]


def check_apart(one: Layer, other: Layer) -> None:
    """RefusedError if two builds of a layer share a module, memory or a generator."""
    modules = {id(child) for child in one.module.modules()}
    for name, child in other.module.named_modules():
        if id(child) in modules:
            what = f"module {name!r}" if name else "module"
            raise RefusedError(
                f"its function returns the same {what} each time it is called: {_CUT}"
            )
    storages = {address(tensor) for _, tensor in named(one.module)} - {0}
    for name, tensor in named(other.module):
        if address(tensor) in storages:
            remedy = _TIED if isinstance(tensor, nn.Parameter) else _COPY
            raise RefusedError(
                f"its {name} is the same memory each time it is built, so it is shared with"
                f" whatever made it: {remedy}"
            )
    known = reachable.generators({"layer": one.module})
    for number, (path, _) in reachable.generators({"layer": other.module}).items():
        if number in known:
            raise RefusedError(
                f"{path} is a random generator from outside of the layer's function: draw from"
                " torch's own generator, which is seeded for each forward"
            )


def check_equal(first: LayerRecord, built: Layer) -> None:
    """RefusedError unless a new build has the state that the first one had. first: its record."""
    name = difference(first, built.state())
    if name:
        raise RefusedError(
            f"its {name} differs when it is built again: the first weights of a layer must come"
            " from torch's, numpy's or random's own generators, which are seeded by (spec.seed,"
            " layer) before each build, and from nothing that an earlier build or an update has"
            " changed"
        )


def difference(one: LayerRecord, other: LayerRecord) -> str:
    """The name of something that differs between two states; empty: nothing does."""
    for name in sorted(one.tensors.keys() | other.tensors.keys()):
        a, b = one.tensors.get(name), other.tensors.get(name)
        if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
            return name
        if not have_equal_bits(a, b):
            return name
    return "" if one.extra == other.extra else f"optimizer's state ({other.extra[:80]})"
