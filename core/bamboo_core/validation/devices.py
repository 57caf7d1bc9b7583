"""Checks amounts of devices, such as GPUs. The API server refuses pods with a part of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bamboo_core.api import quantities
from bamboo_core.api.records import Problem

_OWN = "kubernetes.io/"  # resources of this domain are Kubernetes' own, and may be divided


def problems(resources: dict[str, Any], path: str) -> Iterator[Problem]:
    """The amounts of devices that are no whole numbers. Other mistakes are left to other rules."""
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if "/" in name and _OWN not in name and not _is_whole(amount):
                text = f"is {amount!r}; it must be a whole number, such as 1 or 2"
                yield Problem(f"{path}.{kind}[{name}]", text)


def _is_whole(amount: Any) -> bool:
    try:
        return quantities.parse(amount).denominator == 1
    except ValueError:
        return True  # no quantity
