"""Converts what is remembered of failed agents between the job's status and the core's types."""

from __future__ import annotations

from typing import Any

from bamboo_core.api.reasons import failure_cause
from bamboo_core.controller.failures import (
    MOST_AVOIDED,
    MOST_RECENT,
    Avoided,
    FailedStarts,
    Failure,
    Failures,
    Misfits,
    Refusals,
)
from bamboo_core.model.ids import AgentId
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.timestamps import instant, timestamp


def write(known: Failures, job: str) -> Object:
    """``status.failures``. Agents are written without the name of the job."""
    found: Object = {
        "total": known.total,
        "unforgiven": known.unforgiven,
        "causes": [{"cause": cause, "count": count} for cause, count in known.counts],
    }
    if known.last is not None:
        found["last"] = _write(known.last, job) | {"message": known.message}
    if known.recent:
        found["recent"] = [_write(failure, job) for failure in known.recent]
    if known.older:
        found["older"] = {"count": known.older, "step": known.older_step}
    if known.avoided:
        found["avoided"] = [_write_place(place) for place in known.avoided]
    if known.misfits.rounds:
        misfits = known.misfits
        found["misfits"] = {
            "rounds": misfits.rounds,
            "until": instant(misfits.until),
            "message": misfits.message,
        }
    if known.refusals.rounds:
        refusals = known.refusals
        found["refusals"] = {"rounds": refusals.rounds, "until": instant(refusals.until)}
    if known.starts.rounds:
        found["starts"] = _write_starts(known.starts)
    return found


def _write_starts(starts: FailedStarts) -> Object:
    slots = " ".join(f"{pipeline}-{stage}" for pipeline, stage in sorted(starts.slots))
    found: Object = {
        "rounds": starts.rounds,
        "until": instant(starts.until),
        "slots": slots,
        "incarnation": starts.incarnation,
        "first": starts.first,
        "message": starts.message,
        "template": starts.template,
        "step": starts.step,
    }
    found |= {"heard": True} if starts.were_heard else {}
    found |= {"taken": starts.taken} if starts.taken else {}
    return found | ({"counted": True} if starts.is_counted else {})


def _read_starts(value: Object) -> FailedStarts:
    slots = (text.split("-") for text in (value.get("slots") or "").split())
    return FailedStarts(
        rounds=int(value.get("rounds", 0)),
        until=timestamp(value.get("until")) or 0.0,
        slots=frozenset((int(pipeline), int(stage)) for pipeline, stage in slots),
        incarnation=int(value.get("incarnation", -1)),
        first=int(value.get("first", -1)),
        message=value.get("message", ""),
        were_heard=bool(value.get("heard")),
        template=value.get("template", ""),
        step=int(value.get("step", 0)),
        is_counted=bool(value.get("counted")),
        taken=int(value.get("taken", 0)),
    )


def _write_place(place: Avoided) -> Object:
    found: Object = {"node": place.node, "machine": place.machine, "until": instant(place.until)}
    if place.is_misfit:
        found["misfit"] = True
    if place.kind:
        found["instanceType"] = place.kind
    if place.template:
        found["template"] = place.template
    return found


def _write(failure: Failure, job: str) -> Object:
    found: Object = {
        "agent": failure.agent.removeprefix(f"{job}-"),
        "cause": failure.cause,
        "step": failure.step,
        "time": instant(failure.at),
    }
    if failure.node:
        found["node"] = failure.node
    if failure.machine:
        found["machine"] = failure.machine
    if failure.is_user_error:
        found["userError"] = True
    if failure.is_tolerated:
        found["tolerated"] = True
    if failure.template:
        found["template"] = failure.template
    return found


def read(value: Any, job: str) -> Failures:
    """Inverse of :func:`write`; what is missing or malformed counts as no failure."""
    if not isinstance(value, dict):
        return Failures()
    counts: dict[Any, int] = {}
    for entry in value.get("causes") or []:
        cause = failure_cause(entry["cause"])
        counts[cause] = counts.get(cause, 0) + int(entry.get("count", 0))
    older, last = value.get("older") or {}, value.get("last")
    avoided = (value.get("avoided") or [])[-MOST_AVOIDED:]
    return Failures(
        counts=tuple(sorted(counts.items())),
        recent=tuple(_read(entry, job) for entry in (value.get("recent") or [])[-MOST_RECENT:]),
        older=int(older.get("count", 0)),
        older_step=int(older.get("step", 0)),
        avoided=tuple(
            Avoided(
                entry["node"],
                entry["machine"],
                timestamp(entry["until"]) or 0.0,
                bool(entry.get("misfit")),
                entry.get("instanceType", ""),
                entry.get("template", ""),
            )
            for entry in avoided
        ),
        misfits=_read_misfits(value.get("misfits") or {}),
        refusals=_read_refusals(value.get("refusals") or {}),
        starts=_read_starts(value.get("starts") or {}),
        last=None if last is None else _read(last, job),
        message="" if last is None else last.get("message", ""),
    )


def _read_misfits(value: Object) -> Misfits:
    until = timestamp(value.get("until")) or 0.0
    return Misfits(int(value.get("rounds", 0)), until, value.get("message", ""))


def _read_refusals(value: Object) -> Refusals:
    return Refusals(int(value.get("rounds", 0)), timestamp(value.get("until")) or 0.0)


def _read(value: Object, job: str) -> Failure:
    return Failure(
        agent=AgentId(f"{job}-{value['agent']}"),
        cause=failure_cause(value["cause"]),
        step=int(value.get("step", 0)),
        at=timestamp(value.get("time")) or 0.0,
        node=value.get("node", ""),
        machine=value.get("machine", ""),
        is_user_error=bool(value.get("userError")),
        is_tolerated=bool(value.get("tolerated")),
        template=value.get("template", ""),
    )
