"""Micro-batches, and errors, in memory that one process fills and another one takes.

The memory has no name (memfd), so nothing is left of it when both processes have gone. It begins
with a header in JSON, and the tensors follow at multiples of 256 bytes, which every kernel can
read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from bamboo_agent.data.needs import Part
from bamboo_agent.payloads.flow import put_together, take_apart

_ALIGNED = 256
_MOST_BUFFERS = 512  # of one call; the system takes 1024
_SPARSE = {  # how its tensors are called, by layout
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class HandingError(TypeError):
    """A tensor that cannot be handed over. The text says which."""


class Handed(NamedTuple):
    """memory: its descriptor; header, body: bytes of both, without what lies between them."""

    memory: int
    header: int
    body: int


def hand_over(parts: Mapping[Part, Any]) -> Handed:
    """Write parts of a micro-batch. FlowError, HandingError: a part cannot be handed over."""
    body = _Body()
    forms = {}
    for part, value in parts.items():
        tensors: list[torch.Tensor] = []
        form = take_apart(value, tensors, "")
        forms[int(part)] = {"form": form, "tensors": [body.add(x) for x in tensors]}
    return _written({"parts": forms}, body)


def hand_over_record(record: Mapping[str, Any]) -> Handed:
    """Write a JSON object instead, such as an error."""
    return _written({"record": record}, _Body())


def taken(handed: Handed) -> dict[Part, Any] | Mapping[str, Any]:
    """Read what was handed over: the parts, or the record. It closes the descriptor."""
    try:
        header = json.loads(_read(handed.memory, memoryview(bytearray(handed.header)), 0))
        if "record" in header:
            found: Mapping[str, Any] = header["record"]
            return found
        body = torch.empty(handed.body, dtype=torch.uint8)
        if handed.body:
            _read(handed.memory, memoryview(body.numpy().data), _aligned(handed.header))
    finally:
        os.close(handed.memory)
    made: dict[Part, Any] = {}
    for part, found in header["parts"].items():
        tensors = [_tensor(record, body) for record in found["tensors"]]
        made[Part(int(part))] = put_together(found["form"], iter(tensors))
    return made


class _Body:
    """The bytes of all tensors."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self.size = 0

    def add(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Its record."""
        tensor = tensor.detach()
        if tensor.is_nested or tensor.device.type != "cpu":
            kind = "nested" if tensor.is_nested else f"on {tensor.device}"
            raise HandingError(f"a tensor is {kind}; return dense ones on the CPU")
        if tensor.layout in _SPARSE:
            parts = [self.add(getattr(tensor, name)()) for name in _SPARSE[tensor.layout]]
            record = {"layout": str(tensor.layout).removeprefix("torch."), "parts": parts}
            is_coo = tensor.layout is torch.sparse_coo
            is_joined = is_coo and tensor.is_coalesced()
            return record | {"shape": list(tensor.shape), "is_coalesced": is_joined}
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise HandingError(f"a tensor is of layout {tensor.layout}, {tensor.dtype}")
        return self._add_dense(tensor.resolve_conj().resolve_neg())

    def _add_dense(self, tensor: torch.Tensor) -> dict[str, Any]:
        """With its strides, so that kernels that read it add in the same order."""
        shape, strides = list(tensor.shape), list(tensor.stride())
        at, span = self.size, 0
        if tensor.numel():
            span = 1 + sum((n - 1) * by for n, by in zip(shape, strides, strict=True))
            whole = tensor.as_strided((span,), (1,), tensor.storage_offset())
            self._append(whole.view(torch.uint8).numpy().data)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"at": at, "dtype": dtype, "shape": shape, "strides": strides, "span": span}

    def _append(self, data: memoryview) -> None:
        rest = _aligned(len(data)) - len(data)
        self.buffers += [data, bytes(rest)]
        self.size += len(data) + rest


def _tensor(record: Mapping[str, Any], body: torch.Tensor) -> torch.Tensor:
    shape = record["shape"]
    if "layout" in record:
        parts = [_tensor(part, body) for part in record["parts"]]
        layout = getattr(torch, record["layout"])
        if layout is not torch.sparse_coo:
            make: Any = torch.sparse_compressed_tensor
            compressed: torch.Tensor = make(*parts, shape, layout=layout)
            return compressed
        indices, values = parts
        is_coalesced = record["is_coalesced"]
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced)
    dtype = getattr(torch, record["dtype"])
    if not record["span"]:
        return torch.empty_strided(shape, record["strides"], dtype=dtype)
    at, size = record["at"], record["span"] * dtype.itemsize
    flat = body[at : at + size].view(dtype)
    return flat.as_strided(shape, record["strides"], flat.storage_offset())


def _written(header: Mapping[str, Any], body: _Body) -> Handed:
    begin = json.dumps(header).encode()
    buffers: list[Any] = [begin]
    if body.size:
        buffers += [bytes(_aligned(len(begin)) - len(begin)), *body.buffers]
    memory = os.memfd_create("bamboo-micro-batch")
    try:
        for at in range(0, len(buffers), _MOST_BUFFERS):
            _write(memory, buffers[at : at + _MOST_BUFFERS])
    except OSError:
        os.close(memory)
        raise
    return Handed(memory, len(begin), body.size)


def _write(memory: int, buffers: Sequence[Any]) -> None:
    rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while rest:
        written = os.writev(memory, rest)
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]


def _read(memory: int, place: memoryview, at: int) -> bytes | bytearray:
    done = 0
    while done < len(place):
        count = os.preadv(memory, [place[done:]], at + done)
        if not count:
            raise EOFError(f"the memory of a micro-batch has {at + done} bytes")
        done += count
    found = place.obj
    return found if isinstance(found, bytearray) else b""


def _aligned(size: int) -> int:
    return -size % _ALIGNED + size
