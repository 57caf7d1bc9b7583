"""Readers of a group's parameters: each has a value, a unit and a source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

GROUPS = ("base", "rivals", "ours", "assumed")
OWN = "own"
"""The key of a value that the system's own publication has, where the common table's differs."""


@dataclass(frozen=True)
class Parameter:
    """``system``: whose; ``own``: the value in the table of published parameters."""

    system: str
    name: str
    value: Any
    own: Any
    unit: str
    source: str


@cache
def parameters(group: str) -> tuple[Parameter, ...]:
    """All parameters of a group of policies, in the order of its file."""
    text = files(f"bamboo_sim.market.policies.{group}").joinpath("parameters.json")
    read: dict[str, dict[str, Any]] = json.loads(text.read_text(encoding="utf-8"))
    return tuple(
        Parameter(system, name, **{OWN: entry["value"], **entry})
        for system, entries in read.items()
        for name, entry in entries.items()
    )


def values(group: str, system: str, *, own: bool = False) -> dict[str, Any]:
    """The parameters of one system by name. ``own``: those that its authors published."""
    found = {
        parameter.name: parameter.own if own else parameter.value
        for parameter in parameters(group)
        if parameter.system == system
    }
    if not found:
        raise KeyError(f"{group}/parameters.json has no {system}")
    return found
