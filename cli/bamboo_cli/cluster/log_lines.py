"""Lines of the agents' logs: read, merged by time, and written with step and loss. Pure.

An agent writes JSON (`bamboo_agent.logs`), and its container may print anything else. The kubelet
puts the time before each line.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bamboo_cli.cluster.plain_text import plain

MOST_BYTES = 16 << 10
"""Longer lines are cut, so that memory is bounded."""
_LONGEST_TAIL = 3  # bytes of a character of UTF-8 after its first


@dataclass(frozen=True, order=True)
class Line:
    """A line of one agent's log. Lines compare by time, then by agent."""

    time: str  # RFC 3339, UTC, with a fraction; "" if the server gave none
    agent: str
    text: str = field(compare=False)


def split_lines(pieces: Iterable[bytes], most: int = MOST_BYTES) -> Iterator[str]:
    """Whole lines; of a longer one its first ``most`` bytes. It holds no more than that."""
    kept, is_cut = b"", False
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for part in ended:
            if not is_cut:
                yield _head(kept + part, most)
            kept, is_cut = b"", False
        if not is_cut:
            kept = (kept + rest)[: most + 1]
            if len(kept) > most:
                yield _head(kept, most)
                kept, is_cut = b"", True
    if kept:
        yield kept.decode(errors="replace")


def _head(data: bytes, most: int) -> str:
    """At most so many bytes, cut between two characters."""
    end = most
    if len(data) > most:
        while end > most - _LONGEST_TAIL and data[end] & 0xC0 == 0x80:
            end -= 1
    return data[:end].decode(errors="replace")


def read_line(agent: str, text: str) -> Line:
    """A line as the API server sends it: its time, a space, and what was written."""
    time, _, rest = text.partition(" ")
    if len(time) < 20 or time[4] != "-" or not time.endswith("Z"):
        return Line("", agent, text)
    return Line(time, agent, rest)


def merged(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """The lines of logs that are in order of time, in order of time."""
    return heapq.merge(*logs)


class Writer:
    """Formats lines: time, agent, the agent's newest step and loss, level, message."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._known: dict[str, tuple[int, float | None]] = {}  # agent -> step, loss

    def write(self, line: Line) -> str:
        """One line for the terminal, which obeys none of it; a traceback follows its message."""
        return plain(self._written(line))

    def _written(self, line: Line) -> str:
        said = _parsed(line.text)
        self._learn(line.agent, said)
        who = line.agent.removeprefix(f"{self._job}-")
        head = f"{_clock(line.time)} {who}{self._progress(line.agent)}"
        if said is None:
            return f"{head} | {line.text}"
        level = str(said.get("level", ""))
        mark = "" if level in ("", "info", "debug") else f"{level.upper()}: "
        trace = f"\n{said['traceback']}" if said.get("traceback") else ""
        return f"{head} | {mark}{said.get('message', '')}{trace}"

    def _learn(self, agent: str, said: dict[str, Any] | None) -> None:
        step, loss = (said or {}).get("step"), (said or {}).get("loss")
        if isinstance(step, int):
            known = float(loss) if isinstance(loss, int | float) else None
            self._known[agent] = (step, known)

    def _progress(self, agent: str) -> str:
        if agent not in self._known:
            return ""
        step, loss = self._known[agent]
        return f" step {step}" + ("" if loss is None else f" loss {loss:.4f}")


def _parsed(text: str) -> dict[str, Any] | None:
    """The agent's JSON; None if something else has written the line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "message" in found else None


def _clock(time: str) -> str:
    """Time of day with milliseconds."""
    return f"{time[11:19]}.{(time[20:-1] + '000')[:3]}" if time else "--:--:--.---"
