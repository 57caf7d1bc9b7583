"""The assumptions behind the paper's table, each with its source in assumptions.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bamboo_sim.market.policies.published import Published
from bamboo_sim.market.simulation.engine import Terms
from bamboo_sim.market.simulation.hourly import CAPACITY, ZONE, HourlyMarket


@dataclass(frozen=True)
class Assumption:
    """``group`` and ``name``: as in the file; ``fitted``: to the table that it explains."""

    group: str
    name: str
    value: Any
    unit: str
    source: str
    fitted: bool


def assumptions() -> tuple[Assumption, ...]:
    """All of them, in the order of the file."""
    return tuple(
        Assumption(group, name, **{"fitted": False, **entry})
        for group, entries in _read().items()
        if group != "slide"
        for name, entry in entries.items()
    )


def loss_chances() -> tuple[float, ...]:
    """The rows of the table."""
    return tuple(_read()["market"]["loss_chances"]["value"])


def slide(loss_chance: float) -> tuple[float, float, float]:
    """A row of the slide: samples per second, dollars per hour, value."""
    throughput, cost, value = _read()["slide"]["rows"][str(loss_chance)]
    return throughput, cost, value


def market(loss_chance: float) -> HourlyMarket:
    """The market of a row."""
    of = _values("market")
    return HourlyMarket(loss_chance, slots=of["slots"], boot_ms=of["boot_ms"])


def published() -> Published:
    """Bamboo with BERT."""
    job, bamboo = _values("job"), _values("bamboo")
    return Published(
        samples=job["samples_per_step"],
        stages=job["stages"],
        step_ms={int(pipelines): ms for pipelines, ms in job["step_ms"].items()},
        slowdown=bamboo["slowdown"],
        planned_ms=bamboo["planned_ms"],
        fatal_ms=bamboo["fatal_ms"],
        risk=bamboo["risk"],
    )


def terms() -> Terms:
    """To train BERT to completion. A node is at its best in the grid with the most for a node."""
    job, bamboo = _values("job"), published()
    best = max(
        bamboo.samples / (ms / 1000) / (pipelines * bamboo.stages)
        for pipelines, ms in bamboo.step_ms.items()
    )
    return Terms(
        prices={(ZONE, CAPACITY): _values("market")["price"]},
        best_per_node=best,
        samples=job["steps"] * job["samples_per_step"],
    )


def _values(group: str) -> dict[str, Any]:
    return {name: entry["value"] for name, entry in _read()[group].items()}


def _read() -> dict[str, Any]:
    text = files("bamboo_sim.market.paper").joinpath("assumptions.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read
