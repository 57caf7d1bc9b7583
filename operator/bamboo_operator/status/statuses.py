"""Converts the job's status between the API and the core's types. Nothing is written here.

There are two writers, each with its own fields: the reconciler (everything here) and the arbiter
(``status.arbiter``). So neither can undo the other's writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from bamboo_core.api.identity import identity_hash
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import Metrics, Network, TrainingProgress
from bamboo_core.api.reasons import ConditionType, JobPhase
from bamboo_core.api.spec import Channel, JobSpec
from bamboo_core.controller.lifecycle import JobStatus, ZoneCount
from bamboo_core.controller.view import (
    Condition,
    DryZone,
    JobView,
    Losses,
    Memory,
    Shortage,
    Slot,
    parse_pod_name,
    pod_name,
)
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.protocol.channels import Route
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.labels import JOB_LABEL, STAGE_LABEL
from bamboo_operator.kube.timestamps import instant, timestamp
from bamboo_operator.status import checkpoints, failed_agents, protection, totals
from bamboo_operator.status.words import clipped, number

_MAX_ZONES = 8
_MAX_AGENTS = 1024
_GROWING = ("progress", "totals", "arbiter", "pace", "estimate")
"""Parts that change with every step."""


def read_memory(body: Object) -> Memory:
    """The memory of an earlier operator."""
    status = body.get("status") or {}
    conditions = tuple(_condition(c) for c in status.get("conditions") or [])
    terminal, reason, message = _terminal(conditions)
    pods, name = status.get("pods") or {}, body["metadata"]["name"]
    return Memory(
        incarnation=int(pods.get("incarnation", -1)),
        failures=failed_agents.read(status.get("failures"), name),
        losses=read_progress(body).losses,
        settled=frozenset(_read_agents(pods.get("settled") or "", name)),
        terminal=terminal,
        started_at=timestamp(status.get("startTime")),
        finished_at=timestamp(status.get("completionTime")),
        reason=reason,
        message=message,
        assured=int(pods.get("assured", 0)),
        assured_of=pods.get("assuredOf", ""),
        trained=status.get("phase") in (JobPhase.RUNNING, JobPhase.RECOVERING),
        times=totals.read_times(status),
        conditions=conditions,
        short=tuple(_shortage(short) for short in status.get("withoutNode") or []),
        dry=tuple(_dry_zone(dry) for dry in status.get("dryZones") or []),
    )


def _dry_zone(value: Object) -> DryZone:
    return DryZone(
        zone=value["zone"],
        times=int(value.get("times", 1)),
        since=timestamp(value.get("since")) or 0.0,
        until=timestamp(value.get("until")) or 0.0,
        room=int(value.get("room", 0)),
    )


def _shortage(value: Object) -> Shortage:
    slots = (Slot(*map(int, text.split("-"))) for text in value["slots"].split())
    return Shortage(timestamp(value["since"]) or 0.0, tuple(slots))


def _without_node(short: Shortage) -> Object:
    slots = " ".join(f"{slot.pipeline}-{slot.stage}" for slot in short.slots)
    return {"since": instant(short.since), "slots": slots}


def _dry_zones(memory: Memory) -> list[Object]:
    return [
        {
            "zone": dry.zone,
            "times": dry.times,
            "since": instant(dry.since),
            "until": instant(dry.until),
            "room": dry.room,
        }
        for dry in (memory.dry if memory.terminal is None else ())
    ]


def read_progress(body: Object) -> LastReported:
    """The progress that users see now. It holds until agents report more."""
    status = body.get("status") or {}
    progress, losses = status.get("progress") or {}, status.get("losses") or {}
    loss, validation = progress.get("loss"), progress.get("validationLoss")
    return LastReported(
        losses=Losses(int(losses.get("total", 0)), int(losses.get("noticed", 0))),
        progress=TrainingProgress(
            committed=int(progress.get("step", 0)) - 1,
            loss=None if loss is None else float(loss),
            validation_loss=None if validation is None else float(validation),
            skipped=int(progress.get("skippedSteps", 0)),
            metrics=_read_metrics(progress.get("metrics")),
            validation_metrics=_read_metrics(progress.get("validationMetrics")),
        ),
        checkpoint_error=status.get("checkpointError", ""),
        checkpoint_caveats=_read_caveat(status.get("lastCheckpoint") or {}),
        totals=totals.read(status),
        route=_read_route(status.get("transport")),
    )


def _read_metrics(found: Object | None) -> Metrics:
    return {name: float(value) for name, value in (found or {}).items()}


def steps_of(body: Object) -> int:
    """Steps at which the job was to end when the status was written; 0: it has none yet."""
    return int(((body.get("status") or {}).get("progress") or {}).get("steps", 0))


def read_heard(body: Object) -> frozenset[AgentId]:
    """Agents that an earlier operator has heard, beside the members in the durable facts."""
    heard = ((body.get("status") or {}).get("pods") or {}).get("heard") or ""
    return frozenset(map(AgentId, _read_agents(heard, body["metadata"]["name"])))


def _read_caveat(checkpoint: Object) -> dict[str, str]:
    caveat = checkpoint.get("caveat", "")
    return {checkpoint["path"]: caveat} if caveat else {}


def _read_route(found: Object | None) -> Route | None:
    if not found:
        return None
    is_encrypted = bool(found.get("encrypted", False))
    return Route(Channel(found["channel"]), "", found.get("reason", ""), is_encrypted)


def read(body: Object) -> JobStatus:
    """The counters and numbers that a job has whatever becomes of it."""
    status, reported, memory = body["status"], read_progress(body), read_memory(body)
    checkpoint = status.get("lastCheckpoint") or {}
    return JobStatus(
        JobPhase(status["phase"]),
        memory.conditions,
        epoch=int(status.get("planEpoch", 0)),
        attempt=int(status.get("attempt", 0)),
        progress=reported.progress,
        checkpoint_step=int(checkpoint.get("step", -1)),
        best=checkpoints.read_best(status),
        losses=reported.losses,
        failures=memory.failures,
        totals=reported.totals,
        times=memory.times,
    )


def _condition(value: Object) -> Condition:
    return Condition(
        value["type"],
        {"True": True, "False": False}.get(value.get("status", "")),
        value.get("reason", ""),
        value.get("message", ""),
        timestamp(value.get("lastTransitionTime")) or 0.0,
    )


def _terminal(conditions: Iterable[Condition]) -> tuple[Outcome | None, str, str]:
    for condition in conditions:
        if condition.status and condition.type == ConditionType.COMPLETE:
            return Outcome.COMPLETE, condition.reason, condition.message
        if condition.status and condition.type == ConditionType.FAILED:
            return Outcome.FAILED, condition.reason, condition.message
    return None, "", ""


def to_object(job: JobView, spec: JobSpec, status: JobStatus, memory: Memory) -> Object:
    """The status of an accepted job, without the instants of :func:`with_times`."""
    has_ended = memory.terminal is not None
    pipelines, agents = _summaries(spec, status)
    found: Object = {
        "observedGeneration": job.generation,
        "phase": status.phase,
        "conditions": conditions(status.conditions, job.generation),
        "startTime": memory.started_at and instant(memory.started_at),
        "completionTime": memory.finished_at and instant(memory.finished_at),
        "planEpoch": status.epoch,
        "attempt": status.attempt,
        "rollbacks": status.rollbacks or None,
        "processors": [_processor(kind) for kind in status.processors] or None,
        "activePipelines": status.pipelines,
        "pipelinesSummary": None if has_ended else pipelines,  # not 0/0
        "agentsSummary": None if has_ended else agents,
        "feasiblePipelines": status.feasible_pipelines,
        "selector": f"{JOB_LABEL}={job.name},{STAGE_LABEL}=0",  # one pod for each pipeline
        "agents": _zones(status.zones),
        "progress": _progress(status),
        "losses": {"total": status.losses.total, "noticed": status.losses.noticed},
        "failures": failed_agents.write(memory.failures, job.name),
        "totals": totals.write(status.totals),
        "times": totals.write_times(status.times),
        "lastCheckpoint": checkpoints.newest(
            status.checkpoint_step, status.checkpoint_path, clipped(status.checkpoint_caveat)
        ),
        "best": checkpoints.write_best(status.best),
        "checkpointError": clipped(status.checkpoint_error) or None,
        "protection": protection.write(status),
        "transport": _transport(status),
        "identity": identity_hash(spec),
        "withoutNode": [_without_node(short) for short in memory.short] or None,
        "dryZones": _dry_zones(memory) or None,
        "pods": _pods(job, memory, status),
    }
    return {key: value for key, value in found.items() if value is not None}


def _summaries(spec: JobSpec, status: JobStatus) -> tuple[str, str]:
    """The pipelines and the agents of a job that has not ended, of those that it wants. A suspended
    job wants none now, and has those that it will want."""
    grid = spec.pipelines
    agents = grid.count * grid.stages if spec.suspend else status.agents_wanted
    return f"{status.pipelines}/{grid.count}", f"{status.agents_connected}/{agents}"


def conditions(values: Iterable[Condition], generation: int) -> list[Object]:
    """Conditions in the format of Kubernetes."""
    return [
        {
            "type": c.type,
            "status": "Unknown" if c.status is None else str(c.status),
            "reason": c.reason,
            "message": clipped(_in_one_line(c.message)),
            "lastTransitionTime": instant(c.since),
            "observedGeneration": generation,
        }
        for c in values
    ]


def envelope(job: JobView, status: Object) -> Object:
    """The body of a server-side apply of the status."""
    return {
        "apiVersion": api.API_VERSION,
        "kind": "BambooJob",
        "metadata": {"name": job.name, "namespace": job.namespace, "uid": job.uid},
        "status": status,
    }


def _progress(status: JobStatus) -> Object:
    progress = status.progress
    found: Object = {"step": progress.committed + 1, "steps": status.steps}
    if progress.loss is not None:
        found["loss"] = number(progress.loss, 4)
    if progress.validation_loss is not None:
        found["validationLoss"] = number(progress.validation_loss, 4)
    if progress.metrics:
        found["metrics"] = _metrics(progress.metrics)
    if progress.validation_metrics:
        found["validationMetrics"] = _metrics(progress.validation_metrics)
    if status.samples_per_s:
        found["samplesPerSecond"] = number(status.samples_per_s, 1)
    if progress.skipped:
        found["skippedSteps"] = progress.skipped
    return found


def _metrics(metrics: Metrics) -> Object:
    return {name: f"{value:.6g}" for name, value in sorted(metrics.items())}


def _processor(kind: ProcessorKind) -> Object:
    products = {"products": kind.products} if kind.products else {}
    return {"device": kind.device, **products, "step": kind.step}


def _transport(status: JobStatus) -> Object | None:
    if status.route is None:
        return None
    route, share = status.route, round(status.totals.group_share, 3)
    return {
        "channel": route.channel.value,
        "encrypted": route.is_encrypted,
        "reason": route.reason,
        **({"groupShare": share} if route.channel is Channel.PROCESS_GROUP else {}),
        **_network(status.network),
    }


def _network(network: Network) -> Object:
    """The network between agents, as far as it is known."""
    out: Object = {}
    if network.planned:
        out["plannedGbps"] = _gbps(network.planned)
    if network.measured:
        out["measuredGbps"] = _gbps(network.measured)
    if (slowest := network.slowest) is not None:
        out["slowestPair"] = {
            "from": slowest.sender,
            "to": slowest.receiver,
            "gbps": _gbps(slowest.rate),
        }
    return out


def _gbps(bytes_per_s: float) -> float:
    return float(f"{bytes_per_s * 8 / 1e9:.3g}")


def _zones(zones: tuple[ZoneCount, ...]) -> list[Object]:
    listed = zones[:_MAX_ZONES]
    if len(zones) > _MAX_ZONES:
        rest = zones[_MAX_ZONES:]
        others = ZoneCount(
            "others",
            wanted=sum(z.wanted for z in rest),
            running=sum(z.running for z in rest),
            connected=sum(z.connected for z in rest),
            spot=sum(z.spot for z in rest),
        )
        listed = (*listed, others)
    return [
        {
            "zone": z.zone,
            "wanted": z.wanted,
            "running": z.running,
            "connected": z.connected,
            "spot": z.spot,
        }
        for z in listed
    ]


def _pods(job: JobView, memory: Memory, status: JobStatus) -> Object:
    """The pods that matter to the next operator; of a finished job none."""
    is_over = memory.terminal is not None
    settled = "" if is_over else _agents(job.name, memory.settled)
    found: Object = {"incarnation": memory.incarnation, "settled": settled}
    found |= {"heard": _agents(job.name, status.heard)} if status.heard and not is_over else {}
    found |= {"assured": memory.assured} if memory.assured else {}
    return found | ({"assuredOf": memory.assured_of} if memory.assured_of else {})


def _agents(job: str, names: Iterable[str]) -> str:
    """The newest agents by incarnation, such as ``i3:0-0,0-1``; the pods of older ones are about to
    be deleted."""
    parsed = (parse_pod_name(job, name) for name in names)
    newest = sorted((found[1], found[0]) for found in parsed if found is not None)[-_MAX_AGENTS:]
    listed = itertools.groupby(newest, key=lambda found: found[0])
    return " ".join(
        f"i{number}:" + ",".join(f"{slot.pipeline}-{slot.stage}" for _, slot in found)
        for number, found in listed
    )


def _read_agents(text: str, job: str) -> Iterator[str]:
    """Inverse of :func:`_agents`. Earlier versions wrote the names of pods without the job's."""
    for word in text.split():
        number, colon, slots = word.partition(":")
        if not colon:
            yield f"{job}-{word}"
            continue
        for slot in slots.split(","):
            yield pod_name(job, Slot(*map(int, slot.split("-"))), int(number.removeprefix("i")))


def with_times(new: Object, old: Object, now: float) -> Object:
    """Add the instants of what has changed since the old status."""
    out = dict(new)
    progress, before = dict(new["progress"]), old.get("progress") or {}
    same = {k: v for k, v in before.items() if k != "reportTime"} == progress
    progress["reportTime"] = (same and before.get("reportTime")) or instant(now)
    out["progress"] = progress
    if "lastCheckpoint" in new:
        known = old.get("lastCheckpoint") or {}
        same = known.get("step") == new["lastCheckpoint"]["step"] and "time" in known
        out["lastCheckpoint"] = new["lastCheckpoint"] | {
            "time": known["time"] if same else instant(now)
        }
    return out


def differ_in_progress_only(a: Object, b: Object) -> bool:
    """True: only numbers that grow by themselves have changed, so a write can wait."""

    def core(value: Object) -> Object:
        kept = {k: v for k, v in value.items() if k not in _GROWING}
        kept["validationLoss"] = (value.get("progress") or {}).get("validationLoss")
        kept["conditions"] = [
            {k: v for k, v in c.items() if k != "message" or not _tells_the_step(c)}
            for c in value.get("conditions") or []
        ]
        return kept

    return core(a) == core(b)


def _tells_the_step(condition: Object) -> bool:
    """Its message contains "step 17 of 100". While the job does not run, it says why."""
    return (condition["type"], condition["status"]) == (ConditionType.RUNNING, "True")


def _in_one_line(text: str) -> str:
    """Kubelets and programs say several lines. A condition is a row of a table."""
    return " / ".join(line.strip() for line in text.split("\n") if line.strip())
