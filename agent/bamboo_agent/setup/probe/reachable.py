"""Everything that a module or an optimizer can reach, by path, to see what an update changes.

Followed are attributes (of parameters, too), containers, iterators, closures, default arguments,
the globals that functions of the user's code name, and the data of the user's classes. Not
followed: modules and objects of libraries, which only cache (torch's compiler, logging).
"""

from __future__ import annotations

import contextlib
import decimal
import enum
import functools
import hashlib
import itertools
import numbers
import os
import random
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import nn

from bamboo_agent.device.digests import digest

_MOST = 50_000
"""Places; what is behind them is not looked at. A list of a million texts takes a second."""
_LEAVES = (type(None), bool, int, float, complex, str, bytes)
_COUNTS = (itertools.count, itertools.repeat)
_NAMES = (torch.dtype, torch.device, torch.layout, torch.Size, enum.Enum, decimal.Decimal)
_CONTAINERS, _MANY = (list, tuple, dict), 1_000
_LIBRARIES = frozenset({"numpy", "torch", "bamboo_agent", *sys.stdlib_module_names})
_OPENED = ("torch.optim", "torch.nn", "collections", "types")
"""Of the libraries' classes: those whose objects hold what the user's code keeps there."""
_NAMED = ("_modules", "_parameters", "_buffers")

Snapshot = dict[str, str]
"""path -> what stands there, in a form that differs if it does."""


def snapshot(roots: Mapping[str, Any], carried: Collection[int], optimizer: Any = None) -> Snapshot:
    """Look at everything that can be reached. carried: addresses of memory that is not looked at,
    since records of layers carry it. optimizer: the one whose state and groups they carry, too."""
    found: Snapshot = {}
    known = () if optimizer is None else (optimizer.state, optimizer.param_groups)
    seen: dict[int, tuple[str, Any]] = {id(value): ("the record", value) for value in known}
    todo = deque([*roots.items(), ("os.environ", dict(os.environ))])
    while todo and len(found) < _MOST:
        path, value = todo.popleft()
        if _readable(_is_tensor, value, False):
            todo.extend((f"{path}{name}", part) for name, part in _of_tensor(value))
            if address(value) in carried:
                continue
        leaf = _readable(_leaf, value, "unreadable")
        if leaf is not None:
            found[path] = leaf
            continue
        if id(value) in seen:
            found[path] = f"the same as {seen[id(value)][0]}"
            continue
        seen[id(value)] = path, value  # kept alive, so that no other object gets its id
        parts: list[tuple[str, Any]] = _readable(lambda v: list(_parts(v)), value, [])
        found[path] = f"{_readable(_kind, value, '')} of {len(parts)}"
        todo.extend((f"{path}{name}", part) for name, part in parts)
    return found


def _readable(read: Callable[[Any], Any], value: Any, otherwise: Any) -> Any:
    """The result, unless the value cannot be looked at: the object of a proxy may be gone."""
    try:
        return read(value)
    except Exception:
        return otherwise


def _kind(value: Any) -> str:
    """The type, and which one of it: functions, classes and builtins are told apart by name."""
    kind = type(value)
    name = getattr(value, "__qualname__", "") if callable(value) else ""
    owner = getattr(value, "__module__", "") if name else ""
    return f"{kind.__module__}.{kind.__qualname__} {owner}.{name}".rstrip(" .")


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Paths whose value has changed, come or gone; those that lead to them are left out."""
    paths = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    return [p for p in paths if not any(q != p and _leads(p, q) for q in paths)]


def generators(roots: Mapping[str, Any]) -> dict[int, tuple[str, Any]]:
    """id -> (path, generator) of the random generators that can be reached."""
    found: dict[int, tuple[str, Any]] = {}
    seen: dict[int, Any] = {}
    todo = deque(roots.items())
    while todo and len(seen) < _MOST:
        path, value = todo.popleft()
        if _readable(_is_generator, value, False):
            found.setdefault(id(value), (path, value))
        if id(value) in seen or _readable(_is_tensor, value, False):
            continue
        seen[id(value)] = value
        parts: list[tuple[str, Any]] = _readable(lambda v: list(_parts(v)), value, [])
        todo.extend((f"{path}{name}", part) for name, part in parts)
    return found


def address(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory; 0: it has none."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() if storage.nbytes() else 0
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors
        return 0


def _leads(path: str, to: str) -> bool:
    return to.startswith(path) and to[len(path)] in ".["


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_generator(value: Any) -> bool:
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    return isinstance(value, kinds)


def _leaf(value: Any) -> str | None:
    """The form of a value without parts; None: it has parts, or nothing is known of it."""
    if type(value) in _LEAVES:
        return _short(f"{type(value).__name__} {value!r}")
    if isinstance(value, torch.Tensor):
        about = f"{value.dtype}{tuple(value.shape)} {value.device.type}"
        if value.device.type == "meta" or value.is_nested or value.is_quantized:
            return about
        return f"{about} {digest([value]) if value.numel() else 0}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return _short(f"{value.dtype}{value.shape}", np.ascontiguousarray(value).tobytes())
    if isinstance(value, np.generic):
        return _short(type(value).__name__, value.tobytes())
    if isinstance(value, bytearray | memoryview):
        return _short(type(value).__name__, bytes(value))
    if isinstance(value, torch.Generator):
        return _short("torch.Generator", value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return _short(repr(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return _short(repr(value.get_state(legacy=False)))
    if isinstance(value, random.Random):
        return _short(repr(value.getstate()))
    if isinstance(value, (*_COUNTS, *_NAMES)):
        return repr(value)
    if isinstance(value, numbers.Number | str | bytes):  # of a type of the user's
        return _short(f"{type(value).__qualname__} {value!r} {getattr(value, '__dict__', None)!r}")
    if isinstance(value, _CONTAINERS) and len(value) > _MANY and _has_leaves_only(value):
        return _short(
            f"{type(value).__qualname__} of {len(value)}", repr(value).encode("utf-8", "replace")
        )
    return None


def _has_leaves_only(value: Any) -> bool:
    """Whether a container may be hashed as one, such as a vocabulary."""
    parts = itertools.chain(value.keys(), value.values()) if isinstance(value, dict) else value
    return all(type(part) in _LEAVES for part in parts)


def _short(text: str, data: bytes = b"") -> str:
    if len(text) <= 80 and not data:
        return text
    return f"{text[:40]} {hashlib.sha256(text.encode('utf-8', 'replace') + data).hexdigest()[:16]}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """All that can be reached from a value in one step, with its part of the path."""
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | np.ndarray):
        return
    if isinstance(value, type):
        if not _is_library(value.__module__):
            yield from _of_class(value)
        return
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
        return
    if isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
        return
    if isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        return
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        yield from _of_iterator(value)
        return
    if isinstance(value, ContextVar):
        yield ".get()", value.get(None)
        return
    if isinstance(value, threading.local):
        yield from ((f".{name}", part) for name, part in vars(value).items())
        return
    if isinstance(value, Mapping):
        if type(value).__module__.startswith("torch._") or not value:
            return
        for i, (key, part) in enumerate(list(value.items())):
            yield f"[{key!r}]" if type(key) in _LEAVES else f"[{type(key).__name__} {i}]", part
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        plain = sorted(repr(part) for part in value if type(part) in _LEAVES)
        yield "{}", tuple(plain)
    if not isinstance(value, nn.Module) and hasattr(value, "__wrapped__"):  # lru_cache
        yield ".__wrapped__", value.__wrapped__
    yield from _of_object(value)


def _of_tensor(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Attributes and hooks that the user's code has hung on it."""
    yield from ((f".{name}", part) for name, part in vars(tensor).items())
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(tensor, name, None):
            yield f".{name}", hooks


def _of_iterator(iterator: Any) -> Iterator[tuple[str, Any]]:
    """How far it has come. Nothing is taken from it."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is not None:
            yield ".<line>", frame.f_lasti
            yield ".<locals>", dict(frame.f_locals)
        return
    with contextlib.suppress(TypeError, AttributeError):
        yield ".<state>", iterator.__reduce__()[1:]


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_library(function.__module__ or ""):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<{name}>", cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield ".__dict__", vars(function)
    for name in sorted(_names(function.__code__)):
        if name not in function.__globals__:
            continue
        found = function.__globals__[name]
        if isinstance(found, types.ModuleType) and not _is_library(found.__name__):
            inside = sorted(_names(function.__code__) & vars(found).keys())
            yield from ((f".<global {name}.{part}>", vars(found)[part]) for part in inside)
        else:
            yield f".<global {name}>", found


def _names(code: types.CodeType) -> set[str]:
    """Names that the code and the functions within it look up."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    is_module, is_optimizer = isinstance(value, nn.Module), isinstance(value, torch.optim.Optimizer)
    if not (is_module or is_optimizer or _is_opened(kind.__module__)):
        return
    for name, part in list(getattr(value, "__dict__", {}).items()):
        if is_module and name in _NAMED:
            yield from ((f".{child}", found) for child, found in part.items() if found is not None)
        elif part is not None and part is not False:
            yield f".{name}", part
    for cls in kind.__mro__:
        if _is_library(cls.__module__):
            continue
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
        yield from _of_class(cls)


def _of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """The data and the functions of a user's class, which all its objects share."""
    for name, part in list(vars(cls).items()):
        if isinstance(part, staticmethod | classmethod):
            part = part.__func__
        if isinstance(part, types.FunctionType):
            yield f".{name}()", part
        elif not name.startswith("__") and not isinstance(part, property):
            yield f".<class {name}>", part


@functools.cache
def _is_opened(module: str) -> bool:
    return not _is_library(module) or module.startswith(_OPENED)


@functools.cache
def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
