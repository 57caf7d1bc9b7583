"""Makes one tensor of the same part of many samples. What does not fit together is named.

A tuple, list or dict is several parts, each with a tensor of its own. Values keep their dtypes: a
Python float has torch's default one, an int has int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch

from bamboo_agent import user_code
from bamboo_agent.data.forms import MisfitError, described, listed
from bamboo_agent.payloads.flow import Flow, FlowError

_LAYOUTS = (torch.strided, torch.sparse_coo)
_ONE_KIND = "return the same kind for every sample"
_ONE_DTYPE = "return one dtype for every sample"
_ONE_DEVICE = "return samples on the CPU"
_CPU = "leave what it makes on the CPU"
_ONE_SHAPE = "pad or crop them to one shape in __getitem__, or give the data set a collate(samples)"


def collate(values: Sequence[Any], indices: Sequence[int], part: str) -> Any:
    """A tensor with a row for each sample, or a tuple or dict of such tensors.

    values: the part of each sample; indices: of the samples; part: its name in errors. Raises
    MisfitError if the values do not fit together or cannot be in a tensor.
    """
    first = values[0]
    for family, join in _FAMILIES:
        if isinstance(first, family):
            if not all(isinstance(value, family) for value in values):
                differs = next(i for i, v in enumerate(values) if not isinstance(v, family))
                raise _unlike(values, indices, part, differs, described, _ONE_KIND)
            return join(values, indices, part)
    return _others(values, indices, part)


def collated(both: tuple[Any, Any]) -> tuple[Any, Any]:
    """Check what a data set's own ``collate`` has made. MisfitError names a part that cannot flow,
    or that is not on the CPU."""
    for part, value in zip(("input", "target"), both, strict=True):
        try:
            flow = Flow.of(value)
        except FlowError as error:
            raise MisfitError(f"collate: the {part} has {error}") from error
        if part == "input" and not flow:
            raise MisfitError("collate: the input has no tensor; return one of the samples' parts")
        for tensor in flow:
            if tensor.requires_grad:
                raise MisfitError(f"collate: the {part} has a tensor that requires grad; detach it")
            if tensor.device.type != "cpu":
                raise MisfitError(f"collate: the {part} has a tensor on {tensor.device}; {_CPU}")
    return both


def _unlike(
    values: Sequence[Any],
    indices: Sequence[int],
    part: str,
    differs: int,
    says: Callable[[Any], str],
    remedy: str,
) -> MisfitError:
    """The error about the first value and another one."""
    both = f"{says(values[0])} and {says(values[differs])}"
    return MisfitError(
        f"samples {indices[0]} and {indices[differs]}: the {part} is {both}; {remedy}"
    )


def _tensors(values: Sequence[torch.Tensor], indices: Sequence[int], part: str) -> torch.Tensor:
    first = values[0]
    for at, value in enumerate(values):
        told = f"sample {indices[at]}: the {part}"
        if value.is_nested or value.layout not in _LAYOUTS:
            raise MisfitError(
                f"{told} is a tensor of layout {value.layout}{', nested' * value.is_nested};"
                " return a dense one: x.to_dense(), or padded parts of one shape"
            )
        if value.requires_grad:
            raise MisfitError(
                f"{told} requires grad, but only layers are trained; return x.detach(), or move"
                " what should be trained into a layer"
            )
        if value.is_meta:
            raise MisfitError(f"{told} is on the device meta, so it has no values; {_ONE_DEVICE}")
        if value.shape != first.shape:
            raise _unlike(values, indices, part, at, described, _ONE_SHAPE)
        if value.dtype != first.dtype:
            raise _unlike(values, indices, part, at, lambda v: f"of {v.dtype}", _ONE_DTYPE)
        if value.device != first.device:
            raise _unlike(values, indices, part, at, lambda v: f"on {v.device}", _ONE_DEVICE)
    return torch.stack(list(values))


def _arrays(values: Sequence[Any], indices: Sequence[int], part: str) -> torch.Tensor:
    first = values[0]
    for at, value in enumerate(values):
        if isinstance(value, np.ma.MaskedArray):
            raise MisfitError(
                f"sample {indices[at]}: the {part} is a masked array; return x.filled(number)"
            )
        if value.shape != first.shape:
            raise _unlike(values, indices, part, at, described, _ONE_SHAPE)
        if value.dtype != first.dtype:
            raise _unlike(values, indices, part, at, lambda v: f"of dtype {v.dtype}", _ONE_DTYPE)
    # copied, so it is writable and in this machine's byte order, as torch asks
    native = first.dtype.newbyteorder("=")
    whole = np.ascontiguousarray(np.stack([np.asarray(value) for value in values]), dtype=native)
    try:
        return torch.from_numpy(whole)
    except TypeError as error:
        raise MisfitError(
            f"sample {indices[0]}: the {part} is {described(first)}, which torch does not have;"
            " return numbers, such as x.astype(numpy.float32)"
        ) from error


def _tuples(values: Sequence[Any], indices: Sequence[int], part: str) -> tuple[Any, ...]:
    count = len(values[0])
    for at, value in enumerate(values):
        if len(value) != count:
            remedy = "a tuple or list is several parts; for a vector return torch.tensor(x)"
            raise _unlike(values, indices, part, at, described, remedy)
    return tuple(
        collate([value[i] for value in values], indices, f"{part}[{i}]") for i in range(count)
    )


def _dicts(values: Sequence[Any], indices: Sequence[int], part: str) -> dict[Any, Any]:
    keys = values[0].keys()
    for at, value in enumerate(values):
        if value.keys() != keys:
            raise _unlike(values, indices, part, at, described, "give all samples the same keys")
    return {key: collate([v[key] for v in values], indices, f"{part}[{key!r}]") for key in keys}


def _nones(values: Sequence[Any], indices: Sequence[int], part: str) -> None:
    """None of every sample is None of the micro-batch."""


_FAMILIES: tuple[tuple[Any, Callable[..., Any]], ...] = (
    (torch.Tensor, _tensors),
    (np.ndarray, _arrays),
    (tuple | list, _tuples),
    (Mapping, _dicts),
    (type(None), _nones),
)


def _others(values: Sequence[Any], indices: Sequence[int], part: str) -> torch.Tensor:
    """Numbers, and the sequences of numbers that torch takes, such as a range."""
    families = tuple(family for family, _ in _FAMILIES)
    for at, value in enumerate(values):
        if isinstance(value, families):
            raise _unlike(values, indices, part, at, described, _ONE_KIND)
    try:
        whole = torch.tensor(values)
    except Exception as error:
        raise _unfit(values, indices, part, error) from error
    if len({type(value) for value in values}) > 1:
        dtypes = [torch.tensor([value]).dtype for value in values]
        for at, dtype in enumerate(dtypes):
            if dtype != dtypes[0]:
                remedy = f"{_ONE_DTYPE}, such as float(x)"
                raise _unlike(values, indices, part, at, described, remedy)
    return whole


def _unfit(
    values: Sequence[Any], indices: Sequence[int], part: str, error: Exception
) -> MisfitError:
    for at, value in enumerate(values):
        try:
            torch.tensor([value])
        except Exception:
            told = f"sample {indices[at]}: the {part} is {described(value)}"
            if isinstance(value, int):
                return MisfitError(f"{told}: {error}")
            return MisfitError(f"{told}; {_remedy(value)}")
    lengths = [len(value) if isinstance(value, Sized) else -1 for value in values]
    for at, length in enumerate(lengths):
        if length != lengths[0]:
            return _unlike(values, indices, part, at, lambda v: f"of length {len(v)}", _ONE_SHAPE)
    return MisfitError(f"samples {listed(indices)}: the {part}: {user_code.told(error)}")


def _remedy(value: Any) -> str:
    if isinstance(value, str | bytes):
        return "turn text into numbers in __getitem__"
    return "return a tensor or an array, such as numpy.array(x)"
