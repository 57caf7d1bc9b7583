"""Composition: the operator's parts, and the order in which they start and end.

If any part ends by itself, the process ends, and Kubernetes restarts it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record, Timing
from bamboo_core.controller.view import JobView
from bamboo_core.model.ids import AgentId
from bamboo_operator.admission import kueue
from bamboo_operator.admission.held_tasks import HeldTasks
from bamboo_operator.admission.kueue import Kueue
from bamboo_operator.admission.line import Line
from bamboo_operator.agents import servicer
from bamboo_operator.arbiters import ports as job_ports
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.config import Config
from bamboo_operator.election.lease import Elector, Holder
from bamboo_operator.election.other_releases import ACCOUNT, SERVES, Releases, scope
from bamboo_operator.kube import api, informer, pod_watch
from bamboo_operator.kube.api import Api, ApiError, JobKey, Object
from bamboo_operator.kube.event_recorder import Recorder
from bamboo_operator.kube.labels import JOB_LABEL
from bamboo_operator.kube.pod_watch import PodWatch
from bamboo_operator.monitoring.health import HealthServer, Pulse
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.metrics_server import MetricsServer
from bamboo_operator.monitoring.registry import Metrics
from bamboo_operator.pods import node_usage
from bamboo_operator.pods.deleted_pods import DeletedPods
from bamboo_operator.pods.disruption_budgets import Budgets
from bamboo_operator.pods.node_cache import Nodes
from bamboo_operator.pods.node_usage import Usage
from bamboo_operator.process.event_loop import LoopHearing
from bamboo_operator.reconcile import ports as reconcile_ports
from bamboo_operator.reconcile.leftovers import Leftovers
from bamboo_operator.reconcile.queue_workers import Workers
from bamboo_operator.reconcile.reconciler import Reconciler
from bamboo_operator.reconcile.workqueue import WorkQueue
from bamboo_operator.status import durable_facts
from bamboo_operator.trust import authentication, seals, tls
from bamboo_operator.trust.bundle import Trust
from bamboo_operator.trust.renewal import Certificates

log = logging.getLogger(__name__)

LEASE = "bamboo-operator"
RECONNECT_S = 1.0
_PROGRESS_PER_S = 20.0
_RESYNCED_PER_S = 20.0
"""Reconciles without a cause, of all jobs together."""
_DRAIN_S = 5.0
_FLUSH_S = 2.0
_LISTED_S = 10.0


class App:
    """One operator process, from acquiring the lease to releasing it.

    hearing: kept by the event loop.
    """

    def __init__(self, config: Config, kube: Api, hearing: LoopHearing) -> None:
        self._config, self._kube, self._hearing = config, kube, hearing
        self.stop = asyncio.Event()
        self.pulse = Pulse()
        self.metrics = Metrics(self._figures)
        self.held = HeldTasks(config.tasks)
        self.port = 0
        self._reconciler: Reconciler | None = None
        self._line: Line | None = None
        self._kueue = Kueue(kube) if config.kueue else None
        self._leftovers = Leftovers(
            kube, config.namespaces, budgets=config.disruption_budgets, kueue=self._kueue
        )
        self._queue: WorkQueue[JobKey] = WorkQueue()
        self._tasks: list[asyncio.Task[Any]] = []

    async def run(self) -> int:
        """Lead until stopped. Returns the exit code: 0 stopped, 1 a part failed."""
        config = self._config
        health = HealthServer(self.pulse, host=config.http_host, port=config.health_port)
        health.start()
        scraped = MetricsServer(
            self.metrics.registry, host=config.http_host, port=config.metrics_port
        )
        elector = Elector(
            self._kube,
            namespace=config.namespace,
            name=LEASE,
            holder=Holder(config.identity, config.pod_uid),
            annotations={SERVES: scope(config.namespaces), ACCOUNT: config.account},
        )
        self._start("pulse", self.pulse.beat(self.metrics.loop_lag_s.set))
        try:
            return await self._run(elector)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            health.close()
            scraped.close()

    async def _run(self, elector: Elector) -> int:
        releases = Releases(
            self._kube,
            namespace=self._config.namespace,
            name=LEASE,
            namespaces=self._config.namespaces,
        )
        election = releases.acquire(elector, self.pulse.refuse, self.pulse.stand_by)
        acquired = self._start("election", election)
        await self._first_of(acquired, self._start("stop", self.stop.wait()))
        if self.stop.is_set() or acquired.exception() is not None:
            return 0 if self.stop.is_set() else 1
        term = acquired.result()
        self._tasks.remove(acquired)
        self.pulse.refuse("")  # it does not stand by any more
        log.info("leading", extra={"term": term})
        self._start("lease", elector.hold())
        try:
            return await self._lead(elector, term)
        finally:
            if elector.is_leading:
                await elector.release()

    async def _lead(self, elector: Elector, term: int) -> int:
        config, kube = self._config, self._kube
        recorder = Recorder(kube, identity=config.identity)
        timing = job_ports.timing(await self._members())
        led = Jobs(term=term, ports=self._job_ports(elector, recorder, timing))
        certificates = Certificates(kube, config.namespace)
        await certificates.load()
        trust = Trust(kube, certificates.bundle, config.advertise)
        sealed = await seals.load(kube, config.namespace, tls.SECRET)
        usage, deleted_pods = Usage(sealed.is_ours), DeletedPods()
        nodes = Nodes(kube, usage)
        await self._watch_usage(usage)
        self._line = line = self._make_line(nodes, usage)
        await line.load(config.namespaces, self.held)
        self._reconciler = Reconciler(
            reconcile_ports.Ports(
                kube=kube,
                jobs=led,
                nodes=nodes,
                deleted_pods=deleted_pods,
                trust=trust,
                on_forced=self.metrics.forced.inc,
                operator_address=config.advertise,
                seals=sealed,
                event_logs=config.event_logs,
                pod_rules=config.pod_rules,
                budgets=Budgets(kube) if config.disruption_budgets else None,
                prices=config.prices,
                line=line,
                kueue=self._kueue,
                again=lambda job, s: self._queue.add_after((job.namespace, job.name), s),
                record=self._recording(recorder),
            )
        )
        workers = Workers(self._queue, self._reconciler, self.metrics)
        service = self._make_service(led, sealed, usage, nodes)
        server, self.port = servicer.make_server(service, certificates.server, config.listen)
        await server.start()
        self._start("recorder", recorder.run())
        self._start("ticks", led.tick_for_ever())
        self._start("resync", self._resync())
        self._start("certificates", certificates.renew_for_ever(trust.renew))
        for number in range(config.workers):
            self._start(f"worker {number}", workers.work())
        registry = informer.registry(
            add=self._queue.add,
            nodes_changed=lambda: self._nodes_changed(nodes, led),
            seen=self._seen,
            created=line.seen,
            queued=(kueue.GROUP, kueue.PLURAL) if config.kueue else None,
        )
        agents = pod_watch.agents(
            add=self._queue.add,
            seen=self._seen,
            deleted=deleted_pods.deleted,
            is_ours=sealed.is_ours,
            is_orphan=sealed.is_orphan,
        )
        for namespace in config.namespaces or ("",):
            watch = PodWatch(kube, agents, namespace, labels=JOB_LABEL)
            self._start("pods", watch.run())
        informers = list(await informer.start(registry, config.namespaces))
        self._catch_signals()
        self.pulse.is_leader = self.pulse.is_ready = True
        self.metrics.leader.set(1)
        failed = await self._first_of(*self._tasks, *informers)
        return await self._leave(failed, server, service, led, workers, informers, recorder)

    def _make_service(
        self, led: Jobs, sealed: seals.Seals, usage: Usage, nodes: Nodes
    ) -> servicer.AgentService:
        service = servicer.AgentService(
            led,
            lambda token: authentication.authenticate(self._kube, sealed, token, nodes.find),
            on_refused=lambda code: self.metrics.refused.labels(code).inc(),
            is_pod=usage.is_agent,
        )
        self.metrics.streams.set_function(lambda: service.streams)
        return service

    async def _leave(
        self,
        failed: bool,
        server: Any,
        service: servicer.AgentService,
        led: Jobs,
        workers: Workers,
        informers: list[asyncio.Task[Any]],
        recorder: Recorder,
    ) -> int:
        """Not ready; agents reconnect elsewhere; reconciles, streams and kopf end, in this order.

        gRPC ends before kopf, whose end would cancel gRPC's own tasks.
        """
        self.pulse.is_ready = self.pulse.is_leader = False
        service.is_draining = True
        for actor in led.all():
            actor.send_away(RECONNECT_S)
        await workers.close(0.0 if failed else _DRAIN_S)  # another operator may lead already
        await led.close()
        await server.stop(_DRAIN_S)
        for task in informers:
            task.cancel()
        await asyncio.gather(*informers, return_exceptions=True)
        await recorder.flush(_FLUSH_S)
        return 1 if failed else 0

    async def _members(self) -> int:
        """Agents that are going to come back to us. 0 if the API server does not answer."""
        try:
            return sum([len(durable_facts.read(body).members) async for body in self._each_job()])
        except (ApiError, ValueError) as error:
            log.warning("the agents of all jobs are not counted", extra={"error": str(error)})
            return 0

    def _job_ports(self, elector: Elector, recorder: Recorder, timing: Timing) -> job_ports.Ports:
        kube = self._kube

        async def persist(
            job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts
        ) -> None:
            await durable_facts.write(kube, job, durable, leader_facts)

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            log.info("dismissing an agent", extra={"agent": agent, "reason": reason})
            try:
                await kube.delete(api.pod(job.namespace, agent))
            except ApiError as error:
                # The next reconcile deletes it.
                log.warning("a pod was not deleted", extra={"error": str(error)})
            wake(job)

        def wake(job: JobView) -> None:
            self._queue.add((job.namespace, job.name))

        def wake_later(job: JobView) -> None:
            assert self._reconciler is not None
            delay_s = max(1.0, self._reconciler.shown.unended / _PROGRESS_PER_S)
            self._queue.add_after((job.namespace, job.name), delay_s)

        return job_ports.Ports(
            persist=persist,
            dismiss=dismiss,
            record=self._recording(recorder),
            wake=wake,
            wake_later=wake_later,
            is_leading=lambda: elector.is_leading,
            heard_at=self._hearing.at,
            idle_s=lambda: self._hearing.idle_s,
            timing=timing,
            held=self.held,
        )

    def _recording(self, recorder: Recorder) -> Callable[[JobView, Record], None]:
        """Makes Events and counts them."""

        def record(job: JobView, entry: Record) -> None:
            log.info(entry.message, extra={"job": job.name, "reason": entry.reason})
            self.metrics.notice(entry)
            recorder.record(
                job,
                severity=entry.severity,
                reason=entry.reason,
                message=entry.message,
                facts=entry.facts,
            )

        return record

    def _make_line(self, nodes: Nodes, usage: Usage) -> Line:
        def wake(namespace: str, name: str) -> None:
            self._queue.add((namespace, name))

        return Line(self._kube, nodes, usage, wake=wake, rules=self._config.pod_rules)

    async def _resync(self) -> None:
        """Queue all jobs from time to time, so that a lost event only costs seconds; of very many
        jobs a part each time, and all that are new."""
        known: set[str] = set()
        for turn in itertools.count():
            self.metrics.queue_depth.set(len(self._queue))
            waiting = self._line.keys if self._line is not None else []
            try:
                left = await self._leftovers.find()
                found = [_name_of(body) async for body in self._each_job()]
                await self._leftovers.remove(left, found)
                for key in set(waiting).difference(key for key, _ in found):
                    self._queue.add(key)  # the job is gone, and its reconcile leaves the line
                turns = math.ceil(len(found) / (_RESYNCED_PER_S * self._config.resync_s)) or 1
                for index, (key, uid) in enumerate(found):
                    if index % turns == turn % turns or uid not in known:
                        self._queue.add(key)
                known = {uid for _, uid in found}
                self.held.keep(known)
                self.pulse.worked()
            except ApiError as error:
                log.warning("resync failed", extra={"error": str(error)})
            await asyncio.sleep(self._config.resync_s)

    async def _each_job(self) -> AsyncIterator[Object]:
        for namespace in self._config.namespaces or ("",):
            async for body in self._kube.each(api.jobs(namespace)):
                yield body

    async def _watch_usage(self, usage: Usage) -> None:
        """Begin to watch what pods take of the nodes; wait for the first lists, but not for ever.

        A release for some namespaces may not see the pods of others.
        """
        watches = [node_usage.watch(self._kube, usage, n) for n in self._config.namespaces or ("",)]
        for watch in watches:
            self._start("usage", watch.run())
        lists = asyncio.gather(*(watch.listed.wait() for watch in watches))
        try:
            await asyncio.wait_for(lists, _LISTED_S)
        except TimeoutError:
            log.warning("going on without knowing all pods on the nodes")

    def _seen(self, resource: str) -> None:
        self.metrics.last_event.labels(resource).set_to_current_time()

    def _nodes_changed(self, nodes: Nodes, led: Jobs) -> None:
        nodes.changed()
        for actor in led.all():
            self._queue.add((actor.job.namespace, actor.job.name))

    def _figures(self) -> list[JobFigures]:
        return list(self._reconciler.shown.figures.values()) if self._reconciler is not None else []

    def _start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> bool:
        """Wait until one of the tasks ends. True: the stop was not requested."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.get_name() != "stop" and not task.cancelled() and task.exception():
                log.error(
                    "a part of the operator failed",
                    exc_info=task.exception(),
                    extra={"part": task.get_name()},
                )
        return not self.stop.is_set()

    def _catch_signals(self) -> None:
        """Install our handlers, after kopf has installed its own."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)


def _name_of(job: Object) -> tuple[JobKey, str]:
    """Its key and its UID."""
    meta = job["metadata"]
    return (meta["namespace"], meta["name"]), meta["uid"]
