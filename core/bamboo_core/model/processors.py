"""The kinds of processor on which a job was computed: they decide its bits, as code and data do.

The job remembers them, since nobody else can once all of its agents are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_LONGEST_DEVICE, _LONGEST_PRODUCTS = 128, 64
_SHOWN = 12


@dataclass(frozen=True)
class ProcessorKind:
    """A kind of processor, and where a job began to be computed on it. An empty text equals any."""

    device: str = ""  # kind of device, as in the fingerprint of agents
    products: str = ""  # digest of a few products, as there
    step: int = 0  # the first that was computed on it
    attempt: int = 0  # in which that was

    def __post_init__(self) -> None:
        """Agents may say anything, and status must stay small."""
        object.__setattr__(self, "device", self.device[:_LONGEST_DEVICE])
        object.__setattr__(self, "products", self.products[:_LONGEST_PRODUCTS])

    def __str__(self) -> str:
        """In messages: without the rest of the digest."""
        name = self.device or "unknown"
        return f"{name} (products {self.products[:_SHOWN]})" if self.products else name

    def is_like(self, other: ProcessorKind) -> bool:
        """Whether both give the same bits, as far as is known."""
        return all(
            not (mine and theirs) or mine == theirs
            for mine, theirs in ((self.device, other.device), (self.products, other.products))
        )

    def filled(self, other: ProcessorKind) -> ProcessorKind:
        """With what only the other one knows."""
        device, products = self.device or other.device, self.products or other.products
        return replace(self, device=device, products=products)


Kinds = tuple[ProcessorKind, ...]
"""Oldest first; the last one is the present one."""


def bounded(kinds: Kinds, most: int) -> Kinds:
    """If they are too many, the first and the newest."""
    return kinds if len(kinds) <= most else (kinds[0], *kinds[1 - most :])


def merged(kinds: Kinds) -> Kinds:
    """Neighbours that are alike as one, which begins with the first of them."""
    found: list[ProcessorKind] = []
    for kind in kinds:
        if found and found[-1].is_like(kind):
            found[-1] = found[-1].filled(kind)
        else:
            found.append(kind)
    return tuple(found)
