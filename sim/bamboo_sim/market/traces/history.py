"""A user's own history of spot nodes: one node's life on each line, with what it cost."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Price, Seen, TraceError
from bamboo_sim.market.traces.trace import ON_DEMAND, SPOT, Trace, by_time

T = TypeVar("T")

COLUMNS = ("node", "zone", "capacity", "start", "end", "ended_by", "dollars_per_hour")
SHAPE = "history of nodes and prices"
_PREEMPTED, _STOPPED, _RUNNING = _ENDS = ("preempted", "stopped", "running")


@dataclass(frozen=True)
class _Life:
    line: int
    node: str
    where: tuple[str, str]  # zone, capacity
    start_ms: int
    end_ms: int | None
    ended_by: str
    price: float


def read(path: Path) -> Trace:
    """CSV with a header that has at least COLUMNS, in any order.

    A name may come again after its node has ended. TraceError names the line, the column, the value
    and the remedy.
    """
    lives: list[_Life] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise TraceError(path, 1, f"the header has no {', '.join(missing)}; add them.")
        try:
            lives.extend(_life(path, rows.line_num, row) for row in rows)
        except csv.Error as error:
            raise TraceError(path, rows.line_num, f"{error}; mend the quotes.") from None
    if not lives:
        raise TraceError(path, 2, "no node follows the header; add one for each line.")
    return _trace(path, lives)


def _life(path: Path, line: int, row: Mapping[str | None, str | None]) -> _Life:
    if None in row or None in row.values():
        cells = f"the line has {'more' if None in row else 'fewer'} cells than the header"
        raise TraceError(path, line, f"{cells}; separate cells by commas.")
    cells_of = {str(name): str(text).strip() for name, text in row.items()}

    def cell(name: str, parse: Callable[[str], T], remedy: str) -> T:
        try:
            return parse(cells_of[name])
        except ValueError:
            raise TraceError(path, line, f"{name} is {cells_of[name]!r}; {remedy}.") from None

    when = "write a time with its offset, as 2026-11-30T08:00:00Z"
    ended_by = cell("ended_by", _one_of(*_ENDS), f"write one of {', '.join(_ENDS)}")
    start_ms = cell("start", _ms, when)
    end_ms = None
    if ended_by == _RUNNING:
        cell("end", _one_of(""), "leave it empty for a node that is running, or say how it ended")
    else:
        end_ms = cell("end", _ms, f"{when}; a node that still runs is ended_by running")
        if end_ms < start_ms:
            raise TraceError(path, line, f"end is {cells_of['end']!r}, before start; swap them.")
    zone = cell("zone", _text, "name the zone")
    capacity = cell("capacity", _one_of(SPOT, ON_DEMAND), f"write {SPOT} or {ON_DEMAND}")
    return _Life(
        line,
        cell("node", _text, "name the node"),
        (zone, capacity),
        start_ms,
        end_ms,
        ended_by,
        cell("dollars_per_hour", _price, "write a number of at least 0, without a currency"),
    )


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(text)
        return text

    return parse


def _text(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _ms(text: str) -> int:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(text)
    return round(at.timestamp() * 1000)


def _price(text: str) -> float:
    price = float(text)
    if not 0 <= price < math.inf:
        raise ValueError(text)
    return price


def _trace(path: Path, lives: list[_Life]) -> Trace:
    latest_ms = max(life.start_ms if life.end_ms is None else life.end_ms for life in lives)
    seen: list[Seen] = []
    before: dict[str, _Life] = {}
    lives = sorted(lives, key=lambda life: life.start_ms)
    times: dict[str, int] = {}
    for life in lives:
        other = before.get(life.node)
        if other is not None and (other.end_ms is None or other.end_ms > life.start_ms):
            what = f"node {life.node!r} lives already, by line {other.line}; use another name."
            raise TraceError(path, life.line, what)
        before[life.node] = life
        times[life.node] = times.get(life.node, 0) + 1
        name = f"{life.node}#{times[life.node]}"
        seen.append(Seen(life.start_ms, Kind.ADD, name, *life.where))
        if life.end_ms is not None:
            is_loss = life.ended_by == _PREEMPTED
            seen.append(Seen(life.end_ms, Kind.REMOVE, name, *life.where, is_loss=is_loss))
    return Trace(SHAPE, latest_ms, tuple(by_time(seen)), prices=_prices(lives, latest_ms))


def _prices(lives: Iterable[_Life], latest_ms: int) -> dict[tuple[str, str], Price]:
    groups: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for life in lives:
        ms = (latest_ms if life.end_ms is None else life.end_ms) - life.start_ms
        groups.setdefault(life.where, []).append((life.price, ms))
    found = {}
    for where, paid in sorted(groups.items()):
        prices = [price for price, _ in paid]
        total = sum(ms for _, ms in paid)
        mean = sum(price * ms for price, ms in paid) / total if total else sum(prices) / len(prices)
        found[where] = Price(mean, min(prices), max(prices))
    return found
