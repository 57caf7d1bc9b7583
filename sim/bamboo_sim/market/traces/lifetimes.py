"""Files with one machine on each line: where it was, from when to when, and how it ended."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from bamboo_sim.market.traces.records import Lifetime, TraceError

_COLUMNS = {"zone", "machine_type", "start_utc", "end_utc", "ended_by"}
_ENDS = {"preempted": True, "stopped_by_user": False}


def read(path: Path) -> list[Lifetime]:
    """CSV with a header. TraceError names the first line that is no machine."""
    found = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        missing = _COLUMNS - set(rows.fieldnames or ())
        if missing:
            raise TraceError(path, 1, f"the header has no {', '.join(sorted(missing))}; add them.")
        for row in rows:
            if None in row or None in row.values():
                what = f"it has not the header's {len(rows.fieldnames or ())} cells; mend it."
                raise TraceError(path, rows.line_num, what)
            try:
                begin, end = (_ms(row[name]) for name in ("start_utc", "end_utc"))
                is_preempted = _ENDS[row["ended_by"]]
            except (ValueError, KeyError, TypeError, AttributeError):
                what = "times are ISO 8601, and ended_by is preempted or stopped_by_user."
                raise TraceError(path, rows.line_num, what) from None
            if end < begin:
                raise TraceError(path, rows.line_num, "end_utc is before start_utc; swap them.")
            found.append(Lifetime(row["zone"], row["machine_type"], begin, end, is_preempted))
    return found


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
