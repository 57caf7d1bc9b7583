"""Metrics show what the status shows, also of jobs that are refused, rejected or not reconciled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from tests.core.controller.builders import JOB

from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.reasons import JobPhase
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_operator.kube.api import ApiError
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.registry import Metrics
from bamboo_operator.reconcile.job_pods import REFUSED_PAUSE_S
from bamboo_operator.reconcile.queue_workers import Workers
from bamboo_operator.reconcile.shown_jobs import ShownJobs
from bamboo_operator.reconcile.workqueue import WorkQueue
from bamboo_operator.status import totals
from bamboo_operator.status.writer import PROGRESS_S, WRITES_PER_S

from ..harness import PATH, Harness, failing
from ..status.test_totals import FULL

LABELS = 'job_namespace="ns",training_job="job"'
BAD = {"factory": "m:b", "args": {"a b": 1}}


def exported(harness: Harness) -> str:
    metrics = Metrics(harness.reconciler.shown.figures.values, clock=lambda: harness.now)
    return generate_latest(metrics.registry).decode()


def shown(harness: Harness) -> dict[str, str]:
    """Condition -> 1 if metrics show it as true, else 0."""
    start = f"bamboo_job_condition{{{LABELS},type="
    lines = [x.removeprefix(start) for x in exported(harness).splitlines() if x.startswith(start)]
    return {name.strip('"'): value[0] for name, value in (x.split("} ") for x in lines)}


def written(harness: Harness) -> dict[str, str]:
    """The same of the status."""
    conditions = harness.status["conditions"]
    return {c["type"]: str(int(c["status"] == "True")) for c in conditions}


async def test_pods_that_are_rejected(harness: Harness) -> None:
    harness.apply()
    harness.kube.fail = failing("create", "/pods", ApiError(403, "Forbidden", "exceeded quota"))
    await harness.reconcile()
    await harness.reconcile()
    assert shown(harness) == written(harness)
    assert shown(harness)["Accepted"] == "0"
    harness.kube.fail = lambda verb, path: None
    harness.now += REFUSED_PAUSE_S
    await harness.reconcile()
    await harness.reconcile()
    assert shown(harness)["Accepted"] == "1"


async def test_a_job_that_was_never_accepted(harness: Harness) -> None:
    harness.apply(model=BAD)
    await harness.reconcile()
    assert shown(harness) == written(harness) == {"Accepted": "0", "Running": "0"}
    assert 'bamboo_jobs{phase="Pending"} 1.0' in exported(harness)
    del harness.kube.objects[PATH]
    await harness.reconcile()
    assert LABELS not in exported(harness)


async def test_args_that_change(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.kube.objects[PATH]["spec"]["model"]["args"]["layers"] = 5
    await harness.reconcile()
    assert shown(harness) == written(harness)
    assert shown(harness)["Accepted"] == "0"


async def test_a_refused_job_keeps_its_counters_under_the_next_operator(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.status["totals"] = totals.write(FULL)
    harness.kube.objects[PATH]["spec"]["model"] = BAD
    other = Harness()
    other.kube.objects = harness.kube.objects
    for _ in range(2):
        await other.reconcile()
        text = exported(other)
        assert f"bamboo_job_steps_total{{{LABELS}}} 7.0" in text
        assert f"bamboo_job_samples_total{{{LABELS}}}" not in text  # the batch is not known
        assert shown(other)["Accepted"] == "0"


async def test_an_error_of_a_reconcile(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(WorkQueue(), harness.reconciler, Metrics(list))
    harness.apply()
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.validation.reading.from_manifest", lambda *_, **__: 1 / 0)
        await workers._one(("ns", "job"))
        assert shown(harness) == written(harness)
        assert shown(harness)["Stalled"] == "1"
    await workers._one(("ns", "job"))
    await workers._one(("ns", "job"))
    assert shown(harness)["Stalled"] == "0"
    with monkeypatch.context() as patched:
        patched.setattr("bamboo_core.validation.reading.from_manifest", lambda *_, **__: 1 / 0)
        await workers._one(("ns", "job"))
    assert shown(harness)["Stalled"] == "1"


async def test_an_error_of_a_job_that_is_gone_leaves_no_series(harness: Harness) -> None:
    """The reconcile before has failed so early that it did not see the job."""
    harness.apply()
    await harness.reconciler.note_fault("ns", "job", ValueError("x"))
    del harness.kube.objects[PATH]
    await harness.reconcile()
    assert LABELS not in exported(harness)


def test_steps_of_a_plan_are_counted_from_its_first_sight() -> None:
    """Also by the next operator, and after a restore to an older step."""
    shown, counts = ShownJobs(), list[int]()
    moments = [(1, 0, -1), (1, 0, -1), (1, 0, 0), (1, 0, 4), (2, 0, 4), (2, 0, 5), (2, 1, 2)]
    for epoch, attempt, committed in [*moments, (2, 1, 3), (2, 1, 1), (2, 1, 2)]:
        progress = TrainingProgress(committed)
        status = JobStatus(JobPhase.RUNNING, (), epoch=epoch, attempt=attempt, progress=progress)
        shown.show(JobFigures(JOB, status, 64))
        counts.append(shown.figures[JOB.uid].plan_steps)
    assert counts == [0, 0, 1, 5, 0, 1, 0, 1, 0, 1]
    later = ShownJobs()
    later.show(shown.figures[JOB.uid])
    assert later.figures[JOB.uid].plan_steps == 0


async def test_the_interval_of_checkpoints_is_the_specs(harness: Harness) -> None:
    harness.apply(checkpoint={"uri": "file:///checkpoints", "everySteps": 7})
    await harness.reconcile()
    assert f"bamboo_checkpoint_interval_steps{{{LABELS}}} 7.0" in exported(harness)
    assert f"bamboo_checkpoint_behind_steps{{{LABELS}}} 0.0" in exported(harness)


def of(number: int, phase: JobPhase, like: JobFigures) -> JobFigures:
    job = replace(like.job, uid=f"other-{number}")
    return replace(like, job=job, status=replace(like.status, phase=phase))


@pytest.mark.parametrize(
    ("phase", "pause_s"), [(JobPhase.FAILED, PROGRESS_S), (JobPhase.RUNNING, 500.9 / WRITES_PER_S)]
)
async def test_ended_jobs_do_not_make_writes_rarer(
    harness: Harness, phase: JobPhase, pause_s: float
) -> None:
    harness.apply()
    await harness.reconcile()
    await harness.reconcile()
    (like,) = harness.reconciler.shown.figures.values()
    for number in range(500):
        harness.reconciler.shown.show(of(number, phase, like))
    harness.status["progress"]["step"] = 3
    again_s = await harness.reconcile()
    assert again_s == pytest.approx(pause_s, abs=0.1)
