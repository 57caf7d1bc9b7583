"""What a job's nodes cost, by the prices of node pools in the chart's values.

A node is charged whole to every job that has an agent on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bamboo_core.controller.pod_zones import ZONE_LABEL
from bamboo_core.placement.node_pools import pool_of
from bamboo_operator.kube.api import Object

_FIELDS = {"labels", "dollarsPerHour", "onDemandDollarsPerHour"}


@dataclass(frozen=True)
class Pool:
    """Nodes with these labels."""

    labels: Mapping[str, str]
    dollars_per_hour: float
    on_demand_dollars_per_hour: float  # what the same node would cost on demand


@dataclass(frozen=True)
class Rate:
    """The cost of a job at this moment."""

    dollars_per_hour: float = 0.0
    on_demand_dollars_per_hour: float = 0.0
    unpriced: int = 0  # nodes of no pool
    pools: Mapping[str, float] = field(default_factory=dict)
    """What an hour of a node costs, by the names that clouds give pools, and by zones: of
    different prices in a zone, the highest."""


def parse(text: str) -> tuple[Pool, ...]:
    """The pools of a JSON list. ValueError names the field and the remedy."""
    if not text:
        return ()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error}); give a list of pools") from error
    if not isinstance(found, list):
        raise ValueError("is no list; give a list of pools")
    return tuple(_pool(f"prices[{n}]", value) for n, value in enumerate(found))


def _pool(where: str, value: Any) -> Pool:
    if not isinstance(value, dict) or not value.keys() <= _FIELDS:
        raise ValueError(f"{where} must be an object with {', '.join(sorted(_FIELDS))}")
    labels = value.get("labels")
    is_map = isinstance(labels, dict) and all(isinstance(v, str) for v in labels.values())
    if not is_map or not labels:
        raise ValueError(f"{where}.labels must be labels of the pool's nodes; give at least one")
    dollars = _amount(f"{where}.dollarsPerHour", value.get("dollarsPerHour"))
    default = value.get("onDemandDollarsPerHour", dollars)
    return Pool(labels, dollars, _amount(f"{where}.onDemandDollarsPerHour", default))


def _amount(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{where} {value!r} must be a number of at least 0")
    return float(value)


def rate(pools: Iterable[Pool], nodes: Iterable[Object], used: Iterable[str]) -> Rate | None:
    """The cost of the nodes with these names. A node belongs to the first pool that fits.

    None: there are no prices.
    """
    pools, names = tuple(pools), set(used)
    if not pools:
        return None
    dollars = on_demand = 0.0
    unpriced, found = 0, dict[str, float]()
    for node in nodes:
        meta = node["metadata"]
        if meta["name"] not in names:
            continue
        labels = meta.get("labels") or {}
        pool = next((p for p in pools if p.labels.items() <= labels.items()), None)
        if pool is None:
            unpriced += 1
        else:
            dollars += pool.dollars_per_hour
            on_demand += pool.on_demand_dollars_per_hour
            for name in filter(None, (pool_of(labels), labels.get(ZONE_LABEL, ""))):
                found[name] = max(found.get(name, 0.0), pool.dollars_per_hour)
    return Rate(dollars, on_demand, unpriced, found)
