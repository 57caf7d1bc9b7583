"""The actors of all jobs that this operator leads: their ticks, and the pace of heartbeats."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller.view import JobView
from bamboo_core.job.training_view import LastReported
from bamboo_operator.admission.held_tasks import HeldTasks
from bamboo_operator.arbiters import heartbeats
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.arbiters.ports import Ports

log = logging.getLogger(__name__)

IDLE_TICKS = 4
"""Of so many ticks a job without connected agents gets one: a second is soon enough for it."""


class Jobs:
    """All actors, by the job's UID."""

    def __init__(self, *, term: int, ports: Ports) -> None:
        self._term, self._ports = term, ports
        self._actors: dict[str, JobActor] = {}
        self._fleet_s = ports.timing.heartbeat_s  # pace that suits the number of agents
        self._heartbeat_s = self._fleet_s
        self._congestion = heartbeats.Congestion()

    @property
    def held(self) -> HeldTasks:
        """The tasks that the plans of all jobs hold."""
        return self._ports.held

    def find(self, uid: str) -> JobActor | None:
        """The actor of a job that we lead."""
        return self._actors.get(uid)

    def lead(
        self, job: JobView, spec: JobSpec, durable: Durable, reported: LastReported
    ) -> JobActor:
        """The job's actor, made if there is none yet."""
        actor = self._actors.get(job.uid)
        if actor is None:
            actor = JobActor(
                job, spec, durable, term=self._term, ports=self._ports, reported=reported
            )
            self._actors[job.uid] = actor
            actor.pace(self._heartbeat_s)
            log.info("leading a job", extra={"job": job.name, "uid": job.uid})
        return actor

    async def forget(self, uids: Iterable[str]) -> None:
        """End the actors of jobs that are gone or have ended."""
        for uid in list(uids):
            await self.end(uid)
            self._ports.held.release(uid)

    async def rest(self, uid: str) -> None:
        """The job is suspended and its agents are gone: once all facts are written, its plans are
        not needed any more. An actor without plans follows."""
        actor = self._actors.get(uid)
        if self.held.of(uid) and (actor is None or actor.has_written):
            await self.forget([uid])

    async def end(self, uid: str) -> None:
        """End the job's actor, if there is one. Another one may lead the job with the same room."""
        if (actor := self._actors.pop(uid, None)) is not None:
            await actor.close()

    def all(self) -> list[JobActor]:
        """Every actor."""
        return list(self._actors.values())

    async def tick_for_ever(self, period_s: float = 0.25) -> None:
        """Tell every actor that time passes; those without agents in turn, ``IDLE_TICKS`` times
        more rarely. Of very many jobs that wait, their ticks would take half of the processor."""
        loop = asyncio.get_running_loop()
        last_s, last_idle_s = loop.time(), self._ports.idle_s()
        for turn in itertools.count():
            due_s = loop.time() + period_s
            await asyncio.sleep(period_s)
            now_s, idle_s = loop.time(), self._ports.idle_s()
            self._congestion.note(
                wall_s=now_s - last_s, idle_s=idle_s - last_idle_s, late_s=max(0.0, now_s - due_s)
            )
            last_s, last_idle_s = now_s, idle_s
            for number, actor in enumerate(self.all()):
                if len(actor.sessions) or number % IDLE_TICKS == turn % IDLE_TICKS:
                    actor.tick()
                else:
                    actor.keep_time()
            self.pace()

    def pace(self) -> None:
        """Make heartbeats rarer in a larger fleet, and while we are congested. Only some jobs at a
        time: all of their agents answer."""
        least_s = self._ports.timing.heartbeat_s
        agents = sum(len(actor.sessions) for actor in self._actors.values())
        self._fleet_s = heartbeats.heartbeat_s(agents, now_s=self._fleet_s, least_s=least_s)
        heartbeat_s = heartbeats.congested_s(
            agents,
            now_s=self._heartbeat_s,
            fleet_s=self._fleet_s,
            factor=self._congestion.factor,
        )
        if heartbeat_s != self._heartbeat_s:
            self._heartbeat_s = heartbeat_s
            extra = {"agents": agents, "seconds": heartbeat_s, "rarer": self._congestion.factor}
            log.info("agents send heartbeats at another pace", extra=extra)
        left = heartbeats.JOBS_AT_ONCE
        for actor in self.all():
            left -= actor.pace(self._heartbeat_s)
            if not left:
                return

    async def close(self) -> None:
        """End all actors."""
        await self.forget(list(self._actors))
