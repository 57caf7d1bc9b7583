"""Reads a BambooJob's spec and status into immutable types. Pure.

Status fields may be missing, since the operator may not have written them yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import Any

from bamboo_cli.job.configuration import Configuration, configuration
from bamboo_core.api.events import RestoreCause
from bamboo_core.api.progress import Metrics
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.model.counts import duration
from bamboo_core.model.processors import ProcessorKind

Manifest = Mapping[str, Any]
"""An object of the Kubernetes API, as parsed JSON."""

ENDED = ("Complete", "Failed")

_STALE_S = 60.0
_LONG_STALL_S = 3600.0  # then the status of a job that stands still is as old, too
_LONG_PAUSES_S = 600.0  # then tenths of a second say nothing
_LONG_STEP_S = 200.0  # if the length of a step is not known


@dataclass(frozen=True)
class ConditionLine:
    """A condition of the status."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Paused:
    """All pauses of one cause since the job began."""

    cause: str
    count: int
    seconds: float


@dataclass(frozen=True)
class Left:
    """What is left until all steps are committed, at the pace that the operator has measured."""

    seconds: float | None  # None: not known yet
    usd: float | None  # None: not known yet, or there are no prices
    has_unpriced: bool  # nodes without a price are missing


@dataclass(frozen=True)
class Job:
    """The spec and status of a job."""

    namespace: str
    name: str
    uid: str
    phase: str
    pipelines: int
    stages: int
    active_pipelines: int
    step: int
    steps: int
    loss: float | None  # None: not known yet
    validation_loss: float | None
    samples_per_s: float
    plan_epoch: int
    attempt: int
    lost: int
    lost_noticed: int
    checkpoint_step: int | None
    checkpoint_path: str
    redundancy: str  # mode; with Auto the one that it has taken, and "" until then
    redundancy_reason: str  # why Auto has taken it; empty: the spec names it
    channel: str  # that carries large tensors; "" until an agent is ready
    channel_reason: str
    group_share: float | None  # of the bytes between agents; None: there are no groups
    network: str  # what agents measure of it, in words; empty: nothing yet
    is_network_slow: bool  # plans count with less than the spec says
    conditions: tuple[ConditionLine, ...]
    paused: tuple[Paused, ...] = ()  # since the job began; a cause without pauses is missing
    repeated_steps: int = 0  # committed steps that restores have undone
    attempts: tuple[tuple[str, int], ...] = ()  # (cause, how many) of those after the first one
    left: Left | None = None  # None: the job has ended or does not train
    configuration: Configuration = ()  # the parts of the spec that a report names
    best: str = ""  # the best checkpoint, in words; empty: there is none
    metrics: Metrics = field(default_factory=dict)  # beside the loss
    validation_metrics: Metrics = field(default_factory=dict)
    processors: tuple[ProcessorKind, ...] = ()  # that have computed the present state
    silent_s: float = (
        0.0  # so long the status of a job that trains has told nothing new; 0: not long
    )

    @property
    def restores(self) -> tuple[tuple[str, int], ...]:
        """(cause, how many) of those that the operator has counted."""
        return tuple(each for each in self.attempts if each[0] != RestoreCause.RESUMED)

    @property
    def resumes(self) -> int:
        """Attempts that began since the job was resumed after a suspension."""
        return dict(self.attempts).get(RestoreCause.RESUMED, 0)

    @property
    def other_attempts(self) -> int:
        """Restores or resumes whose cause an earlier version of the operator has not counted."""
        return max(0, self.attempt - sum(count for _, count in self.attempts))

    @property
    def pauses(self) -> int:
        """Number of pauses since the job began."""
        return sum(each.count for each in self.paused)

    @property
    def paused_s(self) -> float:
        """Their seconds."""
        return sum(each.seconds for each in self.paused)

    def condition(self, kind: str) -> ConditionLine | None:
        """None if the operator has not set it."""
        return next((line for line in self.conditions if line.type == kind), None)

    def has(self, kind: str) -> bool:
        line = self.condition(kind)
        return line is not None and line.status == "True"

    @property
    def ended(self) -> str | None:
        """Complete or Failed; None while the job has not ended."""
        return next((kind for kind in ENDED if self.has(kind)), None)


def read_job(manifest: Manifest, now: float | None = None) -> Job:
    """now: Unix time in seconds; None: whether the status is fresh does not matter."""
    job = _read(manifest)
    return job if now is None else replace(job, silent_s=_silent_s(manifest, job, now))


def _silent_s(manifest: Manifest, job: Job, now: float) -> float:
    """A job that trains has a new step in its status every few seconds, or after each step. One
    that stands still says so."""
    status = manifest.get("status") or {}
    if job.ended is not None or not job.has(ConditionType.RUNNING):
        return 0.0
    news = [c.get("lastTransitionTime") for c in status.get("conditions") or []]
    told = [(status.get("progress") or {}).get("reportTime"), *news]
    times = [at for at in map(instant, told) if at is not None]
    if not times:
        return 0.0
    batch = float((manifest["spec"].get("training") or {}).get("globalBatchSize") or 0)
    step_s = batch / job.samples_per_s if job.samples_per_s else _LONG_STEP_S
    age_s, limit_s = now - max(times), max(_STALE_S + 3 * step_s, _still_s(manifest, job))
    return age_s if age_s >= limit_s else 0.0


def _still_s(manifest: Manifest, job: Job) -> float:
    """How long the status of a job that stands still may tell no new step."""
    stalled = job.condition(ConditionType.STALLED)
    reason = stalled.reason if stalled is not None else ""
    if reason == Reason.LAST_WRITE_WAITS:
        policy = manifest["spec"].get("runPolicy") or {}
        return float(policy.get("lastWriteDeadlineSeconds") or _LONG_STALL_S) + _STALE_S
    is_still = reason in (Reason.NO_PROGRESS, Reason.CHECKPOINT_UNREACHABLE)
    return _LONG_STALL_S if is_still else 0.0


def instant(text: Any) -> float | None:
    """Unix time; None if there is none, or it cannot be read."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _best(found: Mapping[str, Any]) -> str:
    return f"step {found['step']}, {found['metric']} {found['value']}" if found else ""


def _read(manifest: Manifest) -> Job:
    metadata, spec = manifest["metadata"], manifest["spec"]
    status = manifest.get("status") or {}
    progress, losses = status.get("progress") or {}, status.get("losses") or {}
    checkpoint = status.get("lastCheckpoint") or {}
    protection = status.get("protection") or {}
    transport = status.get("transport") or {}
    totals = status.get("totals") or {}
    asked = (spec.get("redundancy") or {}).get("mode", "None")
    return Job(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", "Pending"),
        pipelines=spec["pipelines"]["count"],
        stages=spec["pipelines"]["stages"],
        active_pipelines=status.get("activePipelines", 0),
        step=progress.get("step", 0),
        steps=progress.get("steps") or spec["training"]["steps"],
        loss=_number(progress.get("loss")),
        validation_loss=_number(progress.get("validationLoss")),
        metrics=_metrics(progress.get("metrics")),
        validation_metrics=_metrics(progress.get("validationMetrics")),
        samples_per_s=_number(progress.get("samplesPerSecond")) or 0.0,
        plan_epoch=status.get("planEpoch", 0),
        attempt=status.get("attempt", 0),
        lost=losses.get("total", 0),
        lost_noticed=losses.get("noticed", 0),
        checkpoint_step=checkpoint.get("step"),
        checkpoint_path=checkpoint.get("path", ""),
        best=_best(status.get("best") or {}),
        redundancy=protection.get("mode", "") if asked == "Auto" else asked,
        redundancy_reason=protection.get("reason", "") if asked == "Auto" else "",
        channel=transport.get("channel", "") + ", encrypted" * transport.get("encrypted", False),
        channel_reason=transport.get("reason", ""),
        group_share=transport.get("groupShare"),
        network=_network(transport),
        is_network_slow="measuredGbps" in transport
        and transport["plannedGbps"] < (spec.get("transport") or {}).get("bandwidthGbps", inf),
        conditions=tuple(_condition(c) for c in status.get("conditions") or []),
        paused=tuple(_paused(each) for each in totals.get("pauses") or []),
        repeated_steps=totals.get("repeatedSteps", 0),
        attempts=tuple(sorted((totals.get("attempts") or {}).items())),
        left=_left(status),
        configuration=configuration(spec),
        processors=tuple(_processor(each) for each in status.get("processors") or []),
    )


def _network(transport: Manifest) -> str:
    measured, slowest = transport.get("measuredGbps"), transport.get("slowestPair")
    if measured is None:
        return ""
    text = f"agents measure {measured:g} Gb/s between them"
    text += f", plans count with {transport['plannedGbps']:g}"
    if slowest:
        text += f"; slowest: {slowest['from']} to {slowest['to']}, {slowest['gbps']:g} Gb/s"
    return text


def _left(status: Manifest) -> Left | None:
    found = status.get("estimate")
    if not found:
        return None
    seconds, cost = found.get("secondsLeft"), status.get("cost") or {}
    if seconds is None:
        return Left(None, None, has_unpriced=False)
    usd = found.get("dollarsLeft")
    return Left(seconds, usd, has_unpriced=usd is not None and bool(cost.get("unpricedNodes")))


def _metrics(found: Mapping[str, str] | None) -> Metrics:
    return {name: float(value) for name, value in sorted((found or {}).items())}


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _paused(pauses: Manifest) -> Paused:
    seconds = sum(map(float, (pauses.get("seconds") or {}).values()))
    return Paused(pauses["cause"], pauses.get("count", 0), seconds)


def _processor(found: Manifest) -> ProcessorKind:
    return ProcessorKind(found.get("device", ""), found.get("products", ""), found.get("step", 0))


def _condition(condition: Manifest) -> ConditionLine:
    return ConditionLine(
        type=condition["type"],
        status=condition["status"],
        reason=condition.get("reason", ""),
        message=condition.get("message", ""),
    )


def paused_text(seconds: float) -> str:
    """Such as ``86.5 s`` or ``12 min``: the time of pauses, wherever it is shown."""
    return f"{seconds:.1f} s" if seconds < _LONG_PAUSES_S else duration(seconds)


def obstacle(job: Job) -> str:
    """The condition that keeps the job from running."""
    for kind in ("Accepted", "CapacityAvailable", "ZoneSpreadSatisfied", "Running"):
        line = job.condition(kind)
        if line is not None and line.status == "False":
            return f"; {kind} is False: {line.message}"
    return ""
