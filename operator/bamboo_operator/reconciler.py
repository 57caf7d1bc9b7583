"""One reconcile: list, observe, decide (pure), write status, act.

Status comes before actions, so the numbers of new pods are durable before the pods exist. Every
action can be repeated; the queue retries after a failure.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bamboo_core.admission.line import is_unheard
from bamboo_core.admission.quota import QUEUE_LABEL
from bamboo_core.api import limits, reading
from bamboo_core.api import spec as specs
from bamboo_core.api.pod_rules import RESTRICTED, PodRules
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.records import Problem
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import disruptions, lifecycle
from bamboo_core.controller import turn as turns
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.reconcile import Action, CreatePod, DeletePod, Step, lacks_pods, step
from bamboo_core.controller.turn import Turn
from bamboo_core.controller.view import ClusterView, Condition, JobView, Memory, TrainingView
from bamboo_core.job.training import ended
from bamboo_operator import api, cost, facts, manifests, observe, prices, totals
from bamboo_operator import status as statuses
from bamboo_operator.api import Api, ApiError, Object
from bamboo_operator.budgets import Budgets
from bamboo_operator.deleted_pods import DeletedPods
from bamboo_operator.job_actor import JobActor
from bamboo_operator.jobs import Jobs
from bamboo_operator.kueue import Kueue, Look, misnamed, queue_of
from bamboo_operator.labels import JOB_LABEL
from bamboo_operator.line import Entry, Line
from bamboo_operator.metrics.figures import JobFigures
from bamboo_operator.nodes import Nodes
from bamboo_operator.owners import is_agent
from bamboo_operator.prices import Pool, Rate
from bamboo_operator.seals import Seals
from bamboo_operator.timestamps import timestamp
from bamboo_operator.trust import Trust

log = logging.getLogger(__name__)

REFUSED_PAUSE_S = 10.0
"""Pause after the API server has rejected a pod."""

FULL_PAUSE_S = 10.0
"""Pause after the operator had no room for a job's plans."""

PROGRESS_S = 5.0
"""Least time between two writes of a status that differs only in progress."""
WRITES_PER_S = 10.0
"""Such writes of all jobs together."""


@dataclass(frozen=True)
class _Refusal:
    """Why a job gets no new pods. One that has had a plan is led on with the pods that it has."""

    reason: Reason
    problems: list[Problem]


@dataclass
class _Known:
    """What is remembered about a job between reconciles, beside its status."""

    memory: Memory
    shown: tuple[Condition, ...]  # the conditions as they were written
    rejected: str = ""  # why the API server takes no pods
    refusal: _Refusal | None = None
    spec: JobSpec | None = None  # the last one that was accepted
    fault: str = ""  # why the last reconcile ended early
    written_at: float = 0.0


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
    event_logs: str = ""
    budgets: Budgets | None = None  # None: evictions are not limited
    pod_rules: PodRules = RESTRICTED
    clock: Callable[[], float] = time.time
    deleted_pods: DeletedPods = field(default_factory=DeletedPods)
    prices: tuple[Pool, ...] = ()
    line: Line | None = None  # None: jobs do not wait for each other
    kueue: Kueue | None = None  # None: jobs may not name a queue


class Reconciler:
    """Drives jobs toward the desired state. One call at a time for each job."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._kube = ports.kube
        self._known: dict[str, _Known] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}
        self.figures: dict[str, JobFigures] = {}
        self._unended: set[str] = set()  # of these, the jobs that have not ended

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Returns the seconds until the next call is due even if nothing happens; None: never."""
        body = await self._kube.get(api.job(namespace, name))
        await self._forget_others(namespace, name, body)
        if body is None:
            self._leave_line(namespace, name)
            await self._sweep(namespace, name)
            return None
        job = observe.job_view(body)
        if job.deleting:
            self._leave_line(namespace, name)
            await self._ports.jobs.forget([job.uid])
            return None
        memory = statuses.read_memory(body)
        known = self._known.setdefault(job.uid, _Known(memory, memory.conditions))
        spec = self._accept(body, known)
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
            job, memory = observe.job_view(body), statuses.read_memory(body)
            text = str(error) if isinstance(error, ApiError) else f"{type(error).__name__}: {error}"
            fault = lifecycle.stalled(memory.conditions, text, now=self._ports.clock())
            written = await self._write_conditions(job, body, fault)
            if job.uid in self._uids.get((namespace, name), ()):
                self._show_conditions(job, body | {"status": written})
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

    async def _lead(self, job: JobView, spec: JobSpec, body: Object, known: _Known) -> float | None:
        pods = await self._pods(job)
        look = await self._look(job, spec, body, known.memory)
        if look is not None:
            spec, job = look.spec, replace(job, queued=look.why)
        full = self._full(job, spec, body, known.memory)  # a refused job keeps its share, too
        if full and known.refusal is None:
            known.refusal = _Refusal(Reason.OPERATOR_FULL, full)
            if not _has_plan(body, known.memory):
                await self._refuse(job, body, known)
                return FULL_PAUSE_S
        await self._ports.nodes.confirm(pods)
        nodes = await self._ports.nodes.views(spec, job.uid)
        view = ClusterView(nodes, observe.pod_views(pods, job)).located()
        actor = await self._actor(job, spec, body, known.memory)
        if actor is not None:
            actor.observe(spec, view, self._ports.clock())
        training = (
            actor.view()
            if actor is not None
            else ended(facts.read(body), statuses.read_progress(body))
        )
        now = self._ports.clock()
        turn = await self._turn(job, spec, view, training, known)
        decided = step(spec, view, training, known.memory, job=job, now=now, turn=turn)
        known.memory = decided.memory
        if not lacks_pods(spec, view, training, known.memory):
            known.rejected = ""  # what was rejected is not wanted any more
        self._ports.deleted_pods.counted(pods)
        rate = await self._rate(view, training)
        again_s, kept = await self._write(job, spec, body, known, decided, rate, now)
        again_s += [FULL_PAUSE_S] if full else []
        status = replace(decided.status, conditions=known.shown)
        self._show(_figures(job, spec, status, kept, rate))
        await self._act(job, spec, known, decided.actions)
        if self._ports.budgets is not None:
            least = disruptions.least_available(view, training)
            was_planned = training.epoch > 0
            retry_s = await self._ports.budgets.keep(job, least, may_be_left=was_planned)
            again_s += [] if retry_s is None else [retry_s]
        if decided.memory.terminal is not None:
            self._leave_line(job.namespace, job.name)
        if decided.memory.terminal is not None and not any(p.is_alive for p in view.pods):
            await self._ports.jobs.forget([job.uid])
        elif turns.is_at_rest(spec, view, training):
            await self._ports.jobs.rest(job.uid)
        if look is not None and self._ports.kueue is not None:
            has_pods = any(not pod.has_ended for pod in view.pods)
            is_working = any(
                c.type == ConditionType.RUNNING and c.status for c in decided.status.conditions
            )
            after_s = await self._ports.kueue.settle(
                job, look, has_pods=has_pods, is_working=is_working, outcome=decided.memory.terminal
            )
            again_s += [] if after_s is None else [after_s]
        due = [] if decided.wake_at is None else [max(0.0, decided.wake_at - now)]
        return min([*due, *again_s], default=None)

    def _standstill_s(self, job: JobView) -> float:
        """How long the job's agents may wait for their programs, which is no time to read pods."""
        actor = self._ports.jobs.find(job.uid)
        return actor.standstill_s() if actor is not None else 0.0

    def _full(self, job: JobView, spec: JobSpec, body: Object, memory: Memory) -> list[Problem]:
        """The operator has no room for the job's plans. What trains already goes on."""
        if spec.suspend or memory.terminal is not None:
            return []
        is_started = memory.trained and self._ports.jobs.find(job.uid) is None
        tasks = limits.tasks(spec, chunks=facts.chunks(body))
        why = self._ports.jobs.held.hold(job, tasks, is_started=is_started)
        return [Problem("plans", why)] if why else []

    def _accept(self, body: Object, known: _Known) -> JobSpec | None:
        """The spec by which to lead the job; None: it is not led.

        A job that has had a plan is led although its spec is refused now: a rule of the chart may
        have become stricter, or a label was set. If the spec cannot be read, or has other args, the
        last one that was accepted counts, but may be suspended; after a restart of the operator
        nobody knows it. Agents that are set up with other args differ in their fingerprint.
        """
        found, read = reading.from_manifest(body, rules=self._ports.pod_rules), reading.read(body)
        changes = [] if isinstance(read, list) else _changes(read, body)
        more = found if isinstance(found, list) else self._more(found, body)
        problems = [*changes, *more]
        if not problems and not isinstance(found, list):
            known.refusal, known.spec = None, found
            return found
        reason = Reason.SPEC_CHANGED if changes else Reason.SPEC_INVALID
        known.refusal = _Refusal(reason, problems)
        if not _has_plan(body, known.memory):
            return None
        if isinstance(read, list) or (changes and known.spec is not None):
            accepted, is_suspended = known.spec, _wants_suspension(body)
            return None if accepted is None else replace(accepted, suspend=is_suspended)
        return read

    def _more(self, spec: JobSpec, body: Object) -> list[Problem]:
        """What the spec alone does not show."""
        return [*limits.task_problems(spec, facts.chunks(body)), *self._queue(body)]

    def _queue(self, body: Object) -> list[Problem]:
        """The job names a queue that cannot be, or one although nobody asks Kueue."""
        queue = queue_of(body)
        if not queue:
            return []
        text = misnamed(queue)
        if self._ports.kueue is None:
            text = (
                f"names queue {queue!r}, but the operator does not use Kueue: set the chart's"
                " value kueue.enabled to true, or remove the label"
            )
        return [Problem(f"metadata.labels[{QUEUE_LABEL}]", text)] if text else []

    async def _look(self, job: JobView, spec: JobSpec, body: Object, memory: Memory) -> Look | None:
        """What Kueue says; None: the job names no queue. An ended job stays as it is."""
        queue = queue_of(body)
        if self._ports.kueue is None or not queue or misnamed(queue):
            return None
        look = await self._ports.kueue.look(job, spec, queue)
        return look if memory.terminal is None else replace(look, spec=spec, why="")

    async def _turn(
        self, job: JobView, spec: JobSpec, view: ClusterView, training: TrainingView, known: _Known
    ) -> Turn | None:
        """What the jobs that compete with it leave to it."""
        line, memory = self._ports.line, known.memory
        if line is None:
            return None
        if spec.suspend or memory.terminal is not None:
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
                is_refused=bool(known.rejected or known.refusal),
                is_unheard=is_unheard(view, now),
                waiting=Counter(p.zone for p in view.pods if p.is_alive and not p.node),
            )
        )
        return await line.turn(job)

    def _leave_line(self, namespace: str, name: str) -> None:
        if self._ports.line is not None:
            self._ports.line.leave(namespace, name)

    async def _rate(self, view: ClusterView, training: TrainingView) -> Rate | None:
        """What the job's nodes cost now."""
        if not self._ports.prices:
            return None
        nodes = await self._ports.nodes.list()
        return prices.rate(self._ports.prices, nodes, view.used(training))

    async def _pods(self, job: JobView) -> list[Object]:
        labels = f"{JOB_LABEL}={job.name}"
        listed = await self._ours(job.namespace, labels)
        deleted = self._ports.deleted_pods.of(job.namespace, labels, listed)
        return [*listed, *filter(self._ports.seals.is_ours, deleted)]

    async def _ours(self, namespace: str, labels: str) -> list[Object]:
        found = await self._kube.list(api.pods(namespace), labels=labels)
        return list(filter(self._ports.seals.is_ours, found))

    async def _actor(
        self, job: JobView, spec: JobSpec, body: Object, memory: Memory
    ) -> JobActor | None:
        """None: the job has ended, and its agents are gone or about to go."""
        actor = self._ports.jobs.find(job.uid)
        if actor is not None and not actor.is_overtaken:
            return actor
        await self._ports.jobs.end(job.uid)
        if memory.terminal is not None:
            return None
        reported = statuses.read_progress(body)
        return self._ports.jobs.lead(job, spec, facts.read(body), reported)

    async def _forget_others(self, namespace: str, name: str, body: Object | None) -> None:
        """Forget earlier jobs of this name."""
        gone = self._uids.pop((namespace, name), set())
        if body is not None:
            uid = body["metadata"]["uid"]
            gone.discard(uid)
            self._uids[namespace, name] = {uid}
        await self._ports.jobs.forget(gone)
        self._ports.trust.forget(namespace, gone)
        if self._ports.budgets is not None:
            self._ports.budgets.forget(gone)
        for old in gone:
            self._known.pop(old, None)
            self.figures.pop(old, None)
            self._unended.discard(old)

    async def _sweep(self, namespace: str, name: str) -> None:
        """Delete the pods of a deleted job, since the garbage collector is slower."""
        labels = f"{JOB_LABEL}={name}"
        for pod in await self._ours(namespace, labels):
            meta = pod["metadata"]
            if is_agent(pod, name) and "deletionTimestamp" not in meta:
                await self._kube.delete(api.pod(namespace, meta["name"]), uid=meta["uid"])

    # ------------------------------------------------------------ status

    async def _write(
        self,
        job: JobView,
        spec: JobSpec,
        body: Object,
        known: _Known,
        decided: Step,
        rate: Rate | None,
        now: float,
    ) -> tuple[list[float], Object]:
        """Write the status if it has changed, but progress alone not too often.

        Returns when to look again, and what is written now.
        """
        conditions = decided.status.conditions
        if known.rejected:
            conditions = lifecycle.rejected(conditions, known.rejected, now=now)
        if known.refusal is not None:
            problems, reason = known.refusal.problems, known.refusal.reason
            conditions = lifecycle.refuse(problems, conditions, now=now, reason=reason)
        if known.fault:
            conditions = lifecycle.stalled(conditions, known.fault, now=now)
        known.shown = lifecycle.dated(conditions, known.shown, now)
        status = replace(decided.status, conditions=known.shown)
        old = body.get("status") or {}
        new = statuses.with_times(statuses.describe(job, spec, status, decided.memory), old, now)
        if known.refusal is not None and "identity" in old:
            new["identity"] = old["identity"]  # what was changed has not been accepted
        if (paid := cost.write(rate, old.get("cost") or {}, now)) is not None:
            new["cost"] = paid
        if {k: v for k, v in old.items() if k != "arbiter"} == new:
            return [], new
        pause_s = max(PROGRESS_S, self.unended / WRITES_PER_S)
        left_s = known.written_at + pause_s - now
        if left_s > 0 and statuses.differ_in_progress_only(old, new):
            return [left_s], old
        await self._apply(job, new)
        known.written_at = now
        return [], new

    async def _refuse(self, job: JobView, body: Object, known: _Known) -> None:
        """Do not lead the job. If its spec is bad and it has had no plan, delete its pods."""
        assert known.refusal is not None
        self._leave_line(job.namespace, job.name)
        is_unled = _has_plan(body, known.memory)
        may_wait = known.refusal.reason == Reason.OPERATOR_FULL  # until there is room
        if not (is_unled or may_wait) and known.memory.incarnation >= 0:
            await self._sweep(job.namespace, job.name)
        before, written = known.memory.conditions, body.get("status") or {}
        refused = lifecycle.refuse(
            known.refusal.problems,
            before,
            now=self._ports.clock(),
            reason=known.refusal.reason,
            is_unled=is_unled,
        )
        if refused != before or written.get("observedGeneration") != job.generation:
            written = await self._write_conditions(job, body, refused)
            known.memory = statuses.read_memory(body | {"status": written})
            known.shown, known.fault = refused, ""
        self._show_conditions(job, body | {"status": written})

    async def _write_conditions(
        self, job: JobView, body: Object, conditions: tuple[Condition, ...]
    ) -> Object:
        old = {k: v for k, v in (body.get("status") or {}).items() if k != "arbiter"}
        old.setdefault("phase", "Pending")
        new = old | {
            "observedGeneration": job.generation,
            "conditions": statuses.conditions(conditions, job.generation),
        }
        await self._apply(job, new)
        return new

    async def _apply(self, job: JobView, status: Object) -> None:
        path = api.job_status(job.namespace, job.name)
        await self._kube.apply(path, statuses.envelope(job, status), manager=api.STATUS_MANAGER)

    # ------------------------------------------------------------ metrics

    @property
    def unended(self) -> int:
        """Number of jobs that have not ended. These share the writes of progress."""
        return len(self._unended)

    def _show(self, found: JobFigures) -> None:
        self.figures[found.job.uid] = found
        (self._unended.discard if found.has_ended else self._unended.add)(found.job.uid)

    def _show_conditions(self, job: JobView, body: Object) -> None:
        """The spec cannot be used, or not now: only conditions and phase have changed."""
        written = statuses.read(body)
        known = self.figures.get(job.uid)
        if known is None:
            known = JobFigures(job, written, None, checkpoint_at=_checkpoint_at(body["status"]))
        status = replace(known.status, phase=written.phase, conditions=written.conditions)
        self._show(replace(known, status=status))

    # ------------------------------------------------------------ actions

    async def _act(
        self, job: JobView, spec: JobSpec, known: _Known, actions: tuple[Action, ...]
    ) -> None:
        await self._ports.trust.publish(job)
        for action in actions:
            match action:
                case CreatePod() if known.refusal is not None:
                    self._wait(known)
                case CreatePod():
                    if not await self._create(job, spec, known, action):
                        self._ports.again(job, REFUSED_PAUSE_S)
                        return
                case DeletePod():
                    await self._delete(job, action)
                case _:
                    path = api.job(job.namespace, job.name)
                    await self._kube.delete(path, uid=job.uid)

    async def _create(self, job: JobView, spec: JobSpec, known: _Known, action: CreatePod) -> bool:
        """False: the API server rejects the pod, so it would reject the rest, too."""
        ports = self._ports
        pod = manifests.pod(
            spec,
            job,
            action,
            operator_address=ports.operator_address,
            event_logs=ports.event_logs,
            seal=ports.seals.seal(
                namespace=job.namespace, job=job.name, job_uid=job.uid, pod=action.name
            ),
        )
        try:
            await self._kube.create(api.pods(job.namespace), pod)
            known.rejected = ""
        except ApiError as error:
            if error.is_conflict:
                return True
            if not error.is_refusal:
                raise
            known.rejected = error.message
            self._wait(known)
            log.warning("pods are rejected", extra={"job": job.name, "error": error.message})
            return False
        return True

    def _wait(self, known: _Known) -> None:
        """No pods for a while."""
        until = self._ports.clock() + REFUSED_PAUSE_S
        known.memory = replace(known.memory, refused_until=until)

    async def _delete(self, job: JobView, action: DeletePod) -> None:
        if action.force:
            self._ports.on_forced()
        log.info("deleting a pod", extra={"pod": action.name, "reason": action.reason})
        grace_s = 0 if action.force else None
        await self._kube.delete(
            api.pod(job.namespace, action.name), uid=action.uid, grace_s=grace_s
        )


def _figures(
    job: JobView, spec: JobSpec, status: JobStatus, kept: Object, rate: Rate | None
) -> JobFigures:
    """What metrics show: counters as in the status that is written."""
    written = statuses.read_progress({"status": kept})
    progress = replace(status.progress, skipped=written.progress.skipped)
    return JobFigures(
        job,
        replace(status, progress=progress, totals=written.totals, times=totals.read_times(kept)),
        spec.training.global_batch_size,
        checkpoint_at=_checkpoint_at(kept),
        rate=rate,
        has_checkpoints=spec.checkpoint is not None,
    )


def _checkpoint_at(status: Object) -> float | None:
    return timestamp((status.get("lastCheckpoint") or {}).get("time"))


def _has_plan(body: Object, memory: Memory) -> bool:
    """Whether there is something to lead: work to keep, or an outcome to tell."""
    return facts.chunks(body) is not None or memory.terminal is not None


def _wants_suspension(body: Object) -> bool:
    """What a spec says that may be unreadable otherwise."""
    spec = body.get("spec")
    return isinstance(spec, dict) and spec.get("suspend") is True


def _changes(spec: JobSpec, body: Object) -> list[Problem]:
    """Changes of args, which the API server does not check."""
    known = (body.get("status") or {}).get("identity")
    if not known or known == specs.identity_hash(spec):
        return []
    text = (
        "args of model, data or optimizer have changed; they decide the result: change them back,"
        " or create a new BambooJob"
    )
    return [Problem("spec", text)]
