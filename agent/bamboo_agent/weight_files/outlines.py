"""Names, shapes and dtypes of a layer's weights, and their names in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn


class WeightsError(Exception):
    """Files of weights are missing, not readable, or not those of the model. The text says which,
    and what to do."""


@dataclass(frozen=True)
class Outline:
    """A tensor without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Outline:
        """The tensor's."""
        return cls(tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        return f"{size} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class LayerOutline:
    """A layer's parameters and buffers, in order. Files may lack two kinds: buffers that it makes
    itself (``persistent=False``), and tied parameters that begin as an earlier layer's."""

    kind: str
    tensors: dict[str, Outline]
    derived: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()

    @classmethod
    def of(cls, module: nn.Module, copied: frozenset[str] = frozenset()) -> LayerOutline:
        """The module's."""
        kept = module.state_dict().keys()
        buffers = {name for name, _ in module.named_buffers()}
        tensors = {name: Outline.of(tensor) for name, tensor in weights_of(module).items()}
        return cls(type(module).__name__, tensors, frozenset(buffers - kept), copied)


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, themselves. One that has two names stands there once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def prefixed(layer: int, name: str) -> str:
    """The name in a file of a tensor whose own name is not unique."""
    return f"layers.{layer}.{name}"


def file_names(layers: Sequence[Iterable[str]]) -> list[dict[str, str]]:
    """For each layer: its tensors' names -> names in a file.

    Names are used as they are if no two layers have one in common, else all begin with the layer.
    """
    listed = [list(names) for names in layers]
    counts = Counter(name for names in listed for name in names)
    is_unique = all(count == 1 for count in counts.values())
    return [
        {name: name if is_unique else prefixed(index, name) for name in names}
        for index, names in enumerate(listed)
    ]
