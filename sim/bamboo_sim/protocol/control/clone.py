"""Copies a production state machine: mutable parts are copied, immutable ones are shared."""

from __future__ import annotations

from collections import deque
from dataclasses import is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

_ATOMS: dict[type, bool] = dict.fromkeys(
    (int, str, float, bool, bytes, type(None), tuple, frozenset, FunctionType, BuiltinFunctionType),
    True,
)


def clone(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """An independent copy. A part that occurs twice is copied once."""
    memo = {} if memo is None else memo
    kind = type(value)
    atom = _ATOMS.get(kind)
    if atom is None:
        atom = _ATOMS[kind] = _is_atom(kind)
    if atom:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is dict:
        copied: Any = {k: clone(v, memo) for k, v in value.items()}
    elif kind is list or kind is deque:
        copied = kind(clone(v, memo) for v in value)
    elif kind is set:
        copied = value.copy()
    elif kind is MethodType:
        copied = MethodType(value.__func__, clone(value.__self__, memo))
    else:
        return _clone_object(value, memo)
    memo[id(value)] = copied
    return copied


def _clone_object(value: Any, memo: dict[int, Any]) -> Any:
    new = object.__new__(type(value))
    memo[id(value)] = new
    state = new.__dict__
    for name, part in value.__dict__.items():
        state[name] = clone(part, memo)
    return new


def _is_atom(kind: type) -> bool:
    if kind in (dict, list, set, deque, MethodType):
        return False
    if issubclass(kind, tuple | frozenset | Enum | type):
        return True
    return is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
