"""Jobs as the operator sees them, scrape by scrape: one is calm, everything happens to one, one has
no agents yet, and one becomes slow.

It stands for a run where there is no time for one: the metrics, the scrapes, the rules and the
queries are real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from bamboo_agent.supervisor import health
from bamboo_core.api.progress import Ahead, Hosted, Lane, TrainingProgress, Way
from bamboo_core.api.reasons import ConditionType, FailureCause, JobPhase, Reason
from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_core.controller.failures import Failures
from bamboo_core.controller.lifecycle import JobStatus, ZoneCount
from bamboo_core.controller.view import Condition, JobView, Losses
from bamboo_core.protocol.messages import CommitRecord, Progress
from bamboo_operator.money.prices import Rate
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.registry import Metrics

CALM, STORM, NEW, SLOW = "calm", "storm", "new", "slow"
NAMESPACE = "team-a"
_BATCH = 64
_HOUR_S = 3600.0
_MOMENT_S = 60.0  # from one scrape to the next
_ALWAYS = (ConditionType.ACCEPTED, ConditionType.CAPACITY_AVAILABLE, ConditionType.RUNNING)
_TROUBLED = (ConditionType.RUNNING, ConditionType.DEGRADED, ConditionType.STALLED)
_REASONS = {
    ConditionType.STALLED: Reason.NO_PROGRESS,
    ConditionType.CHECKPOINTED: Reason.WRITE_FAILED,
}
_SLOW_FROM = 100  # moment
_RESTARTS = 5  # moments from one start of the operator's container to the next


class Story:
    """Serves as the list of jobs of :class:`Metrics`; each call is the next moment."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.moment = 0
        self._clock, self._began = clock, clock()
        self.metrics = Metrics(self._jobs, clock)
        self.metrics.leader.set(1)
        self.metrics.streams.set(8)
        self.metrics.loop_lag_s.set(0.001)
        self.metrics.last_event.labels("pods").set(self._began)
        self._agents = {
            f"{name}-p0-s0-i0": health.Metrics(job=f"{NAMESPACE}/{name}", agent=f"{name}-p0-s0-i0")
            for name in (CALM, STORM)
        }

    def _jobs(self) -> list[JobFigures]:
        self.moment += 1
        metrics = self.metrics
        metrics.reconciles.labels("ok").inc(3)
        metrics.reconciles.labels("error").inc(6)
        metrics.reconcile_s.observe(0.01)
        metrics.queue_depth.set(self.moment % 3)
        if self.moment % _RESTARTS == 0:
            metrics.started.set(self._clock())
        metrics.observe_request("PATCH", "bamboojobs", 200, 0.01)
        for agent, share in (("calm-p0-s0-i0", 0.75), ("storm-p0-s0-i0", 0.5)):
            self._agents[agent].sent_to_operator(
                Progress(CommitRecord(self.moment), step_s=0.25, busy_s=share * _MOMENT_S)
            )
        return [self._calm(), self._storm(), self._new(), self._slow()]

    @property
    def registries(self) -> list[CollectorRegistry]:
        """All registries that Prometheus scrapes: the operator's first, then the agents'."""
        return [self.metrics.registry, *(agent.registry for agent in self._agents.values())]

    def _calm(self) -> JobFigures:
        now, done = self._clock(), self.moment
        status = JobStatus(
            JobPhase.RUNNING,
            _conditions(*_ALWAYS, ConditionType.CHECKPOINTED),
            pipelines=2,
            pipelines_wanted=2,
            feasible_pipelines=3,
            agents_connected=8,
            agents_wanted=8,
            zones=(ZoneCount("zone-a", 4, 4, 4, 4), ZoneCount("zone-b", 4, 4, 4, 4)),
            epoch=1,
            steps=1000,
            progress=TrainingProgress(done, loss=5.0 / done, step_s=0.25),
            samples_per_s=256.0,
            checkpoint_step=done,
            copies=((2, "0-5"),),
            totals=Totals(
                steps=done,
                busy_s=1.5 * done,
                sent_bytes=done << 22,
                sent=_sent(done << 20),
                ahead=Ahead(4 * done, 0, 1 << 20, done << 20, 0.01 * done),
                hosted=Hosted(1 << 21, 0, done << 20, 0.01 * done),
            ),
            times=Times(TimeState.TRAINING, self._began, {"Starting": 3.0}),
        )
        return _figures(CALM, status, checkpoint_at=now - 60.0)

    def _new(self) -> JobFigures:
        """None of its pods exists yet."""
        conditions = _conditions(ConditionType.ACCEPTED, ConditionType.CAPACITY_AVAILABLE)
        status = JobStatus(
            JobPhase.PENDING,
            conditions,
            pipelines_wanted=1,
            agents_wanted=4,
            times=Times(TimeState.WAITING, self._began),
        )
        return _figures(NEW, status, checkpoint_at=None)

    def _slow(self) -> JobFigures:
        calm = self._calm()
        step_s = 5.0 if self.moment > _SLOW_FROM else 0.25
        progress = replace(calm.status.progress, step_s=step_s)
        return replace(
            calm, job=replace(calm.job, name=SLOW), status=replace(calm.status, progress=progress)
        )

    def _storm(self) -> JobFigures:
        """Losses, failures, a dispute and a restore; it stands still, and its pods are rejected."""
        n = self.moment
        totals = Totals(
            steps=20,
            repeated_steps=n,
            redone_tasks=3 * n,
            busy_s=20.0,
            sent_bytes=1 << 24,
            sent=_sent(1 << 22),
            corruptions=n // 2,
            stalls={"WaitCycle": n // 3},
            pauses={"Loss": Pauses(n, {"Stop": 6.0 * n, "Plan": 6.0 * n, "Resume": 12.0 * n})},
        )
        status = JobStatus(
            JobPhase.RUNNING,
            (
                *_conditions(*_TROUBLED, reasons=_REASONS),
                Condition(ConditionType.FAILED, n > 4, ""),
            ),
            pipelines=1,
            pipelines_wanted=2,
            feasible_pipelines=1,
            agents_connected=4,
            agents_wanted=8,
            zones=(ZoneCount("zone-a", 4, 4, 4, 4),),
            epoch=n,
            attempt=n // 4,
            steps=1000,
            progress=TrainingProgress(10, loss=2.0, step_s=0.5),
            checkpoint_step=4,
            copies=((1, "0-2"), (2, "3-5")),
            losses=Losses(5 * n, 0),
            failures=Failures(
                counts=((FailureCause.TASK_FAILED, 4 * n), (FailureCause.START_FAILED, n))
            ),
            totals=totals,
            times=Times(TimeState.TRAINING, self._began, {"WaitingForCapacity": 3.0}),
        )
        return _figures(STORM, status, checkpoint_at=self._clock() - 2 * _HOUR_S)


def _sent(count: int) -> dict[Way, int]:
    """As much in each lane inside zone-a as from there to zone-b."""
    return {Way(lane, "zone-a", to): count for lane in Lane for to in ("zone-a", "zone-b")}


def _conditions(
    *true: ConditionType, reasons: Mapping[ConditionType, Reason] = MappingProxyType({})
) -> tuple[Condition, ...]:
    return tuple(
        Condition(kind, kind in true, reasons.get(kind, ""))
        for kind in ConditionType
        if kind is not ConditionType.FAILED
    )


def _figures(name: str, status: JobStatus, *, checkpoint_at: float | None) -> JobFigures:
    job = JobView(NAMESPACE, name, f"uid-{name}", 1, 0.0)
    return JobFigures(
        job,
        status,
        _BATCH,
        checkpoint_at,
        Rate(9.2, 29.4, 0),
        has_checkpoints=True,
        checkpoint_every=2,
    )
