"""The status that a kubelet reports for a pod, computed from its containers' records. Pure."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bamboo_devcluster.kube.clock import to_time

Object = dict[str, Any]


@dataclass(frozen=True)
class Waiting:
    """The container has not started, or not restarted, yet."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """The container runs."""

    started_at: dt.datetime


@dataclass(frozen=True)
class Terminated:
    """The container has ended."""

    exit_code: int
    reason: str
    started_at: dt.datetime
    finished_at: dt.datetime
    message: str = ""
    container_id: str = ""


State = Waiting | Running | Terminated


@dataclass
class ContainerRecord:
    """The state of one container of a pod."""

    name: str
    image: str
    is_sidecar: bool = False
    state: State = Waiting("ContainerCreating")
    last: Terminated | None = None
    restart_count: int = 0
    is_ready: bool = False
    is_started: bool = False
    container_id: str = ""


@dataclass(frozen=True)
class PodView:
    """A pod and its state on the node."""

    pod: Object
    init: Sequence[ContainerRecord]
    main: Sequence[ContainerRecord]
    pod_ip: str
    host_ip: str
    started_at: dt.datetime
    has_volumes: bool = True
    verdict: tuple[str, str] | None = None  # it is to end with this (reason, message)
    is_final: bool = False  # no container runs, and none will start
    is_refused: bool = False  # the node does not admit it, as the verdict says


def pod_phase(view: PodView) -> str:
    """Return the phase, by the kubelet's rules."""
    if view.verdict:
        return "Failed" if view.is_final else "Running"
    policy = view.pod["spec"].get("restartPolicy", "Always")
    init_phase = _init_phase(view.init, policy)
    if init_phase:
        return init_phase
    running, stopped, succeeded, waiting = _count(view.main)
    if waiting:
        return "Failed" if view.is_final else "Pending"
    if running:
        return "Running"
    all_good = stopped == succeeded
    if view.is_final:
        return "Succeeded" if all_good else "Failed"
    if policy == "Always":
        return "Running"
    if all_good:
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _init_phase(records: Sequence[ContainerRecord], policy: str) -> str:
    """Return Pending or Failed while init containers block the pod, else an empty string."""
    for record in records:
        done = isinstance(record.state, Terminated) and record.state.exit_code == 0
        if done or (record.is_sidecar and record.is_started):
            continue
        if isinstance(record.state, Terminated) and policy == "Never" and not record.is_sidecar:
            return "Failed"
        if not record.is_sidecar or not isinstance(record.state, Terminated):
            return "Pending"
    return ""


def _count(records: Sequence[ContainerRecord]) -> tuple[int, int, int, int]:
    running = stopped = succeeded = waiting = 0
    for record in records:
        if isinstance(record.state, Running):
            running += 1
        elif isinstance(record.state, Terminated):
            stopped += 1
            succeeded += record.state.exit_code == 0
        elif record.last:
            stopped += 1
        else:
            waiting += 1
    return running, stopped, succeeded, waiting


def build_status(view: PodView, *, now: dt.datetime, before: Mapping[str, Any]) -> Object:
    """Return the status to report; `before` is the last one, for transition times."""
    if view.is_refused and view.verdict:
        reason, message = view.verdict
        started = {"startTime": to_time(view.started_at)}
        return {"phase": "Failed", "reason": reason, "message": message, **started}
    phase = pod_phase(view)
    status: Object = {
        "phase": phase,
        "observedGeneration": view.pod["metadata"].get("generation", 0),
        "conditions": _conditions(view, phase, now, before.get("conditions") or []),
        "containerStatuses": [_container_status(record) for record in view.main],
        "hostIP": view.host_ip,
        "hostIPs": [{"ip": view.host_ip}],
        "podIP": view.pod_ip,
        "podIPs": [{"ip": view.pod_ip}],
        "startTime": to_time(view.started_at),
    }
    if view.init:
        status["initContainerStatuses"] = [_container_status(record) for record in view.init]
    if view.verdict and view.is_final:
        status["reason"], status["message"] = view.verdict
    return status


def _conditions(
    view: PodView, phase: str, now: dt.datetime, before: Sequence[Mapping[str, Any]]
) -> list[Object]:
    is_over = phase in ("Succeeded", "Failed")
    unready = [record.name for record in view.main if not record.is_ready]
    is_initialized = phase == "Succeeded" or not _init_phase(view.init, "Always")
    gates = _closed_gates(view.pod)
    contents: list[tuple[str, bool, str, str]] = [
        ("PodReadyToStartContainers", view.has_volumes and not is_over, "", ""),
        ("Initialized", is_initialized, "" if is_initialized else "ContainersNotInitialized", ""),
    ]
    reason = message = ""
    if is_over:
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    elif unready:
        reason = "ContainersNotReady"
        message = f"containers with unready status: [{' '.join(unready)}]"
    contents.append(("ContainersReady", not reason, reason, message))
    if not reason and gates:
        reason, message = "ReadinessGatesNotReady", f"the status of {gates} is not True"
    contents.append(("Ready", not reason, reason, message))
    old = {condition["type"]: condition for condition in before}
    return [_condition(content, old, now) for content in contents]


def _condition(
    content: tuple[str, bool, str, str], old: Mapping[str, Mapping[str, Any]], now: dt.datetime
) -> Object:
    kind, is_true, reason, message = content
    status = "True" if is_true else "False"
    previous = old.get(kind, {})
    changed_at = previous.get("lastTransitionTime")
    if previous.get("status") != status or not changed_at:
        changed_at = to_time(now)
    # Null removes an earlier value; a strategic merge would keep it.
    return {
        "type": kind,
        "status": status,
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": changed_at,
    }


def _closed_gates(pod: Object) -> list[str]:
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions") or []}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
    return [gate for gate in gates if conditions.get(gate) != "True"]


def _container_status(record: ContainerRecord) -> Object:
    return {
        "name": record.name,
        "image": record.image,
        "imageID": f"process://{record.image}",
        "containerID": record.container_id,
        "ready": record.is_ready,
        "started": record.is_started,
        "restartCount": record.restart_count,
        "state": _state(record.state),
        "lastState": _state(record.last) if record.last else {},
    }


def _state(state: State) -> Object:
    if isinstance(state, Waiting):
        return {"waiting": {"reason": state.reason, "message": state.message}}
    if isinstance(state, Running):
        return {"running": {"startedAt": to_time(state.started_at)}}
    terminated: Object = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": to_time(state.started_at),
        "finishedAt": to_time(state.finished_at),
    }
    if state.container_id:
        terminated["containerID"] = state.container_id
    if state.message:
        terminated["message"] = state.message
    return {"terminated": terminated}
