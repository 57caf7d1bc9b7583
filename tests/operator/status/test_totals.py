"""Counters and times in the job's status: they survive an operator, and never go back."""

from __future__ import annotations

from prometheus_client import generate_latest

from bamboo_core.api.progress import Ahead, Hosted, Way
from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_operator.monitoring.registry import Metrics
from bamboo_operator.status import totals
from bamboo_operator.status.writer import PROGRESS_S

from ..harness import Harness

LABELS = 'job_namespace="ns",training_job="job"'
FULL = Totals(
    steps=7,
    repeated_steps=2,
    redone_tasks=3,
    busy_s=1.25,
    sent_bytes=1 << 40,
    group_bytes=1 << 39,
    corruptions=1,
    stalls={"WaitCycle": 2},
    attempts={"LayerLost": 1, "Resumed": 2},
    pauses={"Loss": Pauses(2, {"Stop": 0.5, "Plan": 0.25}), "Stall": Pauses(1)},
    sent={Way("Sums", "a", "b"): 1 << 40, Way("Copies", "b", "b"): 3},
    ahead=Ahead(1, 2, 3, 4, 0.5, 5, 6),
    hosted=Hosted(5, 6, 7, 0.25),
)


def test_totals_can_be_read_again() -> None:
    status = {"totals": totals.write(FULL)}
    assert totals.read(status) == FULL
    assert totals.read({}) == Totals()
    assert totals.write(Totals()) is None


def test_an_agents_word_fits_into_the_status() -> None:
    """The API server refuses larger integers, and with them the whole status."""
    written = totals.write(Totals(sent={Way("Sums", "a", "b"): 1 << 64}, ahead=Ahead(1 << 64)))
    assert written is not None
    assert written["sent"][0]["bytes"] == written["ahead"]["slices"] == (1 << 63) - 1


def test_times_can_be_read_again() -> None:
    times = Times(TimeState.TRAINING, 1234.5, {"Waiting": 10.0}, resumed_s=2.5)
    assert totals.read_times({"times": totals.write_times(times)}) == times
    assert totals.read_times({}) == Times()
    assert totals.write_times(Times()) is None
    assert totals.read_times({"times": {"state": "Flying"}}).state is None


def test_time_goes_on_while_no_operator_lives() -> None:
    times = Times(TimeState.TRAINING, 100.0, {"Waiting": 10.0})
    assert times.until(130.0) == {"Waiting": 10.0, "Training": 30.0}
    assert times.until(90.0) == {"Waiting": 10.0, "Training": 0.0}
    after = times.entered(TimeState.ENDED, 130.0)
    assert after.until(1e6) == {"Waiting": 10.0, "Training": 30.0}
    assert times.entered(TimeState.TRAINING, 130.0) is times


async def test_another_operator_goes_on_from_the_status(harness: Harness) -> None:
    harness.apply()
    await harness.reconcile()
    harness.status["totals"] = totals.write(FULL)
    assert 'bamboo_job_time_seconds_total{job_namespace="ns",state="Waiting"' in exported(harness)
    other = Harness()
    other.kube.objects, other.now = harness.kube.objects, harness.now + 50
    await other.reconcile()
    text = exported(other)
    assert f"bamboo_job_steps_total{{{LABELS}}} 7.0" in text
    assert f'bamboo_stalls_total{{cause="WaitCycle",{LABELS}}} 2.0' in text
    assert f'bamboo_job_pauses_total{{cause="Loss",{LABELS}}} 2.0' in text
    assert f"bamboo_job_busy_seconds_total{{{LABELS}}} 1.25" in text
    assert f"bamboo_job_slices_ahead_total{{{LABELS}}} 1.0" in text
    assert f"bamboo_job_replica_copied_bytes_total{{{LABELS}}} 7.0" in text
    assert 'lane="Copies",to_zone="b",training_job="job"} 3.0' in text
    assert 'state="Waiting",training_job="job"} 50.0' in text
    assert other.status["totals"] == totals.write(FULL)


async def test_counters_show_what_is_written(harness: Harness) -> None:
    """Otherwise they would go back when the operator is restarted before the next write."""
    harness.apply()
    await harness.reconcile()
    await harness.reconcile()
    actor = harness.jobs.find("uid-1")
    assert actor is not None
    counting = actor._leadership._counting
    counting.totals = FULL
    harness.now += 1
    await harness.reconcile()
    assert "totals" not in harness.status
    assert f"bamboo_job_steps_total{{{LABELS}}} 0.0" in exported(harness)
    harness.now += PROGRESS_S
    await harness.reconcile()
    assert harness.status["totals"] == totals.write(FULL)
    assert f"bamboo_job_steps_total{{{LABELS}}} 7.0" in exported(harness)


def exported(harness: Harness) -> str:
    figures = harness.reconciler.shown.figures.values()
    metrics = Metrics(lambda: figures, clock=lambda: harness.now)
    return generate_latest(metrics.registry).decode()
