"""What a data set and a sample must be. Everything else is refused by name, with the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from bamboo_agent import user_code
from bamboo_agent.model import FactoryError

_MOST_KEYS = _MOST_LISTED = 8


class MisfitError(Exception):
    """Samples that no micro-batch can be made of. The text names them and the remedy."""


def check_dataset(dataset: Any, factory: str) -> int:
    """The length of what a factory returned. FactoryError if it is not a map-style data set."""
    told = f"{factory} returned a {type(dataset).__name__}"
    if isinstance(dataset, DataLoader):
        raise FactoryError(
            f"{told}; return the data set, not a DataLoader: Bamboo makes the micro-batches"
        )
    if isinstance(dataset, Mapping) and dataset and 0 not in dataset:
        keys = _keys(dataset)
        raise FactoryError(f"{told} with the keys {', '.join(keys)}; return one: x[{keys[0]}]")
    # torch's base class has a [] that only raises
    indexed = getattr(type(dataset), "__getitem__", None) is not TorchDataset.__getitem__
    if not (indexed and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        text = f"{told}, not a data set with len() and []"
        if hasattr(dataset, "__iter__"):
            text += "; agents read samples by index, so what can only be iterated does not do"
        raise FactoryError(text)
    return _length(dataset, factory)


def _length(dataset: Any, factory: str) -> int:
    told = f"len() of what {factory} returned"
    try:
        count = len(dataset)
        is_bool = isinstance(type(dataset).__len__(dataset), bool)
    except Exception as error:
        is_form = isinstance(error, TypeError | ValueError | OverflowError)
        remedy = "; return the number of samples" if is_form else ""
        raise FactoryError(f"{told}: {user_code.told(error)}{remedy}") from error
    if is_bool:
        raise FactoryError(f"{told} is {bool(count)}; return the number of samples")
    return count


LABELS = "labels"
"""The key of a dict that is its target; all else is its input, as in transformers."""


def pair(sample: Any, told: str) -> tuple[Any, Any]:
    """(input, target) of a sample, or of a micro-batch. told: which, in errors. MisfitError if it
    is neither two parts nor a dict with :data:`LABELS`."""
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    if isinstance(sample, Mapping) and LABELS in sample and len(sample) > 1:
        return {key: part for key, part in sample.items() if key != LABELS}, sample[LABELS]
    raise MisfitError(f"{told} is {described(sample)}; {_remedy(sample)}")


def _remedy(sample: Any) -> str:
    if isinstance(sample, Mapping):
        keys = _keys(sample)
        first, last = (keys[0], keys[-1]) if len(keys) == 2 else ('"input"', '"target"')
        return (
            f"return two parts, such as sample[{first}], sample[{last}], or name the target"
            f' "{LABELS}"'
        )
    if isinstance(sample, torch.Tensor | np.ndarray):
        return "return two parts: input, target; the target may be the input again: x, x"
    if isinstance(sample, tuple | list) and len(sample) > 2:
        return "return two parts: input, target; a part may be a tuple: (a, b), target"
    return "return two parts: input, target"


def listed(indices: Sequence[int]) -> str:
    """Samples as they stand in an error, which must end with what is wrong: 4, 9, ... (32)."""
    shown = ", ".join(map(str, indices[:_MOST_LISTED]))
    return f"{shown}, ... ({len(indices)})" if len(indices) > _MOST_LISTED else shown


def described(value: Any) -> str:
    """A value by its kind, as it stands in an error: a tensor of shape (2, 3)."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return "a nested tensor"
        kind = str(value.dtype).removeprefix("torch.")
        return f"a tensor of shape {tuple(value.shape)} and dtype {kind}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    kind = type(value).__name__
    if isinstance(value, tuple | list):
        return f"a {kind} of {len(value)} part{'s' * (len(value) != 1)}"
    if isinstance(value, Mapping):
        return f"a {kind} with the keys {', '.join(_keys(value))}"
    return f"of type {kind}"


def _keys(value: Mapping[Any, Any]) -> list[str]:
    """The first keys, as one writes them between brackets."""
    keys = list(value)[:_MOST_KEYS]
    return [f'"{key}"' if isinstance(key, str) else repr(key) for key in keys] or ["none"]
