"""What a hook prints, for the agent's log: whole lines, and not more than a log can hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from bamboo_core.api import texts

MOST_LINES = 20
"""In :data:`SPAN_S`. The rest is counted."""
SPAN_S = 60.0
MOST_LINE_BYTES = 500


@dataclass
class Printed:
    """Times are in seconds of one monotonic clock."""

    _part: bytes = b""  # of a line that has not ended
    _shown: int = 0
    _left_out: int = 0
    _until: float = field(default=0.0)  # end of the present span

    def lines(self, data: bytes, now: float) -> list[str]:
        """Lines to log. ``data`` has been printed since the last call."""
        found: list[str] = []
        if now >= self._until:
            if self._left_out:
                found.append(f"({self._left_out} lines were left out)")
            self._shown = self._left_out = 0
            self._until = now + SPAN_S
        *whole, rest = (self._part + data).split(b"\n")
        self._part = rest[:MOST_LINE_BYTES]
        for line in filter(None, whole):
            if self._shown < MOST_LINES:
                self._shown += 1
                found.append(texts.cut(line.decode(errors="replace"), MOST_LINE_BYTES))
            else:
                self._left_out += 1
        return found
