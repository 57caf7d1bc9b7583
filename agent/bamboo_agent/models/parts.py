"""One layer as a part of a library's model: the library's modules under the library's names."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def library(name: str, *, needed_by: str) -> ModuleType:
    """Import a library that only some users have. ImportError says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{needed_by} needs {package}, which cannot be imported ({error}): add"
            f" `pip install {package}` to the image of the job"
        ) from error


class Part(nn.Module):
    """Some modules of a model, each under its path in it, such as ``transformer.h.3``.

    A subclass says in :meth:`run` what they compute. recomputes: whether a backward computes them
    again instead of keeping their activations; the bits are the same.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, recomputes: bool) -> None:
        super().__init__()
        self._recomputes = recomputes
        for path, module in modules.items():
            *folders, name = path.split(".")
            place: nn.Module = self
            for folder in folders:
                if not hasattr(place, folder):
                    place.add_module(folder, nn.Module())
                place = place.get_submodule(folder)
            place.add_module(name, module)

    def run(self, *arguments: Any) -> Any:
        """Compute the layer's output."""
        raise NotImplementedError

    def forward(self, *arguments: Any) -> Any:
        """Call :meth:`run`, so that its activations are kept or computed again."""
        if not self._recomputes or not torch.is_grad_enabled():
            return self.run(*arguments)
        return checkpoint(self.run, *arguments, use_reentrant=False)


def copied(skeleton: nn.Module, paths: tuple[str, ...]) -> dict[str, nn.Module]:
    """Copies of a model's modules by path. skeleton: the model on the meta device."""
    return {path: copy.deepcopy(skeleton.get_submodule(path)) for path in paths}


def initialised(part: Part, initialise: Callable[[nn.Module], None]) -> Part:
    """Give memory and first values to a part on the meta device.

    initialise: called with each module, inner ones first. ValueError names a parameter or buffer
    that it has left without a value.
    """
    device = torch.get_default_device()
    part.to_empty(device=device)
    with torch.no_grad():
        for tensor in _numbers(part).values():
            tensor.fill_(torch.nan)
        part.apply(initialise)
        if device.type != "meta":
            left = [name for name, tensor in _numbers(part).items() if tensor.isnan().any()]
            if left:
                raise ValueError(f"the library gives no first values to {', '.join(left)}")
    return part


def _numbers(part: Part) -> dict[str, torch.Tensor]:
    found = {**dict(part.named_parameters()), **dict(part.named_buffers())}
    return {name: tensor for name, tensor in found.items() if tensor.is_floating_point()}
