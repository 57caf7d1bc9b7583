"""What an attack has done, and what has gone wrong."""

from __future__ import annotations

import logging
import resource
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

MOST_TOLD = 20
MOST_GROWTH_MB = 400


@dataclass
class Tally:
    """Cases by kind, and breaches: a process that died, hung or grew, or a job that changed."""

    cases: Counter[str] = field(default_factory=Counter)
    breaches: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    most_growth_mb: float = MOST_GROWTH_MB
    peak_mb: float = 0.0
    _at_first_mb: float = 0.0

    def breach(self, kind: str, what: str) -> None:
        """One more. what: enough to repeat it."""
        self.breaches[kind] += 1
        if len(self.told) < MOST_TOLD:
            self.told.append(f"{kind}: {what[:500]}")

    def judge(self, state: dict[str, Any], after: str) -> bool:
        """Whether a victim's process has logged no exception and has not grown. state: see
        :meth:`Defects.state`. The first one is what it is compared with."""
        self.peak_mb = state["peak_mb"]
        self._at_first_mb = self._at_first_mb or self.peak_mb
        for defect in state["defects"]:
            self.breach("exception", f"{defect} after {after}")
        has_grown = self.peak_mb > self._at_first_mb + self.most_growth_mb
        if has_grown:
            self.breach("memory", f"{self.peak_mb:.0f} MB after {after}")
        return not state["defects"] and not has_grown

    def add(self, other: Tally) -> None:
        """Add the counts of another run."""
        self.cases.update(other.cases)
        self.breaches.update(other.breaches)
        self.told += other.told
        self.peak_mb = max(self.peak_mb, other.peak_mb)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the run."""
        return {
            "cases": dict(self.cases),
            "breaches": dict(self.breaches),
            "told": self.told,
            "peak_mb": round(self.peak_mb),
        }


class Defects(logging.Handler):
    """Exceptions that the production code survives and logs, such as those of arbiters."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []

    @classmethod
    def of_process(cls) -> Self:
        """Those of all loggers and threads from now on."""
        found = cls()
        logging.getLogger().addHandler(found)
        threading.excepthook = lambda given: found.causes.append(repr(given.exc_value))
        return found

    def state(self) -> dict[str, Any]:
        """For :meth:`Tally.judge`: the exceptions, and how large the process has been."""
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"peak_mb": peak_mb, "defects": list(self.causes)}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception."""
        if record.exc_info and record.exc_info[1] is not None:
            self.causes.append(f"{record.getMessage()}: {record.exc_info[1]!r}"[:300])
