"""Files in which named nodes come and go: lines of CSV, or of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Seen, TraceError

_KINDS = {"add": Kind.ADD, "remove": Kind.REMOVE}
_CSV = "a line is `MILLISECONDS,add|remove,NODE`"
_JSON = 'a line is `[MILLISECONDS, "add"|"remove", {"nodes": [NODE, ...]}]` or has the kind "DONE"'


def read_csv(path: Path) -> list[Seen]:
    """Lines of milliseconds, ``add`` or ``remove``, and a node's name, which is used once.

    TraceError names the first line that is none, or makes no sense after those before.
    """
    found = []
    for number, line in _lines(path):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3 or not fields[0].isdecimal() or fields[1] not in _KINDS:
            raise TraceError(path, number, f"{line!r}: {_CSV}.")
        found.append((number, Seen(int(fields[0]), _KINDS[fields[1]], fields[2])))
    return _checked(path, found)


def read_json_lines(path: Path) -> list[Seen]:
    """Lines of JSON, each with the nodes that come or go at once. TraceError as above."""
    return read_json_lines_to_end(path)[0]


def read_json_lines_to_end(path: Path) -> tuple[list[Seen], int]:
    """The same, and the time of the last line, ms: a line with ``DONE`` says how long the fleet was
    watched."""
    found = []
    end_ms = 0
    for number, line in _lines(path):
        try:
            at_ms, kind, more = json.loads(line)
            names = [] if kind == "DONE" else more["nodes"]
            is_good = (kind == "DONE" or kind in _KINDS) and type(at_ms) is int and at_ms >= 0
            is_good = is_good and all(isinstance(name, str) for name in names)
        except (ValueError, TypeError, KeyError):
            is_good = False
        if not is_good:
            raise TraceError(path, number, f"{line!r}: {_JSON}.")
        end_ms = max(end_ms, at_ms)
        found += [(number, Seen(at_ms, _KINDS[kind], name)) for name in names]
    return _checked(path, found), end_ms


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.strip()


def _checked(path: Path, found: list[tuple[int, Seen]]) -> list[Seen]:
    used: set[str] = set()
    live: set[str] = set()
    latest = 0
    for number, event in found:
        if event.at_ms < latest:
            raise TraceError(path, number, f"{event.at_ms} ms comes after {latest}; sort by time.")
        latest = event.at_ms
        if event.kind is Kind.ADD:
            if event.name in used:
                raise TraceError(path, number, f"{event.name} was added before; use new names.")
            used.add(event.name)
            live.add(event.name)
        elif event.name not in live:
            raise TraceError(path, number, f"{event.name} goes, but is not there; add it before.")
        else:
            live.remove(event.name)
    return [event for _, event in found]
