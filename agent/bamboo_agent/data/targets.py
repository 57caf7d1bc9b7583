"""Counts the targets that a loss leaves out, so that a mean over micro-batches stays a mean.

A loss that is a mean over the targets that are not ignored weighs each of them by 1 / their number
in the micro-batch. Then micro-batches must have equally many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bamboo_agent.model import FactoryError

_INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


class UnevenTargetsError(FactoryError):
    """A micro-batch has more or fewer targets that count than the first one has."""


class Counted(NamedTuple):
    """Integer targets of a micro-batch."""

    ignored: int
    targets: int  # the ignored ones too
    samples: int

    def __str__(self) -> str:
        return f"{self.ignored} of {self.targets}"


def count_targets(target: Any, ignored: int | None, samples: int) -> Counted:
    """Elements equal to ``ignored`` in all tensors of integers of a collated target. None: none is
    ignored, and all numbers are targets."""
    if ignored is None:
        return Counted(0, sum(tensor.numel() for tensor in _tensors(target)), samples)
    tensors = [x for x in _tensors(target) if x.dtype in _INTEGERS and x.layout is torch.strided]
    return Counted(
        ignored=sum(_equal(tensor, ignored) for tensor in tensors),
        targets=sum(tensor.numel() for tensor in tensors),
        samples=samples,
    )


def _tensors(target: Any) -> Iterator[torch.Tensor]:
    if isinstance(target, Mapping):
        target = tuple(target.values())
    if isinstance(target, tuple | list):
        for part in target:
            yield from _tensors(part)
    elif isinstance(target, torch.Tensor):
        yield target


def _equal(tensor: torch.Tensor, ignored: int) -> int:
    limits = torch.iinfo(tensor.dtype)
    if not limits.min <= ignored <= limits.max:  # torch would compare the rest of a division
        return 0
    return int((tensor == ignored).sum())


@dataclass(frozen=True)
class TargetWatch:
    """The first micro-batch of each set, which all others of the set are compared with.

    ignored: the value of targets that the loss leaves out, None: it takes all; validation: None
    without one.
    """

    ignored: int | None
    training: Counted
    validation: Counted | None

    def check(
        self, target: Any, samples: int, *, factory: str, step: int | None, microbatch: int
    ) -> None:
        """UnevenTargetsError unless as many targets of a sample count. step None: validation."""
        first = self.validation if step is None else self.training
        assert first is not None
        found = count_targets(target, self.ignored, samples)
        counting, expected = (x.targets - x.ignored for x in (found, first))
        if counting * first.samples == expected * found.samples:
            return
        which = f"validation micro-batch {microbatch}"
        if step is not None:
            which = f"micro-batch {microbatch} of step {step}"
        what = f"ignores {found} targets ({self.ignored}), the first one ignores {first}"
        over = "the loss is a mean over what is left"
        if self.ignored is None:
            what = f"has {found.targets} targets, the first one has {first.targets}"
            over = "the loss is a mean over all of them"
        raise UnevenTargetsError(
            f"{factory}: {which} {what}: {over}, so a mean over micro-batches would weigh targets"
            " differently; return (sum, count), pad so that every micro-batch has as many targets,"
            " or divide the loss by a constant"
        )
