"""Values of an optimizer's state as JSON and named tensors, and back with equal types and bits.

Numbers, texts, booleans and None are JSON, and so are lists and dictionaries of them. What JSON
cannot tell apart has a tag: ``{"#tuple": [...]}``, ``{"#tensor": name}``, ``{"#dict": {...}}``.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, str)
_FIXED = (torch.dtype, torch.device, torch.layout, enum.Enum, type, types.FunctionType)
_TENSOR, _TUPLE, _DICT = "#tensor", "#tuple", "#dict"


class StateError(ValueError):
    """A value that a record of a layer cannot carry. The text names it by its path."""


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value as JSON. Its tensors are added to ``tensors`` under names that begin with ``path``.

    StateError names the part that cannot be carried.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        put(value, path, tensors)
        return {_TENSOR: path}
    if type(value) in (list, tuple):
        parts = [encode(part, f"{path}/{i}", tensors) for i, part in enumerate(value)]
        return parts if type(value) is list else {_TUPLE: parts}
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise StateError(f"{path} has the key {key!r}; keys must be texts")
        found = {key: encode(part, f"{path}/{key}", tensors) for key, part in value.items()}
        return {_DICT: found} if any(key.startswith("#") for key in found) else found
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise StateError(
        f"{path} is a {kind}; use a tensor, a number, a text, or a list, tuple or dictionary of"
        " them"
    )


def put(value: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> None:
    """Add a tensor under its path. StateError if a record cannot carry it."""
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        raise StateError(f"{path} is not a dense tensor: {value.layout}")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        text = f"{path!a} cannot be written as UTF-8; rename it"
        raise StateError(text) from error
    if path in tensors:
        raise StateError(f"{path} stands for two values; rename one of them")
    tensors[path] = value.detach()


def decode(found: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Inverse of :func:`encode`. KeyError if a tensor is not there."""
    if isinstance(found, list):
        return [decode(part, tensors) for part in found]
    if not isinstance(found, dict):
        return found
    if len(found) == 1:
        ((tag, content),) = found.items()
        if tag == _TENSOR:
            return tensors[content]
        if tag == _TUPLE:
            return tuple(decode(part, tensors) for part in content)
        if tag == _DICT:
            found = content
    return {key: decode(part, tensors) for key, part in found.items()}


def named_tensors(found: Any) -> set[str]:
    """Names of the tensors that an encoded value needs."""
    if isinstance(found, list):
        return {name for part in found for name in named_tensors(part)}
    if not isinstance(found, dict):
        return set()
    if found.keys() == {_TENSOR}:
        return {found[_TENSOR]}
    return {name for part in found.values() for name in named_tensors(part)}


def is_plain(value: Any) -> bool:
    """Whether a value can be carried, or cannot change."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value.values()))
    return type(value) in _PLAIN or isinstance(value, (torch.Tensor, *_FIXED))


def copied(value: Any) -> Any:
    """The value with tensors and containers of its own; anything else is shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(copied(part) for part in value)
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    return value


def are_same(one: Any, other: Any) -> bool:
    """Whether two values have equal types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
            return False
        return have_equal_bits(one, other)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(are_same(one[k], other[k]) for k in one)
    if isinstance(one, float):
        return repr(one) == repr(other)  # -0.0 is not 0.0, and one NaN is as good as another
    return one is other or bool(one == other)


def have_equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have equal bits, wherever they are."""
    words = _words(one), _words(other.to(one.device))
    if words[0].dtype != words[1].dtype:  # one of them begins in the middle of a word
        return torch.equal(*(word.view(torch.uint8) for word in words))
    return torch.equal(*words)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """All bits of a tensor, in the order of its elements, in words that are as long as possible."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    flat = dense.contiguous().reshape(-1).view(torch.uint8)
    is_even = not (flat.numel() % 8 or flat.storage_offset() % 8)
    return flat.view(torch.int64) if is_even else flat
