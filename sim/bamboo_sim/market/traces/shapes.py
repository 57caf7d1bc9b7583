"""The shape of a file, by its first line: one way in to all readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bamboo_sim.market.traces import count_files, event_files, history, lifetimes
from bamboo_sim.market.traces.records import Seen, TraceError
from bamboo_sim.market.traces.trace import Trace, by_time, of_lifetimes

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Shape(Generic[T_co]):
    """A shape of files. ``example``: how one begins; ``begins``: whether a first line does so, also
    if it is malformed, so that its reader says what is wrong with it."""

    name: str
    example: str
    begins: Callable[[str], bool]
    read: Callable[[Path], T_co]


def read(path: Path) -> Trace:
    """The trace in a file of any shape. TraceError names the line that is wrong, or the shapes that
    are known. OSError if the file cannot be read."""
    return read_as(path, TRACES)


def read_as(path: Path, shapes: Sequence[Shape[T]]) -> T:
    """The content of a file that has one of these shapes. Errors as above."""
    try:
        first = _first_line(path)
        for shape in shapes:
            if shape.begins(first):
                return shape.read(path)
    except UnicodeDecodeError:
        raise TraceError(path, 1, "this is no text in UTF-8; save it as that.") from None
    known = "\n".join(f"  {shape.name}: {shape.example}" for shape in shapes)
    begin = f"{first[:80]!r} begins none of the shapes that are known" if first else "it is empty"
    raise TraceError(path, 1, f"{begin}; write the file as one of\n{known}")


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        return next((line.strip() for line in file if line.strip()), "")


def _events(path: Path) -> Trace:
    return _of_seen("events as CSV", event_files.read_csv(path))


def _json_events(path: Path) -> Trace:
    seen, end_ms = event_files.read_json_lines_to_end(path)
    if not seen:
        raise TraceError(path, 1, "no line adds a node; add one.")
    return _of_seen("events as JSON lines", seen, end_ms)


def _counts(path: Path) -> Trace:
    counts = sorted(count_files.read(path), key=lambda count: count.at_ms)
    return Trace("count series", counts[-1].at_ms, counts=tuple(counts))


def _lifetimes(path: Path) -> Trace:
    machines = lifetimes.read(path)
    if not machines:
        raise TraceError(path, 2, "no machine follows the header; add one for each line.")
    return _of_seen("lifetimes", of_lifetimes(machines))


def _of_seen(shape: str, seen: list[Seen], end_ms: int = 0) -> Trace:
    return Trace(shape, max(end_ms, seen[-1].at_ms), tuple(by_time(seen)))


def _has_two_of(columns: Sequence[str]) -> Callable[[str], bool]:
    return lambda line: len({cell.strip().strip('"') for cell in line.split(",")} & {*columns}) > 1


TRACES: tuple[Shape[Trace], ...] = (
    Shape(
        "events as CSV",
        "60000,add,node19",
        lambda line: bool(re.match(r"-?\d+\s*,|[^,]*,\s*(add|remove)\s*,", line)),
        _events,
    ),
    Shape(
        "events as JSON lines",
        '[60000, "add", {"nodes": ["node19"]}]',
        lambda line: line.startswith("["),
        _json_events,
    ),
    Shape(
        "count series",
        "2021-12-11, 11:11:30, 55",
        lambda line: bool(re.match(r"\d{4}-\d\d-\d\d\s*,", line)),
        _counts,
    ),
    Shape(
        "lifetimes",
        "zone,machine_type,start_utc,end_utc,ended_by",
        _has_two_of(("machine_type", "start_utc", "end_utc")),
        _lifetimes,
    ),
    Shape(history.SHAPE, ",".join(history.COLUMNS), _has_two_of(history.COLUMNS), history.read),
)
"""Every shape of a recorded fleet, in the order in which they are tried."""
