"""One process of the operator in the world of :mod:`tests.operator.crash_world`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller.view import JobView
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.admission.line import Line
from bamboo_operator.arbiters import ports as job_ports
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube import api
from bamboo_operator.kube.api import Object
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.reconcile.ports import Ports
from bamboo_operator.reconcile.reconciler import Reconciler
from bamboo_operator.status import durable_facts
from bamboo_operator.trust import seals
from bamboo_operator.trust.bundle import Trust

if TYPE_CHECKING:
    from .crash_world import World


class _Jobs(Jobs):
    """The production actors, which see the training that the world plays."""

    def __init__(self, world: World, ports: job_ports.Ports) -> None:
        super().__init__(term=1, ports=ports)
        self._world = world

    def lead(
        self, job: JobView, spec: JobSpec, durable: Durable, reported: LastReported
    ) -> JobActor:
        actor = super().lead(job, spec, durable, reported)
        real = actor.view
        actor.view = lambda: self._world.training(job.name, real())  # type: ignore[method-assign]
        return actor


class Operator:
    """One process of the operator: it knows nothing but what the API says."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seals = seals.Seals(b"")
        self._reconciler: Reconciler | None = None
        self._usage = Usage(self._is_ours)
        self.nodes = Nodes(world.kube, self._usage, clock=lambda: world.now)
        self._seen: set[str] = set()
        self.jobs = _Jobs(world, self._job_ports())

    def _is_ours(self, pod: Object) -> bool:
        return self.seals.is_ours(pod)  # by the key that has been loaded

    def _job_ports(self) -> job_ports.Ports:
        kube = self._world.kube

        async def persist(
            job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts
        ) -> None:
            await durable_facts.write(kube, job, durable, leader_facts)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await kube.delete(api.pod(job.namespace, agent))

        return job_ports.Ports(
            persist=persist,
            dismiss=dismiss,
            record=lambda job, record: None,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
            heard_at=lambda now: now,
            idle_s=time.monotonic,
        )

    async def _start(self) -> Reconciler:
        world = self._world
        self.seals = await seals.load(world.kube, "system", "tls")
        line = Line(
            world.kube, self.nodes, self._usage,
            wake=lambda namespace, name: None, clock=lambda: world.now, pause=0.0,
        )  # fmt: skip
        await line.load(["ns"], self.jobs.held)
        return Reconciler(
            Ports(
                kube=world.kube,
                jobs=self.jobs,
                nodes=self.nodes,
                trust=Trust(world.kube, "bundle", "op:1", clock=lambda: world.now),
                on_forced=lambda: None,
                operator_address="op:1",
                seals=self.seals,
                again=lambda job, s: None,
                record=lambda job, record: None,
                budgets=Budgets(world.kube, clock=lambda: world.now),
                line=line,
                kueue=Kueue(world.kube, clock=lambda: world.now),
                clock=lambda: world.now,
            )
        )

    async def reconcile(self, name: str) -> float | None:
        """One reconcile of a job with what the watches would have shown. Crash, ApiError."""
        if self._reconciler is None:
            self._reconciler = await self._start()
        present = {p["metadata"]["uid"]: p for p in self._world.pods().values()}
        for uid in self._seen - present.keys():
            self._usage.drop(uid)
        for pod in present.values():
            self._usage.put(pod)
        self._seen = set(present)
        try:
            return await self._reconciler.reconcile("ns", name)
        finally:
            await self._written()

    async def _written(self) -> None:
        while tasks := [task for actor in self.jobs.all() for task in actor._tasks]:
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    async def close(self) -> None:
        """The end of the process."""
        await self.jobs.close()
