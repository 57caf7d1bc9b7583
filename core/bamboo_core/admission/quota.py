"""How a job obeys Kueue, a queueing system that shares out quota.

The operator makes a Workload object for the job: one set of pods, as many as the wanted grid has
seats, of which the smallest grid is enough. Kueue admits it with some number of pods, and the job
may have so many agents. Kueue evicts it, and the job writes a checkpoint, leaves, and gives the
quota back. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from bamboo_core.api.spec import JobSpec, PipelinesSpec
from bamboo_core.model.counts import counted

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""On a BambooJob: the LocalQueue in its namespace that it waits in."""

_OTHER_QUEUE = (
    f"create or start that queue, or put another queue's name into the label {QUEUE_LABEL}"
)


@dataclass(frozen=True)
class Grant:
    """The answer of Kueue, as the job's Workload shows it."""

    queue: str
    most: int  # agents that it asks for
    least: int  # agents that it can do with
    agents: int = 0  # that it is admitted with
    is_admitted: bool = False
    has_quota: bool = False
    is_evicted: bool = False
    is_active: bool = True  # False: an administrator has stopped it
    is_finished: bool = False
    is_ready: bool = False  # the operator has said that the job works
    message: str = ""  # why it is evicted, or why it waits
    has_queue: bool = True  # False: its queue does not exist, or takes nothing
    is_of_others: bool = False  # it was made for pods that ask for something else
    selector: tuple[tuple[str, str], ...] = ()  # labels of the nodes that the quota is for
    tolerations: tuple[Any, ...] = ()  # of the taints of these nodes


class Deed(StrEnum):
    """Actions on the Workload."""

    NONE = "None"
    CREATE = "Create"
    DELETE = "Delete"
    RELEASE = "Release"  # give the quota back after an eviction
    READY = "Ready"  # say whether the job works
    FINISH = "Finish"


def seats(spec: JobSpec) -> tuple[int, int]:
    """Agents that the job asks for, and agents that it can do with."""
    grid = spec.pipelines
    return grid.count * grid.stages, grid.min * grid.stages


def order(spec: JobSpec, grant: Grant | None) -> tuple[JobSpec, str]:
    """The spec that holds now, and why it is suspended though the user's is not; empty: it is not.

    Admitted with fewer agents than wanted, the job has fewer pipelines, and needs no more of them.
    """
    if spec.suspend:
        return spec, ""
    if why := _obstacle(spec, grant):
        return replace(spec, suspend=True), why
    assert grant is not None
    grid = spec.pipelines
    grid = at_most(grid, grant.agents // grid.stages)
    worker = replace(spec.worker, pod_template=_on_flavor(spec.worker.pod_template, grant))
    return replace(spec, pipelines=grid, worker=worker), ""


def at_most(grid: PipelinesSpec, pipelines: int) -> PipelinesSpec:
    """The grid of a job that has quota for so many pipelines.

    A minimum that is raised while the job has quota must not stop it: the quota would lie idle.
    """
    count = min(grid.count, pipelines)
    return replace(grid, count=count, min=min(grid.min, count))


def _obstacle(spec: JobSpec, grant: Grant | None) -> str:
    if grant is None:
        return "its Workload for Kueue is being made"
    said = f": {grant.message}" if grant.message else ""
    if grant.is_finished:
        return "its Workload is finished; delete the Workload to queue the job again"
    if not grant.is_active:
        return "spec.active of its Workload is false: somebody has stopped it in Kueue"
    if grant.is_evicted and grant.has_quota:
        return f"Kueue has evicted it{said}"
    if grant.is_of_others:
        return "its agents ask for something else than its Workload, so it queues again"
    if not grant.is_admitted:
        text = f"it waits in queue {grant.queue} until Kueue admits it{said}"
        return text if grant.has_queue else f"{text}; {_OTHER_QUEUE}"
    if grant.agents < (fewest := _fewest(spec, grant)):
        agents = counted(grant.agents, "agent")
        few = f"Kueue has admitted it with {agents}, and the fewest are {fewest}"
        return f"{few}; set spec.suspend to true, and then to false, to queue it again"
    return ""


def _fewest(spec: JobSpec, grant: Grant) -> int:
    """Agents that an admitted job cannot do without: a pipeline, and what its Workload asks for."""
    _, least = seats(spec)
    return max(spec.pipelines.stages, min(least, grant.least))


def _on_flavor(template: dict[str, Any], grant: Grant) -> dict[str, Any]:
    """The pod template on the nodes that the quota is for."""
    if not grant.selector and not grant.tolerations:
        return template
    body = dict(template.get("spec") or {})
    body["nodeSelector"] = {**(body.get("nodeSelector") or {}), **dict(grant.selector)}
    body["tolerations"] = [*(body.get("tolerations") or []), *grant.tolerations]
    return template | {"spec": body}


def deed(
    spec: JobSpec,
    grant: Grant | None,
    queue: str,
    *,
    has_pods: bool,
    has_ended: bool,
    is_working: bool,
) -> Deed:
    """spec: the user's. Quota is given back only once no pod is left, since pods use it.

    Kueue may be told to evict what is not ready in time, or to admit nothing else until it is.
    """
    if has_ended:
        is_over = grant is None or grant.is_finished or has_pods
        return Deed.NONE if is_over else Deed.FINISH
    if grant is None:
        return Deed.NONE if spec.suspend else Deed.CREATE
    if grant.is_admitted and not grant.is_finished and is_working is not grant.is_ready:
        return Deed.READY
    if has_pods or grant.is_finished:
        return Deed.NONE
    if grant.is_active and (spec.suspend or grant.is_of_others):
        return Deed.DELETE
    if grant.is_evicted or not grant.is_active:
        return Deed.RELEASE if grant.has_quota else Deed.NONE
    is_old = (grant.queue, grant.most, grant.least) != (queue, *seats(spec))
    # With more stages than before, the quota may be too small for the job: then nothing uses it.
    is_useless = grant.is_admitted and grant.agents < _fewest(spec, grant)
    return Deed.DELETE if is_old and (is_useless or not grant.has_quota) else Deed.NONE
