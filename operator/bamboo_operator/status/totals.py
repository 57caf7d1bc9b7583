"""The job's totals and times in its status. Metrics show what is written: it never goes back."""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.api.progress import Ahead, Hosted, Way
from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.timestamps import precise_instant, timestamp

_MOST = (1 << 63) - 1


def read(status: Object) -> Totals:
    """The totals in the status; a part that is missing is zero."""
    found = status.get("totals") or {}
    ahead, hosted = found.get("ahead") or {}, found.get("hosted") or {}
    return Totals(
        steps=int(found.get("steps", 0)),
        repeated_steps=int(found.get("repeatedSteps", 0)),
        redone_tasks=int(found.get("redoneTasks", 0)),
        busy_s=float(found.get("busySeconds", 0.0)),
        sent_bytes=int(found.get("sentBytes", 0)),
        group_bytes=int(found.get("groupBytes", 0)),
        corruptions=int(found.get("corruptions", 0)),
        stalls={str(k): int(v) for k, v in (found.get("stalls") or {}).items()},
        attempts={str(k): int(v) for k, v in (found.get("attempts") or {}).items()},
        pauses={
            str(p["cause"]): Pauses(int(p.get("count", 0)), _seconds(p.get("seconds")))
            for p in found.get("pauses") or []
        },
        sent={
            Way(str(s["lane"]), str(s["from"]), str(s["to"])): int(s.get("bytes", 0))
            for s in found.get("sent") or []
        },
        ahead=Ahead(
            slices=int(ahead.get("slices", 0)),
            dropped=int(ahead.get("dropped", 0)),
            host_bytes=int(ahead.get("hostBytes", 0)),
            copied_bytes=int(ahead.get("copiedBytes", 0)),
            copied_s=float(ahead.get("copiedSeconds", 0.0)),
            left_bytes=int(ahead.get("leftBytes", 0)),
            failed=int(ahead.get("failed", 0)),
        ),
        hosted=Hosted(
            host_bytes=int(hosted.get("hostBytes", 0)),
            left_bytes=int(hosted.get("leftBytes", 0)),
            copied_bytes=int(hosted.get("copiedBytes", 0)),
            copied_s=float(hosted.get("copiedSeconds", 0.0)),
        ),
    )


def write(totals: Totals) -> Object | None:
    """Inverse of :func:`read`, without zeros."""
    found: Object = {
        "steps": totals.steps,
        "repeatedSteps": totals.repeated_steps,
        "redoneTasks": totals.redone_tasks,
        "busySeconds": round(totals.busy_s, 3),
        "sentBytes": _long(totals.sent_bytes),
        "groupBytes": _long(totals.group_bytes),
        "corruptions": totals.corruptions,
        "stalls": dict(sorted(totals.stalls.items())),
        "attempts": dict(sorted(totals.attempts.items())),
        "pauses": [
            {"cause": cause, "count": pauses.count, "seconds": _rounded(pauses.seconds)}
            for cause, pauses in sorted(totals.pauses.items())
        ],
        "sent": [
            {"lane": way.lane, "from": way.from_zone, "to": way.to_zone, "bytes": _long(count)}
            for way, count in sorted(totals.sent.items())
        ],
        "ahead": _ahead(totals.ahead),
        "hosted": _hosted(totals.hosted),
    }
    return {key: value for key, value in found.items() if value} or None


def _ahead(ahead: Ahead) -> Object:
    return _without_zeros(
        slices=_long(ahead.slices),
        dropped=_long(ahead.dropped),
        hostBytes=_long(ahead.host_bytes),
        copiedBytes=_long(ahead.copied_bytes),
        copiedSeconds=round(ahead.copied_s, 3),
        leftBytes=_long(ahead.left_bytes),
        failed=_long(ahead.failed),
    )


def _hosted(hosted: Hosted) -> Object:
    return _without_zeros(
        hostBytes=_long(hosted.host_bytes),
        leftBytes=_long(hosted.left_bytes),
        copiedBytes=_long(hosted.copied_bytes),
        copiedSeconds=round(hosted.copied_s, 3),
    )


def _without_zeros(**values: float) -> Object:
    return {key: value for key, value in values.items() if value}


def _long(value: int) -> int:
    """The API server takes no larger number, whatever agents say."""
    return min(value, _MOST)


def read_times(status: Object) -> Times:
    """How the job has spent its time until now."""
    found = status.get("times") or {}
    state = found.get("state")
    return Times(
        state=TimeState(state) if state in list(TimeState) else None,
        since=timestamp(found.get("since")) or 0.0,
        seconds=_seconds(found.get("seconds")),
        resumed_s=float(found.get("activeBeforeResume", 0.0)),
    )


def write_times(times: Times) -> Object | None:
    """Inverse of :func:`read_times`."""
    if times.state is None:
        return None
    since = precise_instant(times.since)
    found = {"state": times.state.value, "since": since, "seconds": _rounded(times.seconds)}
    return found | _without_zeros(activeBeforeResume=round(times.resumed_s, 3))


def _seconds(found: Mapping[str, object] | None) -> dict[str, float]:
    return {str(k): float(str(v)) for k, v in (found or {}).items()}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in sorted(seconds.items()) if value}
