"""Times in the life of a job and its operator: what the operator exports meanwhile, and which
alerts must fire. Most of them are no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.reasons import ConditionType as Type
from bamboo_core.api.reasons import JobPhase, Reason
from bamboo_core.api.totals import Times, TimeState, Totals, with_pause
from bamboo_core.controller.lifecycle import JobStatus, ZoneCount
from bamboo_core.controller.view import Condition, JobView
from bamboo_core.evidence.pod_troubles import PodTrouble, stuck_at
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.registry import Metrics
from bamboo_sim.watching.definitions import rules, source
from bamboo_sim.watching.proof import promtool

MINUTE_S = 60.0
AGENTS = 8
_JOB = JobView("team-a", "job", "uid", 1, 0.0)
_PHASES = {
    TimeState.WAITING: JobPhase.PENDING,
    TimeState.STARTING: JobPhase.STARTING,
    TimeState.TRAINING: JobPhase.RUNNING,
    TimeState.RECOVERING: JobPhase.RECOVERING,
    TimeState.WAITING_FOR_CAPACITY: JobPhase.RECOVERING,
    TimeState.SUSPENDED: JobPhase.SUSPENDED,
    TimeState.ENDED: JobPhase.COMPLETE,
}
_TARGET = {**source.LABELS, "job": "apps/any-name", "endpoint": "metrics"}
"""What Prometheus says of the operator. Its label job is not that of the chart's Service."""


@dataclass(frozen=True)
class Part:
    """A while in which nothing changes but what training does by itself."""

    minutes: int
    state: TimeState | None = TimeState.TRAINING  # None: there is no job yet
    step_s: float = 2.0  # 0: no step ends
    missing: int = 0  # agents without a node
    plan: int = 1
    attempt: int = 0
    is_pause: bool = False  # a pause is under way, from the stop to the next committed step
    writes: bool = True  # checkpoints can be written
    pods: tuple[str, ...] = ("a", "z")  # of the operator; the first one leads
    has_leader: bool = True
    stuck: Reason | None = None  # why the condition Stalled is true


@dataclass
class _Job:
    """The job as its status has it at a moment."""

    every: int  # steps between checkpoints
    done: float = 0.0  # steps
    saved: int = -1
    saved_at: float | None = None
    repeated: int = 0
    attempt: int = 0
    step_s: float = 0.0  # of the last step
    times: Times = field(default_factory=Times)
    totals: Totals = field(default_factory=Totals)

    def live(self, part: Part, now: float) -> None:
        """Another minute has passed."""
        if part.state is None:
            return
        self.times = self.times.entered(part.state, now)
        if part.attempt > self.attempt:
            self.attempt = part.attempt
            self.repeated += int(self.done) - max(0, self.saved)
            self.done = float(max(0, self.saved))
        trains = part.state is TimeState.TRAINING and part.step_s > 0
        before, self.done = int(self.done), self.done + trains * MINUTE_S / (part.step_s or 1.0)
        self.step_s = part.step_s if trains else self.step_s
        steps = self.totals.steps + int(self.done) - before
        self.totals = replace(self.totals, steps=steps, repeated_steps=self.repeated)
        if part.is_pause:
            self.totals = with_pause(
                self.totals, "Restore", count=0, phase="Resume", seconds=MINUTE_S
            )
        if part.writes and self.done - max(0, self.saved) >= self.every:
            self.saved, self.saved_at = int(self.done) // self.every * self.every, now

    def figures(self, part: Part) -> JobFigures:
        """The figures that metrics show of it."""
        assert part.state is not None
        status = JobStatus(
            _PHASES[part.state],
            tuple(_conditions(part, self)),
            agents_wanted=AGENTS,
            zones=(ZoneCount("zone-a", AGENTS, AGENTS, AGENTS - part.missing, AGENTS),),
            epoch=part.plan,
            attempt=part.attempt,
            progress=TrainingProgress(int(self.done) - 1, step_s=self.step_s),
            checkpoint_step=self.saved,
            copies=((1 if part.missing else 2, "0-5"),),
            totals=self.totals,
            times=self.times,
        )
        return JobFigures(
            _JOB, status, 64, self.saved_at, has_checkpoints=True, checkpoint_every=self.every
        )


def _conditions(part: Part, job: _Job) -> Iterator[Condition]:
    trains = part.state is TimeState.TRAINING
    is_saved, is_degraded = job.saved >= 0, trains and part.missing > 0
    rests = part.state is TimeState.SUSPENDED
    reason = Reason.TRAINING_STEP if trains else Reason.WAITING_FOR_AGENTS
    yield Condition(Type.ACCEPTED, True, Reason.SPEC_RESOLVED)
    yield Condition(Type.CAPACITY_AVAILABLE, not part.missing, Reason.ALL_PLACED)
    yield Condition(Type.RUNNING, trains, reason)
    yield Condition(Type.DEGRADED, is_degraded, Reason.FEWER_AGENTS)
    yield Condition(Type.STALLED, part.stuck is not None, part.stuck or Reason.PROGRESSING)
    yield Condition(Type.CHECKPOINTED, is_saved, Reason.SEALED if is_saved else Reason.NONE_YET)
    yield Condition(Type.SUSPENDED, rests, Reason.USER_REQUESTED if rests else Reason.RESUMED)
    yield Condition(Type.COMPLETE, part.state is TimeState.ENDED, Reason.NOT_YET)
    yield Condition(Type.FAILED, False, Reason.NOT_YET)


@dataclass(frozen=True)
class Life:
    """A time, and the alerts that must fire in it, and no others."""

    parts: Sequence[Part]
    fires: tuple[str, ...] = ()
    every: int = 100  # steps between two checkpoints

    @property
    def minutes(self) -> int:
        """Its length."""
        return sum(part.minutes for part in self.parts)

    def test(self, name: str) -> dict[str, Any]:
        """It as a test of promtool."""
        ask = promtool.fired_until(self.minutes - 1, self.fires)
        return promtool.test(name, list(self.inputs()), promql_expr_test=[ask])

    def inputs(self) -> Iterator[dict[str, str]]:
        """The series that rules look at, as Prometheus scrapes them once a minute."""
        text, found = rules.text(), dict[tuple[str, str], dict[int, float]]()
        labels = dict[tuple[str, str], dict[str, str]]()
        for minute, (pod, registry) in self._scrapes():
            for family in registry.registry.collect():
                for sample in family.samples:
                    if f"{sample.name}{{" in text:
                        own = {**sample.labels, **_TARGET, "pod": pod, "instance": f"{pod}:8080"}
                        key = sample.name, str(sorted(own.items()))
                        labels[key] = own
                        found.setdefault(key, {})[minute] = sample.value
        for key, values in found.items():
            yield promtool.series(key[0], labels[key], _written(values, self.minutes))

    def _scrapes(self) -> Iterator[tuple[int, tuple[str, Metrics]]]:
        job = _Job(self.every)
        operators = dict[str, _Operator]()
        moments = (part for part in self.parts for _ in range(part.minutes))
        for minute, part in enumerate(moments):
            now = minute * MINUTE_S
            job.live(part, now)
            for pod in part.pods:
                leads = pod == part.pods[0] and part.has_leader
                operator = operators.setdefault(pod, _Operator(now))
                figures = job.figures(part) if leads and part.state else None
                operator.show(figures, now, leads=leads)
                yield minute, (pod, operator.metrics)


class _Operator:
    """One operator's process."""

    def __init__(self, now: float) -> None:
        self._now, self._jobs = now, list[JobFigures]()
        self.metrics = Metrics(lambda: self._jobs, lambda: self._now)

    def show(self, job: JobFigures | None, now: float, *, leads: bool) -> None:
        self._now = now
        self.metrics.leader.set(leads)
        if job is not None:
            self._jobs = [job.after(next(iter(self._jobs), None))]


def _written(values: dict[int, float], minutes: int) -> str:
    """In promtool's notation. A series ends when its target is gone."""
    words = list[str]()
    for minute in range(minutes):
        is_end = minute not in values and minute - 1 in values
        words.append("stale" if is_end else f"{values[minute]:g}" if minute in values else "_")
    return " ".join(_run(word, len(list(same))) for word, same in groupby(words))


def _run(word: str, count: int) -> str:
    if count == 1 or word == "stale":
        return word
    return f"_x{count}" if word == "_" else f"{word}x{count - 1}"


_WAIT = TimeState.WAITING
_START = TimeState.STARTING
_REST = TimeState.SUSPENDED
_HANDOVER = ("z",)


def _waits(trouble: PodTrouble, minutes: int) -> list[Part]:
    """Pods have a node and do not start, for so long: the job is stuck when the operator says so.

    minutes: at least as many as until then, or the job is never stuck.
    """
    at = stuck_at(trouble, "PodInitializing", 0.0)
    assert at is not None
    calm = min(minutes, int(at / MINUTE_S))
    parts = [Part(calm, _WAIT), Part(minutes - calm, _WAIT, stuck=Reason.CONTAINER_CANNOT_START)]
    return [part for part in parts if part.minutes]


_IMAGE = PodTrouble(has_volumes=True)
_VOLUMES = PodTrouble(has_volumes=False)
_INIT = PodTrouble(has_volumes=True, awaited="fetch", works=True)

HARMLESS = {
    "a slow first step": Life([Part(10, _START), Part(45, step_s=0), Part(60)]),
    "a resume with a slow first step": Life(
        [
            Part(90),
            Part(180, _REST),
            Part(10, _START, plan=2),
            Part(45, step_s=0, plan=2),
            Part(60, plan=2),
        ]
    ),
    "a quick resume with a slow first step": Life(
        [Part(90), Part(5, _REST), Part(5, _START, plan=2), Part(45, step_s=0, plan=2), Part(60)]
    ),
    "a restore that progresses": Life(
        [
            Part(91),
            Part(10, TimeState.RECOVERING, plan=2, attempt=1, is_pause=True),
            Part(40, step_s=0, plan=2, attempt=1, is_pause=True),
            Part(60, plan=2, attempt=1),
        ],
        ("BambooPausesTooLong", "BambooWorkRepeated"),
    ),
    "a long interval of checkpoints": Life([Part(7 * 60)], every=5000),
    "long steps": Life([Part(5 * 60, step_s=700)], every=10),
    "an upgrade of the operator": Life(
        [
            Part(60),
            Part(1, pods=_HANDOVER, has_leader=False),
            Part(5, plan=2, pods=_HANDOVER),
            Part(5, plan=2, pods=("z", "b")),
            Part(1, plan=2, pods=("b",), has_leader=False),
            Part(60, plan=3, pods=("b", "y")),
        ]
    ),
    "an upgrade of an operator without a standby": Life(
        [Part(60, pods=("a",)), Part(2, pods=()), Part(60, plan=2, pods=("b",))]
    ),
    "a drain of all nodes, one after the other": Life(
        [
            Part(60),
            *(
                part
                for turn in range(AGENTS)
                for part in (
                    Part(3, missing=1, step_s=2.5, plan=2 * turn + 2),
                    Part(5, plan=2 * turn + 3),
                )
            ),
            Part(60, plan=99),
        ]
    ),
    "a fresh install": Life(
        [
            Part(5, None, pods=()),
            Part(1, None, has_leader=False),
            Part(10, None),
            Part(10, _WAIT),
            Part(5, _START),
            Part(60),
        ]
    ),
    "a job with fewer agents, more slowly": Life(
        [Part(60), Part(25, missing=6, step_s=12.0, plan=2), Part(60, plan=3)],
        ("BambooOneLossFromRestore",),
    ),
    "an image that takes 10 minutes": Life([*_waits(_IMAGE, 10), Part(5, _START), Part(60)]),
    "an init container that works for 45 minutes": Life(
        [*_waits(_INIT, 45), Part(5, _START), Part(60)]
    ),
    "a short job": Life([Part(2, _START), Part(10), Part(60, TimeState.ENDED)]),
    "a job that is suspended for hours": Life([Part(30), Part(200, _REST)]),
}
"""What happens -> how. Alerts tell of work that is repeated and of missing copies, and of nothing
else."""

FAULTS = {
    "a job that never starts, though nothing is known to be stuck": Life(
        [Part(5, None), Part(70, _WAIT)], ("BambooJobNotRunning",)
    ),
    "a job whose volumes are not mounted, for a quarter of an hour": Life(
        _waits(_VOLUMES, 15), ("BambooJobStalled",)
    ),
    "a job whose image is not there after a quarter of an hour": Life(
        _waits(_IMAGE, 15), ("BambooJobStalled",)
    ),
    "an init container that does not end within an hour": Life(
        _waits(_INIT, 57), ("BambooJobStalled",)
    ),
    "an init container that never ends": Life(
        _waits(_INIT, 75), ("BambooJobNotRunning", "BambooJobStalled")
    ),
    "a job that never commits a step": Life(
        [Part(5, _START), Part(70, step_s=0)], ("BambooJobStandsStill",)
    ),
    "a disk that is full from the start": Life(
        [Part(40, writes=False)], ("BambooCheckpointTooOld",)
    ),
    "a disk that is full later": Life(
        [Part(60), Part(30, writes=False)], ("BambooCheckpointTooOld",)
    ),
    "a resumed job that stands still after its first steps": Life(
        [
            Part(60),
            Part(60, _REST),
            Part(5, _START, plan=2),
            Part(10, plan=2),
            Part(25, step_s=0, plan=2),
        ],
        ("BambooJobStandsStill",),
    ),
    "a job at a tenth of its speed": Life([Part(120), Part(30, step_s=20.0)], ("BambooJobSlow",)),
    "an operator that was never seen": Life([Part(20, None, pods=())], ("BambooOperatorMissing",)),
    "operators that are gone": Life(
        [Part(30), Part(20, pods=())], ("BambooNoLeader", "BambooOperatorMissing")
    ),
    "operators of which none ever leads": Life(
        [Part(10, None, has_leader=False)], ("BambooNoLeader",)
    ),
}
"""Faults that no alert told of, or that are told after a life in which they must not be."""
