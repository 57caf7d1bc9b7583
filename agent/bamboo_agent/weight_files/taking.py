"""Finds the tensors of each layer in files of weights, and says what is wrong with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from bamboo_agent.model import Names
from bamboo_agent.user_code import told
from bamboo_agent.weight_files.outlines import LayerOutline, Outline, WeightsError, prefixed
from bamboo_agent.weight_files.source import Source

_MOST_SHOWN = 20


class Taken:
    """Which of the file's tensors belong to which layer, layer by layer.

    A layer's tensors stand in the file as ``layers.<i>.<name>``, else as the model's ``names`` say,
    else with their own names. ``problems``: each names the layer and the tensor.
    ``other_dtypes``: how many of them a cast would end.
    """

    def __init__(self, source: Source, names: Names | None) -> None:
        self._source, self._names = source, names
        self._owners: dict[str, tuple[int, str]] = {}
        self._used: set[str] = set()
        self.problems: list[str] = []
        self.other_dtypes = 0

    def layer(
        self, index: int, outline: LayerOutline, *, casts: bool = False
    ) -> dict[str, torch.Tensor]:
        """The layer's tensors by name, those that fit. casts: other dtypes are no problem."""
        found: dict[str, torch.Tensor] = {}
        given = self._given(index, outline)
        for name, wanted in outline.tensors.items():
            tensor = given.get(name)
            where = f"layer {index}, {outline.kind}: {name} ({wanted})"
            if tensor is None:
                if name not in outline.derived | outline.copied:
                    self.problems.append(f"{where} is missing")
                continue
            has = Outline.of(tensor)
            if has.shape != wanted.shape or (has.dtype != wanted.dtype and not casts):
                self.problems.append(f"{where} is {has} in the file")
                self.other_dtypes += has.shape == wanted.shape
                continue
            found[name] = tensor.to(wanted.dtype)
        self.problems += [
            f"layer {index}, {outline.kind}: it has no {name}, which its names give"
            for name in given.keys() - outline.tensors.keys()
        ]
        return found

    def unused(self) -> list[str]:
        """Tensors of the file that no layer has taken, after the last layer."""
        return sorted(self._source.outlines.keys() - self._used)

    def _given(self, index: int, outline: LayerOutline) -> dict[str, torch.Tensor]:
        long = {name: prefixed(index, name) for name in outline.tensors}
        if self._names is not None and not any(x in self._source for x in long.values()):
            return self._by_names(self._names, index)
        given: dict[str, torch.Tensor] = {}
        for name, whole in long.items():
            key = whole if whole in self._source else name
            if key not in self._source:
                continue
            owner = self._owners.setdefault(key, (index, name))
            if owner != (index, name):
                if name in outline.copied:
                    continue
                self.problems.append(
                    f"layer {index}, {outline.kind}: {name} is in the file once, and layer"
                    f" {owner[0]} has it: it must be {whole}"
                )
                continue
            self._used.add(key)
            given[name] = self._source[key]
        return given

    def _by_names(self, names: Names, index: int) -> dict[str, torch.Tensor]:
        try:
            return dict(names.read(index, _Watched(self._source, self._used)))
        except KeyError as error:
            self.problems.append(f"layer {index}: the file has no {error.args[0]}")
        except WeightsError:
            raise
        except Exception as error:
            self.problems.append(f"layer {index}: the model's names.read raised {told(error)}")
        return {}


class _Watched(Mapping[str, torch.Tensor]):
    """The file's tensors, with a note of those that were read."""

    def __init__(self, source: Source, used: set[str]) -> None:
        self._source, self._used = source, used

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._source[name]
        self._used.add(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


def listed(problems: list[str]) -> str:
    """As one text, without the last ones of many."""
    more = len(problems) - _MOST_SHOWN
    shown = "; ".join(problems[:_MOST_SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown
