"""How a job is protected, in its status: copies, the mode that Auto has taken, and why."""

from __future__ import annotations

from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.planning.requests import Bound, Comparison
from bamboo_core.protection.choice import Estimate, Verdict
from bamboo_core.protection.inputs import Input, inputs
from bamboo_operator.kube.api import Object
from bamboo_operator.status.words import clipped, number

_WHY = ("reason", "inputs", "estimates")


def write(status: JobStatus) -> Object | None:
    """``status.protection``; None: there is nothing to say."""
    found: Object = {}
    if status.copies:
        copies = [{"count": count, "layers": layers} for count, layers in status.copies]
        found |= {"leastCopies": status.copies[0][0], "copies": copies}
    if status.mode is not None:
        found |= _verdict(status.mode, status.verdict)
    if status.sharing is not None:
        found["sharing"] = _sharing(status.sharing)
    return found or None


def with_reason(new: Object, old: Object, spec: JobSpec) -> Object:
    """The status with the reason why Auto has taken the mode, from the status before. Nobody else
    knows it when the job has ended, and before another leader's first plan."""
    found, before = new.get("protection") or {}, old.get("protection") or {}
    is_auto = spec.redundancy.mode is RedundancyMode.AUTO
    if not is_auto or "reason" in found or found.get("mode") != before.get("mode"):
        return new
    why = {key: before[key] for key in _WHY if key in before}
    return new | {"protection": found | why} if why else new


def _sharing(compared: Comparison) -> Object:
    """The way in which lost work is shared, and what the others would cost."""
    taken = compared.taken
    return {
        "way": taken.way,
        "stepSeconds": f"{taken.step_s:.3g}",
        "others": [
            {
                "way": x.way,
                "stepSeconds": f"{x.step_s:.3g}",
                **({"atLeast": True} if x.bound is Bound.LEAST else {}),
                **({"atMost": True} if x.bound is Bound.MOST else {}),
            }
            for x in compared.others
        ],
    }


def _verdict(mode: RedundancyMode, verdict: Verdict | None) -> Object:
    """The decision of mode Auto, with its reason and inputs."""
    if verdict is None or verdict.mode is not mode:
        return {"mode": mode.value}
    return {
        "mode": mode.value,
        "reason": clipped(verdict.reason),
        "inputs": [_input(x) for x in inputs(verdict.facts)],
        "estimates": [_estimate(e) for e in verdict.estimates],
    }


def _input(x: Input) -> Object:
    value = str(x.value) if isinstance(x.value, int) else f"{x.value:.4g}"
    return {"name": x.name, "value": value, "source": x.source.value}


def _estimate(estimate: Estimate) -> Object:
    if estimate.excluded:
        return {"mode": estimate.mode.value, "excluded": clipped(estimate.excluded)}
    return {
        "mode": estimate.mode.value,
        "overhead": number(estimate.overhead, 4),
        "expectedStep": number(estimate.step, 4),
        "pauseSeconds": number(estimate.pause_s, 2),
        "fatalPerHour": f"{estimate.fatal_per_hour:.2g}",
        "lostSecondsPerHour": number(estimate.lost_s, 1),
    }
