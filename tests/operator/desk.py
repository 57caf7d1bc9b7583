"""A reconciler at work on one job, against an API in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.core.controller.builders import manifest

from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import Record
from bamboo_core.controller.view import JobView
from bamboo_core.model.ids import AgentId
from bamboo_operator import api, facts, jobs
from bamboo_operator.api import ApiError
from bamboo_operator.nodes import Nodes
from bamboo_operator.reconciler import Ports, Reconciler
from bamboo_operator.trust import Trust

from .memory_api import MemoryApi
from .objects import node_object

PATH = api.job("ns", "job")
AGENTS = (AgentId("job-p0-s0-i0"), AgentId("job-p0-s1-i0"))


class Desk:
    """A reconciler, its API, its clock."""

    def __init__(self) -> None:
        self.kube = MemoryApi()
        self.now = 1000.0
        self.again: list[float] = []
        self.forced = 0
        self.jobs = jobs.Jobs(term=1, ports=self._job_ports())
        self.nodes = Nodes(self.kube, clock=lambda: self.now)
        self.reconciler = Reconciler(
            Ports(
                kube=self.kube,
                jobs=self.jobs,
                nodes=self.nodes,
                trust=Trust(self.kube, "bundle", "op:1", clock=lambda: self.now),
                on_forced=self._count,
                operator_address="op:1",
                again=lambda job, s: self.again.append(s),
                clock=lambda: self.now,
            )
        )
        for zone in "abc":
            self.kube.put(f"{api.nodes()}/node-{zone}", node_object(f"node-{zone}", zone))

    def _job_ports(self) -> jobs.Ports:
        async def persist(job: JobView, durable: Durable, line: facts.Line) -> None:
            await facts.write(self.kube, job, durable, line)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await self.kube.delete(api.pod(job.namespace, agent))

        def record(job: JobView, entry: Record) -> None:
            del job, entry

        return jobs.Ports(
            persist=persist,
            dismiss=dismiss,
            record=record,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
        )

    def _count(self) -> None:
        self.forced += 1

    def apply(self, **spec: Any) -> None:
        body = manifest(**spec)
        body["metadata"] |= {"uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.kube.put(PATH, body)

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile("ns", "job")

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[PATH].get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def pods(self) -> list[str]:
        return sorted(p.rsplit("/", 1)[1] for p in self.kube.objects if "/pods/" in p)


def failing(verb: str, part: str, error: ApiError) -> Callable[[str, str], None]:
    def fail(seen: str, path: str) -> None:
        if seen == verb and part in path:
            raise error

    return fail
