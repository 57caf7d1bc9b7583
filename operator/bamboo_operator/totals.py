"""The job's totals and times in its status. Metrics show what is written: it never goes back."""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_operator.api import Object
from bamboo_operator.manifests import precise_instant
from bamboo_operator.observe import timestamp


def read(status: Object) -> Totals:
    """What the status says; a part that is missing is zero."""
    found = status.get("totals") or {}
    return Totals(
        steps=int(found.get("steps", 0)),
        repeated_steps=int(found.get("repeatedSteps", 0)),
        redone_tasks=int(found.get("redoneTasks", 0)),
        busy_s=float(found.get("busySeconds", 0.0)),
        sent_bytes=int(found.get("sentBytes", 0)),
        corruptions=int(found.get("corruptions", 0)),
        stalls={str(k): int(v) for k, v in (found.get("stalls") or {}).items()},
        pauses={
            str(p["cause"]): Pauses(int(p.get("count", 0)), _seconds(p.get("seconds")))
            for p in found.get("pauses") or []
        },
    )


def write(totals: Totals) -> Object | None:
    """Inverse of :func:`read`, without zeros."""
    found: Object = {
        "steps": totals.steps,
        "repeatedSteps": totals.repeated_steps,
        "redoneTasks": totals.redone_tasks,
        "busySeconds": round(totals.busy_s, 3),
        "sentBytes": totals.sent_bytes,
        "corruptions": totals.corruptions,
        "stalls": dict(sorted(totals.stalls.items())),
        "pauses": [
            {"cause": cause, "count": pauses.count, "seconds": _rounded(pauses.seconds)}
            for cause, pauses in sorted(totals.pauses.items())
        ],
    }
    return {key: value for key, value in found.items() if value} or None


def read_times(status: Object) -> Times:
    """How the job has spent its time until now."""
    found = status.get("times") or {}
    state = found.get("state")
    return Times(
        state=TimeState(state) if state in list(TimeState) else None,
        since=timestamp(found.get("since")) or 0.0,
        seconds=_seconds(found.get("seconds")),
    )


def write_times(times: Times) -> Object | None:
    """Inverse of :func:`read_times`."""
    if times.state is None:
        return None
    since = precise_instant(times.since)
    return {"state": times.state.value, "since": since, "seconds": _rounded(times.seconds)}


def _seconds(found: Mapping[str, object] | None) -> dict[str, float]:
    return {str(k): float(str(v)) for k, v in (found or {}).items()}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in sorted(seconds.items()) if value}
