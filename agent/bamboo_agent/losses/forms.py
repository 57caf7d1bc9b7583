"""Reads what the user's loss returns: a mean, a sum with its count, or one of both with metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from bamboo_agent.model import FactoryError
from bamboo_agent.payloads.kinds import Figures, LateLosses, Losses, figures_of
from bamboo_core.api.progress import METRIC_NAME, MOST_METRICS

LOSS = "loss"
"""The key of the loss, if metrics are beside it."""

_MOST_COUNT = 2**53  # a float holds whole numbers up to here


class LossError(FactoryError):
    """The loss returns something that it may not return, or another kind than before."""


@dataclass(frozen=True)
class LossForm:
    """The kind of what a loss returns, the same for all micro-batches of a job.

    is_counted: a sum with its count, no mean. metrics: the names in order, each with whether it is
    counted.
    """

    is_counted: bool = False
    metrics: tuple[tuple[str, bool], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, in order."""
        return tuple(name for name, _ in self.metrics)

    def __str__(self) -> str:
        parts = [_kind(self.is_counted)]
        parts += [f"{name}: {_kind(is_counted)}" for name, is_counted in self.metrics]
        return ", ".join(parts)


def _kind(is_counted: bool) -> str:
    return "(sum, count)" if is_counted else "a mean"


Pairs = tuple[tuple[Any, Any], ...]
"""(sum, count) of the loss and of each metric: numbers, or scalar tensors of any device."""


@dataclass(frozen=True)
class Returned:
    """The value of a loss for one micro-batch. tensor: the mean or the sum, with its graph."""

    tensor: torch.Tensor
    form: LossForm
    pairs: Pairs

    @property
    def count(self) -> int:
        """How many targets are in it, 1 for a mean. It waits for the device. LossError."""
        return _count("the loss", self.pairs[0][1])

    @property
    def figures(self) -> float | Figures:
        """It and the metrics as numbers. It waits for the device. LossError."""
        return _figures(self.form, self.pairs)


class Late:
    """The figures of a loss, which are read later. where: which micro-batch they are of."""

    def __init__(self, returned: Returned, where: str) -> None:
        self._form, self._where = returned.form, where
        self._pairs = tuple((_kept(part), _kept(count)) for part, count in returned.pairs)
        self._read: float | Figures | None = None

    def tensors(self) -> list[torch.Tensor]:
        """Those that are not on the host yet."""
        if self._read is not None:
            return []
        return [x for pair in self._pairs for x in pair if isinstance(x, torch.Tensor)]

    def put(self, numbers: Iterator[float]) -> None:
        """The values of :meth:`tensors`, in order."""
        if self._read is None:
            self._pairs = tuple(
                (_next(part, numbers), _next(count, numbers)) for part, count in self._pairs
            )

    def read(self) -> float | Figures:
        """The figures, once read. LossError."""
        if self._read is None:
            try:
                self._read = _figures(self._form, self._pairs)
            except LossError as error:
                raise LossError(f"{self._where}: {error}") from error
        return self._read


def read_all(losses: LateLosses) -> Losses:
    """All figures on the host. Those of one kind of tensor come in one copy. LossError."""
    late = [found for found in losses.values() if isinstance(found, Late)]
    tensors = [tensor for found in late for tensor in found.tensors()]
    numbers: dict[int, float] = {}
    for kind in {(tensor.device, tensor.dtype) for tensor in tensors}:
        alike = [(i, t) for i, t in enumerate(tensors) if (t.device, t.dtype) == kind]
        copied = torch.stack([tensor for _, tensor in alike]).tolist()
        numbers.update(zip((i for i, _ in alike), copied, strict=True))
    in_order = iter([numbers[i] for i in range(len(tensors))])
    for found in late:
        found.put(in_order)
    return {microbatch: figures_of(found) for microbatch, found in losses.items()}


def _kept(value: Any) -> Any:
    """The user may change the tensor before it is read."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _next(value: Any, numbers: Iterator[float]) -> Any:
    return next(numbers) if isinstance(value, torch.Tensor) else value


def _figures(form: LossForm, pairs: Pairs) -> float | Figures:
    names = ("the loss", *(f"metric {name}" for name in form.names))
    read = tuple(
        (float(_number(part)), _count(name, count))
        for name, (part, count) in zip(names, pairs, strict=True)
    )
    return read[0][0] if form == LossForm() else Figures(read)


def read(value: Any) -> Returned:
    """Read what the loss has returned, with its figures. LossError if it may not return this."""
    found = take(value)
    _ = found.figures
    return found


def take(value: Any) -> Returned:
    """Take what the loss has returned, without a wait for the device. LossError if a loss may not
    return it."""
    metrics: Mapping[Any, Any] = {}
    if isinstance(value, Mapping):
        if LOSS not in value:
            keys = ", ".join(sorted(map(str, value))) or "nothing"
            raise LossError(
                f'the loss returns a dict without the key "{LOSS}" (it has {keys}): name what is'
                f' to be minimized "{LOSS}"'
            )
        metrics = {name: part for name, part in value.items() if name != LOSS}
        value = value[LOSS]
    is_counted = isinstance(value, tuple)
    tensor, count = _pair("the loss", value) if is_counted else (value, 1)
    _check_scalar(tensor)
    names = _checked_names(metrics)
    parts = [_metric(name, metrics[name]) for name in names]
    form = LossForm(is_counted, tuple((name, isinstance(metrics[name], tuple)) for name in names))
    return Returned(tensor, form, ((tensor, count), *parts))


def take_as(form: LossForm, value: Any, where: str) -> Returned:
    """Take what the loss has returned for a later micro-batch. where: which one. LossError."""
    try:
        found = take(value)
    except LossError as error:
        raise LossError(f"{where}: {error}") from error
    if found.form != form:
        raise LossError(
            f"{where}: the loss returns {found.form}; the first micro-batch had {form}: return the"
            " same kinds and names for every micro-batch, in training and validation"
        )
    return found


def read_as(form: LossForm, value: Any, where: str) -> Returned:
    """As :func:`take_as`, with its figures."""
    found = take_as(form, value, where)
    Late(found, where).read()
    return found


def _check_scalar(value: Any) -> None:
    if value is None:
        raise LossError("the loss returns nothing: return its value, a scalar tensor")
    if not isinstance(value, torch.Tensor):
        raise LossError(
            f"loss must be a scalar tensor, and it is {_told(value)}: return a tensor, not a number"
        )
    if value.dim() != 0:
        raise LossError(f"loss must be a scalar tensor, and it is {_told(value)}: use .mean()")


def _pair(what: str, value: tuple[Any, ...]) -> tuple[Any, int]:
    if len(value) != 2:
        raise LossError(f"{what} returns a tuple of {len(value)}: return (sum, count)")
    if not _is_number(value[1]):
        _count(what, value[1])
    return value[0], value[1]


def _count(what: str, value: Any) -> int:
    if not _is_number(value):
        raise LossError(
            f"the count of {what} is {_told(value)}: give the number of targets in the sum, as an"
            " int or a scalar tensor of one"
        )
    number = _number(value)
    if not (0 <= number <= _MOST_COUNT and number == int(number)):
        raise LossError(
            f"the count of {what} is {number}: give the number of targets in the sum, a whole"
            " number of at least 0"
        )
    return int(number)


def _checked_names(metrics: Mapping[Any, Any]) -> list[str]:
    """The names in order."""
    for name in metrics:
        if not isinstance(name, str) or METRIC_NAME.fullmatch(name) is None:
            raise LossError(
                f"the loss returns a metric with the name {name!r}: use letters, digits and _, no"
                " digit first, up to 40 characters"
            )
    if len(metrics) > MOST_METRICS:
        raise LossError(
            f"the loss returns {len(metrics)} metrics: at most {MOST_METRICS} are allowed; leave"
            " some out"
        )
    return sorted(metrics)


def _metric(name: str, value: Any) -> tuple[Any, Any]:
    given, count = _pair(f"metric {name}", value) if isinstance(value, tuple) else (value, 1)
    if not _is_number(given):
        raise LossError(
            f"metric {name} is {_told(given)}: return a number, a scalar tensor, or (sum, count)"
        )
    return given, count


def _is_number(value: Any) -> bool:
    """A number or a scalar tensor of one, and no truth value. Its value is not looked at."""
    if isinstance(value, torch.Tensor):
        return not (value.dim() or value.is_complex() or value.dtype is torch.bool)
    return isinstance(value, Real) and not isinstance(value, bool)


def _number(value: Any) -> float | int:
    if isinstance(value, torch.Tensor):
        number: float | int = value.item()
        return number
    return value if isinstance(value, int) else float(value)


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a tensor of {dtype} with the shape {tuple(value.shape)}"
    return f"of the type {type(value).__name__}"
