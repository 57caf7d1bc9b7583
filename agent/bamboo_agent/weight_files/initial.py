"""The first weights of a job's layers, from files (``spec.model.initialFrom``)."""

from __future__ import annotations

import torch
from torch import nn

from bamboo_agent.device.digests import digest
from bamboo_agent.model import Names
from bamboo_agent.weight_files.outlines import LayerOutline, WeightsError, weights_of
from bamboo_agent.weight_files.source import given
from bamboo_agent.weight_files.taking import Taken, listed

_REMEDY = (
    "name files of this model, or write such files with `bamboo import`, which can also cast dtypes"
    " and leave tensors out"
)


class InitialWeights:
    """Fills layers after they are built. Each layer gets the same bits every time, or an error."""

    def __init__(self, address: str, names: Names | None = None) -> None:
        """names: the model's. WeightsError if there are no such files."""
        self._address, self._names = address, names
        try:
            self._source = given(address)
        except WeightsError as error:
            raise WeightsError(f"spec.model.initialFrom: {error}") from error
        self._taken = Taken(self._source, names)
        self._digests: dict[int, int] = {}
        self._given: set[tuple[int, str]] = set()
        self._newest: tuple[int, dict[str, torch.Tensor]] | None = None  # until all are known

    def gives(self, layer: int, name: str) -> bool:
        """Whether a layer that has been filled got this tensor from the files."""
        return (layer, name) in self._given

    def fill(self, layer: int, module: nn.Module, copied: frozenset[str] = frozenset()) -> None:
        """Replace the layer's parameters and buffers. copied: tied ones, which files may lack.

        WeightsError names what is missing, has
        another shape or dtype, or has changed since the layer was filled before."""
        if self._newest is not None and self._newest[0] == layer:
            found = self._newest[1]  # the set-up builds each layer several times
        else:
            found = self._read(layer, LayerOutline.of(module, copied))
        targets = weights_of(module)
        with torch.no_grad():
            for name, tensor in found.items():
                targets[name].copy_(tensor)

    def check_used(self) -> None:
        """WeightsError if there are tensors that no layer has taken. All layers were filled."""
        self._newest = None
        if unused := self._taken.unused():
            raise self._wrong([f"no layer has {name}" for name in unused])

    def _read(self, layer: int, outline: LayerOutline) -> dict[str, torch.Tensor]:
        """The layer's tensors, which are those of the first time."""
        is_first = layer not in self._digests
        taken = self._taken if is_first else Taken(self._source, self._names)
        found = taken.layer(layer, outline)
        if taken.problems:
            raise self._wrong(taken.problems)
        value = digest(found.values())
        if self._digests.setdefault(layer, value) != value:
            raise WeightsError(
                f"spec.model.initialFrom {self._address}: the tensors of layer {layer} have changed"
                " since the job read them before, so agents would begin with different weights: put"
                " the files back, and never change files that a job has begun from"
            )
        if is_first:
            self._given |= {(layer, name) for name in found}
            self._newest = layer, found
        return found

    def _wrong(self, problems: list[str]) -> WeightsError:
        return WeightsError(
            f"spec.model.initialFrom {self._address}: {listed(problems)}: {_REMEDY}"
        )
