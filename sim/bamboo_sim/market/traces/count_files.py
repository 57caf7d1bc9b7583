"""Files that count nodes over time. They have no names, so who goes is drawn by a seed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces.records import Count, Seen, TraceError

_LINE = "a line is `YYYY-MM-DD, HH:MM:SS, NODES`"


def read(path: Path) -> list[Count]:
    """Lines of date, time and a number, in the order of the file, which need not be that of time.
    Milliseconds count from the earliest line. TraceError names the first line that is none."""
    found: list[tuple[int, int]] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            fields = [field.strip() for field in line.split(",")]
            try:
                day, time, nodes = fields
                at = datetime.fromisoformat(f"{day}T{time}").replace(tzinfo=UTC)
                if not nodes.isdecimal():
                    raise ValueError(nodes)
            except ValueError:
                raise TraceError(path, number, f"{line.strip()!r}: {_LINE}.") from None
            found.append((round(at.timestamp() * 1000), int(nodes)))
    if not found:
        raise TraceError(path, 1, f"the file is empty; {_LINE}.")
    first = min(at_ms for at_ms, _ in found)
    return [Count(at_ms - first, nodes) for at_ms, nodes in found]


def victims(counts: list[Count], seed: int) -> list[Seen]:
    """Named nodes that give these counts in the order of time. A drop of k takes k nodes, each as
    likely as another; a rise adds new ones. A node that is replaced between two counts is not seen.
    """
    random = Random(seed)
    live: list[str] = []
    found: list[Seen] = []
    added = 0
    for count in sorted(counts, key=lambda count: count.at_ms):
        while len(live) > count.nodes:
            gone = live.pop(random.randrange(len(live)))
            found.append(Seen(count.at_ms, Kind.REMOVE, gone))
        while len(live) < count.nodes:
            added += 1
            live.append(f"node{added}")
            found.append(Seen(count.at_ms, Kind.ADD, live[-1]))
    return found
