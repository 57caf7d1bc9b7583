"""What flows between two layers: its tensors in order, and the form around them.

A layer returns a tensor, or None, a number, a text, or a tuple, list or dict of such values, nested
as it likes. Tensors travel as tensors. All else is the form, as JSON, which may differ from one
micro-batch to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

Form = Any
"""JSON: ["tensor"], ["constant", value], ["tuple", forms], ["list", forms] or ["dict", [[key,
form], ...]]. None: a tensor, or a tuple of tensors, which most values are."""

_TENSOR, _CONSTANT, _TUPLE, _LIST, _DICT = "tensor", "constant", "tuple", "list", "dict"
_CONSTANTS = (bool, int, float, str, type(None))
_KEYS = (str, int)
_MOST_LEVELS = 32


class FlowError(TypeError):
    """A value that cannot flow. ``what``: it, and where it is; ``remedy``: what to return."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


class Flow(tuple[torch.Tensor, ...]):
    """The tensors of a value. ``form`` says how they are the arguments of the next layer."""

    form: Form

    def __new__(cls, tensors: Iterable[torch.Tensor], form: Form = None) -> Flow:
        made = super().__new__(cls, tensors)
        made.form = form
        return made

    @staticmethod
    def of(value: Any) -> Flow:
        """A value's tensors and form. FlowError names a part that cannot flow."""
        if isinstance(value, Flow):
            return value
        if isinstance(value, torch.Tensor):
            return Flow((value,))
        is_plain = isinstance(value, tuple | list) and len(value) > 0
        if is_plain and all(isinstance(part, torch.Tensor) for part in value):
            return Flow(value)
        tensors: list[torch.Tensor] = []
        form = take_apart(value, tensors, "")
        return Flow(tensors, form)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Flow:
        """The same form around other tensors."""
        return Flow(map(change, self), self.form)

    @property
    def value(self) -> Any:
        """The value itself: a tensor, a tuple of tensors, or what the form says."""
        if self.form is None:
            return self[0] if len(self) == 1 else tuple(self)
        return put_together(self.form, iter(self))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the next layer: the parts of a tuple or list, or the one value."""
        if self.form is None:
            return tuple(self)
        value = self.value
        return tuple(value) if isinstance(value, tuple | list) else (value,)


def take_apart(value: Any, tensors: list[torch.Tensor], where: str) -> Form:
    """The form of a value, whose tensors are added to ``tensors``. where: it is, in errors.
    FlowError names a part that cannot flow."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return [_TENSOR]
    if type(value) in _CONSTANTS:
        return [_CONSTANT, value]
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in _KEYS:
                raise FlowError(f"a key of type {type(key).__name__}{where}", "use texts as keys")
        parts = [
            [key, take_apart(part, tensors, f" under {key!r}{where}")]
            for key, part in value.items()
        ]
        return [_DICT, parts]
    if isinstance(value, tuple | list):
        kind = _TUPLE if isinstance(value, tuple) else _LIST
        forms = [
            take_apart(part, tensors, f" in place {i} of a {kind}{where}")
            for i, part in enumerate(value)
        ]
        return [kind, forms]
    raise FlowError(
        f"a {type(value).__name__}{where}",
        "return tensors, None, numbers, texts, and tuples, lists or dicts of them",
    )


def put_together(form: Form, tensors: Iterator[torch.Tensor]) -> Any:
    """The value of a form, which is not None."""
    kind = form[0]
    if kind == _TENSOR:
        return next(tensors)
    if kind == _CONSTANT:
        return form[1]
    if kind == _DICT:
        return {key: put_together(part, tensors) for key, part in form[1]}
    parts = [put_together(part, tensors) for part in form[1]]
    return tuple(parts) if kind == _TUPLE else parts


def checked(form: Form, tensors: int) -> Form:
    """A form that has come from another agent with so many tensors. ValueError if it is none."""
    if form is not None and _count(form, _MOST_LEVELS) != tensors:
        raise ValueError(f"a value of {tensors} tensors has a form of another number")
    return form


def _count(form: Form, levels: int) -> int:
    """The tensors of a form of at most so many levels. ValueError if it is none."""
    match form:
        case ["tensor"]:
            return 1
        case ["constant", value] if type(value) in _CONSTANTS:
            return 0
        case ["tuple" | "list", [*parts]] if levels:
            return sum(_count(part, levels - 1) for part in parts)
        case ["dict", [*pairs]] if levels:
            return sum(_count(_part(pair), levels - 1) for pair in pairs)
    raise ValueError("a value has a form that is none")


def _part(pair: Any) -> Form:
    match pair:
        case [str() | int(), part]:
            return part
    raise ValueError("a value has a form that is none")


def told_shapes(value: Any) -> str:
    """As :func:`shapes_of`, of any value: None, or its type, if there are no tensors in it."""
    try:
        return shapes_of(Flow.of(value)) or "None"
    except FlowError:
        return type(value).__name__


def shapes_of(values: Iterable[torch.Tensor]) -> str:
    """Shapes and dtypes, such as "8x64x96 float32"."""
    return ", ".join(
        f"{'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype).removeprefix('torch.')}"
        for value in values
    )
