"""What a reconcile needs: ports to the operator's parts, and what is remembered about a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bamboo_core.api.reasons import Reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller.view import Condition, JobView, Memory
from bamboo_core.validation.pod_rules import RESTRICTED, PodRules
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.admission.line import Line
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube.api import Api
from bamboo_operator.money.prices import Pool
from bamboo_operator.pods.deleted_pods import DeletedPods
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.trust.bundle import Trust
from bamboo_operator.trust.seals import Seals


@dataclass(frozen=True)
class Refusal:
    """Why a job gets no new pods. One that has had a plan is led on with the pods that it has."""

    reason: Reason
    problems: list[Problem]


@dataclass
class Known:
    """Memory of a job between reconciles, beside its status."""

    memory: Memory
    shown: tuple[Condition, ...]  # the conditions as they were written
    rejected: str = ""  # why the API server takes no pods
    refusal: Refusal | None = None
    spec: JobSpec | None = None  # the last one that was accepted
    unsent: list[Record] = field(default_factory=list)  # events that no status tells of yet
    fault: str = ""  # why the last reconcile ended early
    must_rest: bool = False  # agents of another template hold the state: suspend the job first


@dataclass(frozen=True)
class Ports:
    """How the reconciler reaches the rest of the operator."""

    kube: Api
    jobs: Jobs
    nodes: Nodes
    trust: Trust
    on_forced: Callable[[], None]
    operator_address: str
    seals: Seals  # knows the pods that operators have made; no other pod counts
    again: Callable[[JobView, float], None]  # asks for another reconcile after these seconds
    record: Callable[[JobView, Record], None]  # makes an Event
    event_logs: str = ""
    budgets: Budgets | None = None  # None: evictions are not limited
    pod_rules: PodRules = RESTRICTED
    clock: Callable[[], float] = time.time
    deleted_pods: DeletedPods = field(default_factory=DeletedPods)
    prices: tuple[Pool, ...] = ()
    line: Line | None = None  # None: jobs do not wait for each other
    kueue: Kueue | None = None  # None: jobs may not name a queue
