"""One reconcile: list, observe, decide (pure), write status, act.

Status comes before actions, so the numbers of new pods are durable before the pods exist. Every
action can be repeated; the queue retries after a failure.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from bamboo_core.admission.line import is_unheard
from bamboo_core.api import limits
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import lifecycle
from bamboo_core.controller import turn as turns
from bamboo_core.controller.reconcile import Step, lacks_pods, step
from bamboo_core.controller.turn import Turn
from bamboo_core.controller.view import ClusterView, JobView, Memory, PodView, TrainingView
from bamboo_core.job import disruptions, raised_steps
from bamboo_core.job.training_view import ended
from bamboo_operator.admission.kueue import Look, misnamed, queue_of
from bamboo_operator.admission.line import Entry
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.kube import api, object_views
from bamboo_operator.kube.api import ApiError, Object
from bamboo_operator.money import cost, prices
from bamboo_operator.money.prices import Rate
from bamboo_operator.reconcile.acceptance import accept, has_plan
from bamboo_operator.reconcile.job_pods import JobPods
from bamboo_operator.reconcile.ports import Known, Ports, Refusal
from bamboo_operator.reconcile.shown_jobs import ShownJobs, figures
from bamboo_operator.status import durable_facts, estimate, protection, statuses
from bamboo_operator.status.writer import StatusWriter

log = logging.getLogger(__name__)

FULL_PAUSE_S = 10.0
"""Pause after the operator had no room for a job's plans."""
CHANGED = (
    "the operator suspends the job by itself: its template has changed while agents hold the job's"
    " state; once they have saved it, the job goes on by itself with new agents"
)
"""Text of conditions."""


class Reconciler:
    """Drives jobs toward the desired state. One call at a time for each job."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._kube = ports.kube
        self._pods = JobPods(ports)
        self._writer = StatusWriter(ports.kube)
        self._known: dict[str, Known] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}
        self.shown = ShownJobs()

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Returns the seconds until the next call is due even if nothing happens; None: never."""
        body = await self._kube.get(api.job(namespace, name))
        await self._forget_others(namespace, name, body)
        if body is None:
            self._leave_line(namespace, name)
            await self._pods.sweep(namespace, name)
            return None
        job = object_views.job_view(body)
        if job.deleting:
            self._leave_line(namespace, name)
            await self._ports.jobs.forget([job.uid])
            await self._pods.sweep(namespace, name)
            return None
        memory = statuses.read_memory(body)
        known = self._known.setdefault(job.uid, Known(memory, memory.conditions))
        uses_kueue = self._ports.kueue is not None
        spec = accept(body, known, rules=self._ports.pod_rules, uses_kueue=uses_kueue)
        if spec is None:
            await self._refuse(job, body, known)
            return None
        if pause_s := self._standstill_s(job):
            return pause_s
        again_s = await self._lead(job, spec, body, known)
        if known.fault:
            known.fault, again_s = "", 0.0
        return again_s

    async def note_fault(self, namespace: str, name: str, error: Exception) -> None:
        """Show an error in the job's status; best effort. Other jobs do not wait for this one."""
        if self._ports.line is not None:
            self._ports.line.refuse(namespace, name)
        try:
            body = await self._kube.get(api.job(namespace, name))
            if body is None:
                return
            job, memory = object_views.job_view(body), statuses.read_memory(body)
            text = str(error) if isinstance(error, ApiError) else f"{type(error).__name__}: {error}"
            fault = lifecycle.stalled(memory.conditions, text, now=self._ports.clock())
            written = await self._writer.write_conditions(job, body, fault)
            if job.uid in self._uids.get((namespace, name), ()):
                self.shown.show_conditions(job, body | {"status": written})
        except Exception as late:
            if not (
                isinstance(late, ApiError) and late.is_absence
            ):  # else the job was deleted meanwhile
                log.exception(
                    "the error cannot be shown in the status", extra={"job": f"{namespace}/{name}"}
                )
            return
        if (known := self._known.get(job.uid)) is not None:
            known.memory = replace(known.memory, conditions=fault)
            known.shown, known.fault = fault, text

    async def _lead(self, job: JobView, spec: JobSpec, body: Object, known: Known) -> float | None:
        pods = await self._pods.read(job, known)
        views = object_views.pod_views(pods, job)
        spec, job = await self._with_steps(job, spec, body, known, views)
        look = await self._look(job, spec, body, known.memory)
        if look is not None:
            spec, job = look.spec, replace(job, queued=look.why)
        full = self._full(job, spec, body, known.memory)  # a refused job keeps its share, too
        if full and known.refusal is None:
            known.refusal = Refusal(Reason.OPERATOR_FULL, full)
            if not has_plan(body, known.memory):
                await self._refuse(job, body, known)
                return FULL_PAUSE_S
        await self._ports.nodes.confirm(pods)
        nodes = await self._ports.nodes.views(spec, job.uid)
        view = ClusterView(nodes, views).located()
        actor = await self._actor(job, spec, body, known.memory)
        if actor is not None:
            wanted = spec
            spec, training = self._observe(actor, job, spec, view, body, known)
            if spec.suspend and not wanted.suspend:
                job = replace(job, rests=CHANGED)
        else:
            training = ended(durable_facts.read(body), statuses.read_progress(body), spec.best)
        rate = await self._rate(view, training)
        if training.unwritten is not None and rate is not None:
            unwritten = training.unwritten._replace(
                dollars_per_hour=rate.dollars_per_hour, unpriced=rate.unpriced
            )
            training = replace(training, unwritten=unwritten)
        now = self._ports.clock()
        turn = await self._turn(job, spec, view, training, known)
        decided = step(spec, view, training, known.memory, job=job, now=now, turn=turn)
        known.memory = decided.memory
        known.unsent += decided.records
        if self._ports.line is not None and turns.is_set_back(training, known.memory, now):
            self._ports.line.refuse(job.namespace, job.name)
        if not lacks_pods(spec, view, training, known.memory):
            known.rejected = ""  # what was rejected is not wanted any more
        self._ports.deleted_pods.counted(pods)
        again_s, kept = await self._write(job, spec, body, known, decided, rate, now)
        again_s += [FULL_PAUSE_S] if full else []
        for record in known.unsent:
            self._ports.record(job, record)
        known.unsent.clear()
        status = replace(decided.status, conditions=known.shown)
        self.shown.show(figures(job, spec, status, kept, rate))
        await self._pods.act(job, spec, known, decided.actions)
        if self._ports.budgets is not None:
            least = disruptions.least_available(view, training)
            was_planned = training.epoch > 0
            retry_s = await self._ports.budgets.keep(job, least, pods=pods, may_be_left=was_planned)
            again_s += [] if retry_s is None else [retry_s]
        if decided.memory.terminal is not None:
            self._leave_line(job.namespace, job.name)
        if decided.memory.terminal is not None and not any(p.is_alive for p in view.pods):
            await self._ports.jobs.forget([job.uid])
        elif turns.is_at_rest(spec, view, training):
            await self._ports.jobs.rest(job.uid)
        if look is not None and self._ports.kueue is not None:
            has_pods = any(not pod.is_over for pod in view.pods)
            is_working = any(
                c.type == ConditionType.RUNNING and c.status for c in decided.status.conditions
            )
            after_s = await self._ports.kueue.settle(
                job, look, has_pods=has_pods, is_working=is_working, outcome=decided.memory.terminal
            )
            again_s += [] if after_s is None else [after_s]
        due = [] if decided.wake_at is None else [max(0.0, decided.wake_at - now)]
        return min([*due, *again_s], default=None)

    async def _with_steps(
        self, job: JobView, spec: JobSpec, body: Object, known: Known, pods: tuple[PodView, ...]
    ) -> tuple[JobSpec, JobView]:
        """The spec with the number of steps that holds now, and the job with what becomes of the
        user's. A complete job goes on in the line, and in Kueue's queue, as a new one does."""
        facts, shown = durable_facts.read(body), statuses.steps_of(body)
        is_accepted = known.refusal is None
        found = raised_steps.decide(
            spec, facts, known.memory, pods, shown=shown, is_accepted=is_accepted
        )
        if found.begins:
            extra = {"job": job.name, "uid": job.uid, "steps": found.steps}
            log.info("a complete job goes on to more steps", extra=extra)
            if self._ports.kueue is not None and queue_of(body):
                await self._ports.kueue.forget(job)
            known.memory = raised_steps.renewed(known.memory)
        job = replace(job, next_steps=found.next, refused_steps=found.refused)
        return raised_steps.held(spec, found.steps), job

    def _observe(
        self,
        actor: JobActor,
        job: JobView,
        spec: JobSpec,
        view: ClusterView,
        body: Object,
        known: Known,
    ) -> tuple[JobSpec, TrainingView]:
        """Tell the actor what there is. The spec by which the job is led now, and its training.

        If the template has changed although agents hold the job's state, the job is suspended
        first, and goes on from its checkpoint: no plan may have agents of two templates.
        """
        # A plan that is not durable gives no agent any state yet.
        has_state = durable_facts.has_members(body) or actor.has_state
        must_rest = known.must_rest or (not spec.suspend and actor.must_rest(spec))
        known.must_rest = has_state and must_rest
        if known.must_rest and not spec.suspend:
            extra = {"job": job.name, "uid": job.uid}
            log.warning("agents of another template hold the state: suspending", extra=extra)
            spec = replace(spec, suspend=True)
        may_keep = has_state or spec.suspend  # a suspended job lets its agents go itself
        outdated = frozenset() if may_keep else turns.outdated(spec, view)
        actor.observe(job, spec, view, self._ports.clock(), outdated)
        return spec, replace(actor.view(), has_state=has_state)

    def _standstill_s(self, job: JobView) -> float:
        """How long the job's agents may wait for their programs, which is no time to read pods."""
        actor = self._ports.jobs.find(job.uid)
        return actor.standstill_s() if actor is not None else 0.0

    def _full(self, job: JobView, spec: JobSpec, body: Object, memory: Memory) -> list[Problem]:
        """The operator has no room for the job's plans. What trains already goes on."""
        if spec.suspend or memory.terminal is not None:
            return []
        is_started = memory.trained and self._ports.jobs.find(job.uid) is None
        tasks = limits.tasks(spec)
        why = self._ports.jobs.held.hold(job, tasks, is_started=is_started)
        return [Problem("plans", why)] if why else []

    async def _look(self, job: JobView, spec: JobSpec, body: Object, memory: Memory) -> Look | None:
        """Ask Kueue about the job; None: the job names no queue. An ended job stays as it is."""
        queue = queue_of(body)
        if self._ports.kueue is None or not queue or misnamed(queue):
            return None
        look = await self._ports.kueue.look(job, spec, queue)
        return look if memory.terminal is None else replace(look, spec=spec, why="")

    async def _turn(
        self, job: JobView, spec: JobSpec, view: ClusterView, training: TrainingView, known: Known
    ) -> Turn | None:
        """The job's turn among those that compete with it; None: it does not compete."""
        line, memory = self._ports.line, known.memory
        if line is None:
            return None
        is_done = memory.terminal is not None or training.unwritten is not None
        if spec.suspend or is_done:
            line.leave(job.namespace, job.name)
            return None
        seats = spec.pipelines.count * spec.pipelines.stages
        held = sum(pod.is_alive and bool(pod.node) for pod in view.pods)
        assured = turns.assured(spec, view, training, memory)
        now = self._ports.clock()
        line.note(
            Entry(
                job,
                spec,
                is_training=turns.is_training(view, training),
                assured=assured,
                is_whole=held >= seats,
                is_hurt=held < assured,
                closed=frozenset(dry.zone for dry in memory.dry if now < dry.until),
                is_refused=bool(known.rejected or known.refusal)
                or turns.is_set_back(training, memory, now),
                is_unheard=is_unheard(view, now),
                waiting=Counter(p.zone for p in view.pods if p.is_alive and not p.node),
            )
        )
        return await line.turn(job)

    def _leave_line(self, namespace: str, name: str) -> None:
        if self._ports.line is not None:
            self._ports.line.leave(namespace, name)

    async def _rate(self, view: ClusterView, training: TrainingView) -> Rate | None:
        """The present cost of the job's nodes."""
        if not self._ports.prices:
            return None
        nodes = await self._ports.nodes.list()
        return prices.rate(self._ports.prices, nodes, view.used(training))

    async def _actor(
        self, job: JobView, spec: JobSpec, body: Object, memory: Memory
    ) -> JobActor | None:
        """None: the job has ended, and its agents are gone or about to go."""
        actor = self._ports.jobs.find(job.uid)
        if actor is not None and not actor.is_overtaken:
            has_state, is_raised = durable_facts.has_members(body), actor.steps_differ(spec)
            may_stay = spec.suspend or has_state or not actor.is_outdated(spec)
            if may_stay and not is_raised:
                return actor
            log.info("the spec has changed while there is no plan", extra={"job": job.name})
        if actor is not None:  # it may have written since the job was read
            await actor.settle()
            body = await self._kube.get(api.job(job.namespace, job.name)) or body
        await self._ports.jobs.end(job.uid)
        if memory.terminal is not None:
            return None
        heard = statuses.read_heard(body)
        reported = replace(statuses.read_progress(body), heard=heard)
        return self._ports.jobs.lead(job, spec, durable_facts.read(body), reported)

    async def _forget_others(self, namespace: str, name: str, body: Object | None) -> None:
        """Forget earlier jobs of this name."""
        gone = self._uids.pop((namespace, name), set())
        if body is not None:
            uid = body["metadata"]["uid"]
            gone.discard(uid)
            self._uids[namespace, name] = {uid}
        await self._ports.jobs.forget(gone)
        if self._ports.budgets is not None:
            self._ports.budgets.forget(gone)
        for old in gone:
            self._known.pop(old, None)
            self._writer.forget(old)
            self.shown.forget(old)
        await self._ports.trust.forget(namespace, gone)  # last: it waits for the API server

    # ------------------------------------------------------------ status

    async def _write(
        self,
        job: JobView,
        spec: JobSpec,
        body: Object,
        known: Known,
        decided: Step,
        rate: Rate | None,
        now: float,
    ) -> tuple[list[float], Object]:
        """Write the status, and what the API server or the operator says against the job.

        Returns when to look again, and what is written now.
        """
        conditions = decided.status.conditions
        if known.rejected:
            has_state = durable_facts.has_members(body)
            conditions = lifecycle.rejected(
                conditions, known.rejected, has_state=has_state, now=now
            )
        if known.refusal is not None:
            problems, reason = known.refusal.problems, known.refusal.reason
            conditions = lifecycle.refuse(problems, conditions, now=now, reason=reason)
        if known.fault:
            conditions = lifecycle.stalled(conditions, known.fault, now=now)
        known.shown = lifecycle.dated(conditions, known.shown, now)
        status = replace(decided.status, conditions=known.shown)
        old = body.get("status") or {}
        new = statuses.with_times(statuses.to_object(job, spec, status, decided.memory), old, now)
        new = protection.with_reason(new, old, spec)
        is_changed = known.refusal is not None and known.refusal.reason == Reason.SPEC_CHANGED
        if is_changed and "identity" in old:  # it is that of these steps, and nothing is accepted
            new["identity"] = old["identity"]
            new["progress"]["steps"] = old["progress"]["steps"]
        if (paid := cost.write(rate, old.get("cost") or {}, now)) is not None:
            new["cost"] = paid
        new |= estimate.write(new, old, rate, now)
        again_s, kept = await self._writer.write(job, old, new, sharing=self.shown.unended, now=now)
        return [] if again_s is None else [again_s], kept

    async def _refuse(self, job: JobView, body: Object, known: Known) -> None:
        """Do not lead the job. If its spec is bad and it has had no plan, delete its pods."""
        assert known.refusal is not None
        self._leave_line(job.namespace, job.name)
        is_unled = has_plan(body, known.memory)
        may_wait = known.refusal.reason == Reason.OPERATOR_FULL  # until there is room
        if not (is_unled or may_wait) and known.memory.incarnation >= 0:
            await self._pods.sweep(job.namespace, job.name)
        known.memory = replace(known.memory, awaited={})
        before, written = known.memory.conditions, body.get("status") or {}
        refused = lifecycle.refuse(
            known.refusal.problems,
            before,
            now=self._ports.clock(),
            reason=known.refusal.reason,
            is_unled=is_unled,
        )
        # Of long problems the status has only the beginning.
        shown = statuses.conditions(refused, job.generation)
        if shown != written.get("conditions"):
            written = await self._writer.write_conditions(job, body, refused)
            known.memory = statuses.read_memory(body | {"status": written})
            known.shown, known.fault = refused, ""
        self.shown.show_conditions(job, body | {"status": written})
