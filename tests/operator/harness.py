"""The operator's parts in one process: reconciler, arbiters and servicer, with an API in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from tests.core.controller.builders import JOB, manifest

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller.view import JobView
from bamboo_core.job import orders
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.protocol.messages import LANGUAGE, AgentMessage, Hello, OperatorMessage
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.admission.line import Line
from bamboo_operator.agents.servicer import AgentService, make_server
from bamboo_operator.arbiters import ports as job_ports
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.pods.deleted_pods import DeletedPods
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.reconcile.ports import Ports
from bamboo_operator.reconcile.reconciler import Reconciler
from bamboo_operator.status import durable_facts
from bamboo_operator.trust import authentication, tls
from bamboo_operator.trust.bundle import Trust
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_proto.v1 import agent_pb2_grpc
from bamboo_wire import decode
from bamboo_wire.options import AGENT_OPTIONS

from .agent_client import FAR, Agent, review, token_of
from .memory_api import MemoryApi
from .objects import SEALS, node_object, pod_object

PATH = api.job("ns", "job")
AGENTS = (AgentId("job-p0-s0-i0"), AgentId("job-p0-s1-i0"))


class Harness:
    """The parts, the clock, and what they asked of each other. Agents need :meth:`serve`."""

    def __init__(self, *, plan: orders.Planner = planner.compute) -> None:
        self.kube = MemoryApi()
        self.now = 1000.0
        self.is_leading = True
        self.again: list[float] = []
        self.refused: list[str] = []
        self.pauses: list[float] = []  # before messages of agents that cost too much
        self.records: list[Record] = []
        self.woken = self.woken_later = self.forced = 0
        self.before_write: Callable[[], None] = lambda: None
        self.jobs = Jobs(term=3, ports=self._job_ports(plan))
        self.usage = Usage(SEALS.is_ours)
        self.nodes = Nodes(self.kube, self.usage, clock=lambda: self.now)
        self.deleted_pods = DeletedPods()
        self.behind_s = 0.0  # how long ago everything was read
        self.line_woken: list[tuple[str, str]] = []
        self.line = self.make_line()
        self.reconciler = Reconciler(
            Ports(
                kube=self.kube,
                jobs=self.jobs,
                nodes=self.nodes,
                deleted_pods=self.deleted_pods,
                trust=Trust(self.kube, "bundle", "op:1", clock=lambda: self.now),
                on_forced=self._count_forced,
                operator_address="op:1",
                seals=SEALS,
                again=lambda job, s: self.again.append(s),
                record=lambda job, record: self.records.append(record),
                clock=lambda: self.now,
                line=self.line,
            )
        )
        for zone in "abc":
            self.kube.put(f"{api.nodes()}/node-{zone}", node_object(f"node-{zone}", zone))

    def make_line(self) -> Line:
        """One that knows no job yet, as a new operator has it."""

        def wake(namespace: str, name: str) -> None:
            self.line_woken.append((namespace, name))

        return Line(self.kube, self.nodes, self.usage, wake=wake, clock=lambda: self.now, pause=0.0)

    def _job_ports(self, plan: orders.Planner) -> job_ports.Ports:
        async def persist(
            job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts
        ) -> None:
            self.before_write()
            await durable_facts.write(self.kube, job, durable, leader_facts)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            await self.kube.delete(api.pod(job.namespace, agent))

        return job_ports.Ports(
            persist=persist,
            dismiss=dismiss,
            record=lambda job, record: self.records.append(record),
            wake=self._wake,
            wake_later=self._wake_later,
            is_leading=lambda: self.is_leading,
            heard_at=lambda now: now - self.behind_s,
            idle_s=time.monotonic,
            plan=plan,
        )

    def _wake(self, job: JobView) -> None:
        self.woken += 1

    def _wake_later(self, job: JobView) -> None:
        self.woken_later += 1

    def _count_forced(self) -> None:
        self.forced += 1

    # ------------------------------------------------------------ the job

    def apply(self, **spec: Any) -> None:
        """As kubectl does, with these fields of spec."""
        body = manifest(**spec)
        body["metadata"] |= {"uid": JOB.uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
        body["metadata"]["generation"] = JOB.generation
        self.kube.put(PATH, body)

    def edit(self, **spec: Any) -> None:
        """As kubectl does with a job that is there; the API server counts changes of spec."""
        body = self.kube.objects[PATH]
        meta = body["metadata"] | {"generation": body["metadata"]["generation"] + 1}
        self.kube.put(PATH, body | {"metadata": meta, "spec": body["spec"] | spec})

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile("ns", "job")

    async def settle(self) -> None:
        """Wait until the arbiters have nothing to write, to plan or to dismiss. Not while agents
        are served: their streams never end."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def lead(self, **spec: Any) -> JobActor:
        """The job's actor, without a reconcile."""
        self.apply(**spec)
        found = from_manifest(manifest(**spec))
        assert isinstance(found, JobSpec)
        return self.jobs.lead(JOB, found, Durable(), LastReported())

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects[PATH].get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def pods(self) -> list[str]:
        return sorted(p.rsplit("/", 1)[1] for p in self.kube.objects if "/pods/" in p)

    # ------------------------------------------------------------ agents

    async def serve(self) -> None:
        """Serve agents on a free port."""
        self.service = AgentService(
            self.jobs,
            lambda token: authentication.authenticate(self.kube, SEALS, token),
            clock=lambda: self.now,
            on_refused=self.refused.append,
            sleep=self._sleep,
            is_pod=self.usage.is_agent,
        )
        self.authority = tls.make_authority()
        identity = tls.issue(self.authority)
        self.server, self.port = make_server(self.service, lambda: identity, "127.0.0.1:0")
        await self.server.start()

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(seconds)

    def hear(
        self,
        name: str,
        *words: AgentMessage,
        node: str = "node-a",
        job_uid: str = JOB.uid,
        language: int = LANGUAGE,
    ) -> None:
        """An agent has begun a session and says this; what it is told nobody reads."""
        actor = self.jobs.find(job_uid)
        assert actor is not None
        machine = f"uid-{node}/boot-1"
        places = "a:1", "a:2"
        hello = Hello(AgentId(name), f"uid-{name}", node, "a", machine, *places, language=language)
        session = actor.connect(hello)
        for message in words:
            actor.receive(session, message)

    async def close(self) -> None:
        """End what :meth:`serve` began."""
        await self.jobs.close()
        await self.server.stop(None)

    def add_pod(self, name: str, *, zone: str = "a", expires_at: float = FAR) -> str:
        """A pod of the job with its node; its token."""
        self.kube.put(api.pod("ns", name), pod_object(name, node=f"node-{zone}"))
        token = token_of(name, expires_at)
        self.kube.reviews[token] = review(name)
        return token

    def agent(self, name: str, *, token: str) -> Agent:
        """A client that has not said anything yet."""
        credentials = grpc.ssl_channel_credentials(self.authority.certificate)
        options = [*AGENT_OPTIONS, ("grpc.ssl_target_name_override", "bamboo-operator")]
        channel = grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=options)
        metadata = (("authorization", f"Bearer {token}"),)
        call = agent_pb2_grpc.AgentServiceStub(channel).Session(metadata=metadata)
        return Agent(AgentId(name), channel, call)


def as_sent(message: OperatorMessage | bytes) -> OperatorMessage:
    """A message of a session's queue, in which some are encoded already."""
    if isinstance(message, bytes):
        return decode.operator_message(decode.parse_bytes(pb.OperatorMessage, message))
    return message


def failing(verb: str, part: str, error: ApiError) -> Callable[[str, str], None]:
    def fail(seen: str, path: str) -> None:
        if seen == verb and part in path:
            raise error

    return fail
