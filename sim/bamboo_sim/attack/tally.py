"""What an attack has done, and what has gone wrong."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

MOST_TOLD = 20


@dataclass
class Tally:
    """Cases by kind, and breaches: a process that died, hung or grew, or a job that changed."""

    cases: Counter[str] = field(default_factory=Counter)
    breaches: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def breach(self, kind: str, what: str) -> None:
        """One more. what: enough to repeat it."""
        self.breaches[kind] += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{kind}: {what[:500]}")


class Defects(logging.Handler):
    """Exceptions that the production code survives and logs, such as those of arbiters."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self.causes.append(f"{record.getMessage()}: {record.exc_info[1]!r}"[:300])
