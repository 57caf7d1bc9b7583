"""Hashes samples by all of their content. What has none that can be compared is refused by name.

The hash of tensors, numbers, strings, None and tuples of them never changes: agents of another
version of Bamboo may be in the same job.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Number
from typing import Any

import numpy as np
import torch

from bamboo_agent.data.forms import MisfitError

_PARTS = {  # of sparse tensors, by layout
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def content_hash(sample: Any, index: int) -> tuple[bytes, int]:
    """The hash of a sample and the bytes that went into it. MisfitError names the sample."""
    content = _Content()
    try:
        content.add(sample)
    except _NoContentError as error:
        kind = type(error.value)
        raise MisfitError(
            f"sample {index}: it holds a {kind.__module__}.{kind.__qualname__}, which has no bytes"
            " to compare between agents; return tensors, arrays, numbers or tuples of them"
        ) from error
    return content.digest.digest(), content.size


class _NoContentError(Exception):
    def __init__(self, value: object) -> None:
        self.value = value


class _Content:
    """A hash and its size. Kinds after the first three begin with a zero byte and their name."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0

    def _update(self, data: bytes) -> None:
        self.digest.update(data)
        self.size += len(data)

    def _begin(self, *facts: object) -> None:
        self._update(b"\0" + "|".join(map(str, facts)).encode() + b"\0")

    def _elements(self, values: Iterable[Any]) -> None:
        for value in values:
            self._begin("element")
            self.add(value)

    def add(self, value: Any) -> None:
        if isinstance(value, tuple | list):
            for part in value:
                self.add(part)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif _is_plain(value):
            self._update(repr(value).encode())
        elif isinstance(value, np.ndarray | np.generic):
            self._array(np.asarray(value))
        elif isinstance(value, Mapping):
            self._begin("dict", len(value))
            for key, part in sorted(value.items(), key=lambda item: repr(item[0])):
                self._elements((key, part))
        elif isinstance(value, Set):
            self._begin("set", len(value))
            self._elements(sorted(value, key=repr))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._begin("dataclass", type(value).__module__, type(value).__qualname__)
            for field in dataclasses.fields(value):
                self._begin(field.name)
                self.add(getattr(value, field.name))
        else:
            self._other(value)

    def _tensor(self, value: torch.Tensor) -> None:
        if value.is_nested:
            parts = value.unbind()
            self._begin("nested", len(parts))
            self.add(parts)
        elif value.layout is torch.strided:
            value = value.detach().cpu().resolve_conj().resolve_neg()
            self._update(f"{value.dtype}{tuple(value.shape)}".encode())
            self._update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif value.layout in _PARTS:
            self._begin("sparse", value.layout, tuple(value.shape))
            value = value.detach()
            value = value.coalesce() if value.layout is torch.sparse_coo else value
            self.add([getattr(value, name)() for name in _PARTS[value.layout]])
        else:
            raise _NoContentError(value)

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        self._begin("array", value.dtype, value.shape)
        if value.dtype.hasobject:  # its bytes are addresses
            self._elements(value.ravel().tolist())
        else:
            self._update(np.ascontiguousarray(value).tobytes())

    def _other(self, value: Any) -> None:
        if all(hasattr(value, name) for name in ("mode", "size", "tobytes")):  # an image of PIL
            self._begin("image", value.mode, value.size)
            self._update(value.tobytes())
        elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            self._array(np.asarray(value))
        elif (view := _buffer(value)) is not None:
            self._begin("buffer", view.format, view.shape)
            self._update(view.tobytes())
        elif isinstance(value, Sequence):
            self._begin("sequence", type(value).__qualname__, len(value))
            self._elements(value)
        else:
            raise _NoContentError(value)


def _buffer(value: Any) -> memoryview | None:
    try:
        return memoryview(value)
    except TypeError:
        return None


def _is_plain(value: Any) -> bool:
    """Whether repr() says all of it."""
    if isinstance(value, np.generic):
        return isinstance(value, np.number | np.bool_ | np.str_)
    if isinstance(value, str | range) or value is None:
        return True
    return isinstance(value, Number) and type(value).__repr__ is not object.__repr__
