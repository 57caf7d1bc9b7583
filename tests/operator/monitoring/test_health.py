"""Health endpoints and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from tests.core.controller.builders import JOB

from bamboo_core.api.progress import (
    Ahead,
    BestCheckpoint,
    Hosted,
    Network,
    SlowPair,
    TrainingProgress,
    Way,
)
from bamboo_core.api.reasons import FailureCause, JobPhase
from bamboo_core.api.totals import Pauses, Times, TimeState, Totals
from bamboo_core.controller.failures import Avoided, Failures
from bamboo_core.controller.lifecycle import JobStatus, ZoneCount
from bamboo_core.controller.view import Condition, Losses
from bamboo_core.model.ids import AgentId
from bamboo_operator.money.prices import Rate
from bamboo_operator.monitoring.bounded_http import MOST, MOST_OF_ADDRESS
from bamboo_operator.monitoring.health import MAX_LAG_S, MAX_SILENCE_S, HealthServer, Pulse
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.metrics_server import MetricsServer
from bamboo_operator.monitoring.registry import Metrics


def ask(server: HealthServer, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, json.loads(body) if answer.status != 404 else {}


def test_probes() -> None:
    now = 0.0
    pulse = Pulse(clock=lambda: now)
    server = HealthServer(pulse, host="127.0.0.1", port=0)
    server.start()
    try:
        assert ask(server, "/livez")[0] == 200
        assert ask(server, "/readyz")[0] == 503
        pulse.is_ready = True
        assert ask(server, "/readyz")[0] == 200
        now = MAX_LAG_S + 1
        code, body = ask(server, "/livez")
        assert (code, body["problems"]) == (503, ["the event loop has been blocked for 11 s"])
        assert ask(server, "/secrets")[0] == 404
    finally:
        server.close()


def test_a_silent_connection_to_the_metrics_port_ends() -> None:
    """Else whoever reaches the port could take all threads and files of the operator."""
    server = MetricsServer(Metrics(list).registry, host="127.0.0.1", port=0, idle_s=0.2)
    try:
        with socket.create_connection(("127.0.0.1", server.port), 30) as silent:
            silent.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert silent.recv(1) == b""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        server.close()


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30, source_address=(address, 0))


def test_idle_connections_keep_no_probe_out_and_are_bounded() -> None:
    """The oldest ones end, first those of the busiest address."""
    server = HealthServer(Pulse(), host="127.0.0.1", port=0)
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        other = stack.enter_context(connected(server.port, "127.0.0.2"))
        idle = [stack.enter_context(connected(server.port)) for _ in range(MOST_OF_ADDRESS + 9)]
        assert ask(server, "/livez")[0] == 200
        assert [sock.recv(1) for sock in idle[:9]] == [b""] * 9
        assert server._server.connections <= MOST_OF_ADDRESS + 1
        other.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert other.recv(12) == b"HTTP/1.0 200"


def test_all_addresses_together_are_bounded() -> None:
    server = HealthServer(Pulse(), host="127.0.0.1", port=0)
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        addresses = [f"127.0.1.{1 + n // MOST_OF_ADDRESS}" for n in range(MOST)]
        idle = [stack.enter_context(connected(server.port, x)) for x in addresses]
        assert ask(server, "/livez")[0] == 200
        assert idle[0].recv(1) == b""
        assert server._server.connections <= MOST


def test_a_connection_that_drips_ends() -> None:
    """Each byte comes before the time for silence is over."""
    server = MetricsServer(Metrics(list).registry, host="127.0.0.1", port=0, request_s=0.5)
    has_ended = False
    try:
        with connected(server.port) as dripping:
            dripping.settimeout(0.05)
            for _ in range(400):
                try:
                    dripping.sendall(b"G")
                    has_ended = dripping.recv(1) == b""
                except TimeoutError:
                    continue
                except ConnectionError:
                    has_ended = True
                if has_ended:
                    break
    finally:
        server.close()
    assert has_ended


async def test_the_loops_lag_is_measured() -> None:
    lags: list[float] = []
    pulse = Pulse()
    task = asyncio.create_task(pulse.beat(lags.append))
    async with asyncio.timeout(10):
        while not lags:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    task.cancel()
    assert 0 <= lags[0] < 5


def test_a_leader_that_does_not_work_is_dead() -> None:
    now = 0.0
    pulse = Pulse(clock=lambda: now)
    pulse._beat_at = MAX_SILENCE_S
    now = MAX_SILENCE_S + 1
    assert pulse.problems() == []
    pulse.is_leader = True
    assert pulse.problems() == [f"no resync for {MAX_SILENCE_S + 1:.0f} s"]
    pulse.worked()
    assert pulse.problems() == []


def inside(label: str, value: str) -> str:
    """Labels are written in alphabetical order."""
    return f'job_namespace="ns",{label}="{value}",training_job="job"'


BUSY = JobStatus(
    phase=JobPhase.RUNNING,
    conditions=(
        Condition("Running", True, "TrainingStep"),
        Condition("Degraded", None, "NoPlan"),
    ),
    pipelines=2,
    zones=(ZoneCount("a", 2, 2, 1, 2),),
    progress=TrainingProgress(
        9, loss=1.5, skipped=3, metrics={"top": 0.5}, validation_metrics={"top": 0.25}
    ),
    totals=Totals(
        steps=12,
        repeated_steps=2,
        redone_tasks=5,
        busy_s=1.5,
        sent_bytes=100,
        corruptions=1,
        stalls={"WaitCycle": 2},
        pauses={"Loss": Pauses(3, {"Stop": 0.25})},
        sent={Way("Sums", "a", "b"): 100},
        ahead=Ahead(7, 2, 4096, 8192, 0.5, 64, 3),
        hosted=Hosted(1024, 256, 2048, 0.25),
    ),
    times=Times(TimeState.TRAINING, 90.0, {"Waiting": 4.0}),
    network=Network(1e9, 2e9, SlowPair(AgentId("a"), AgentId("b"), 5e8)),
    losses=Losses(3, 1),
    failures=Failures(
        counts=((FailureCause.TASK_FAILED, 5),),
        older=2,
        avoided=(Avoided("node-a", "m", 9.0),),
    ),
)
"""A job with a value for each of its series."""


def test_series_of_a_job_end_with_it() -> None:
    figures = [JobFigures(JOB, BUSY, 64, checkpoint_at=70.0, rate=Rate(2.5, 8.0, 1))]
    metrics = Metrics(lambda: figures, clock=lambda: 100.0)
    text = generate_latest(metrics.registry).decode()
    job = 'job_namespace="ns",training_job="job"'
    for line in (
        'bamboo_jobs{phase="Running"} 1.0',
        f"bamboo_job_steps_total{{{job}}} 12.0",
        f"bamboo_job_samples_total{{{job}}} 768.0",
        f"bamboo_job_training_loss{{{job}}} 1.5",
        'bamboo_job_metric{job_namespace="ns",name="top",set="training",training_job="job"} 0.5',
        'bamboo_job_metric{job_namespace="ns",name="top",set="validation",training_job="job"} 0.25',
        f"bamboo_job_pipelines{{{inside('state', 'active')}}} 2.0",
        f'bamboo_job_workers{{{inside("state", "connected")},zone="a"}} 1.0',
        f'bamboo_job_condition{{{job},type="Running"}} 1.0',
        f'bamboo_job_condition{{{job},type="Degraded"}} 0.0',
        'bamboo_job_condition_reason{job_namespace="ns",reason="TrainingStep",status="True",'
        'training_job="job",type="Running"} 1.0',
        'bamboo_job_condition_reason{job_namespace="ns",reason="NoPlan",status="Unknown",'
        'training_job="job",type="Degraded"} 1.0',
        "bamboo_operator_start_timestamp_seconds 100.0",
        f"bamboo_preemptions_total{{{inside('noticed', 'false')}}} 2.0",
        f'bamboo_job_failures_total{{cause="TaskFailed",{job}}} 5.0',
        f'bamboo_job_failures_total{{cause="OOMKilled",{job}}} 0.0',
        f"bamboo_job_unforgiven_failures{{{job}}} 2.0",
        f"bamboo_job_avoided_nodes{{{job}}} 1.0",
        f"bamboo_job_skipped_steps_total{{{job}}} 3.0",
        f"bamboo_job_slices_ahead_total{{{job}}} 7.0",
        f"bamboo_job_ahead_dropped_total{{{job}}} 2.0",
        f"bamboo_job_ahead_failed_total{{{job}}} 3.0",
        f"bamboo_job_host_memory_bytes{{{job}}} 4096.0",
        f"bamboo_job_host_copied_bytes_total{{{job}}} 8192.0",
        f"bamboo_job_host_copy_seconds_total{{{job}}} 0.5",
        f"bamboo_job_ahead_left_bytes_total{{{job}}} 64.0",
        f"bamboo_job_replica_host_bytes{{{job}}} 1024.0",
        f"bamboo_job_replica_left_bytes{{{job}}} 256.0",
        f"bamboo_job_replica_copied_bytes_total{{{job}}} 2048.0",
        f"bamboo_job_replica_copy_seconds_total{{{job}}} 0.25",
        f"bamboo_job_repeated_steps_total{{{job}}} 2.0",
        f"bamboo_job_tasks_redone_total{{{job}}} 5.0",
        f"bamboo_job_busy_seconds_total{{{job}}} 1.5",
        'bamboo_job_sent_bytes_total{from_zone="a",job_namespace="ns",lane="Sums",to_zone="b",'
        'training_job="job"} 100.0',
        f"bamboo_job_corruptions_total{{{job}}} 1.0",
        f'bamboo_job_pauses_total{{cause="Loss",{job}}} 3.0',
        f'bamboo_job_pauses_total{{cause="Stall",{job}}} 0.0',
        f'bamboo_job_pause_seconds_total{{cause="Loss",{inside("phase", "Stop")}}} 0.25',
        f"bamboo_job_time_seconds_total{{{inside('state', 'Training')}}} 10.0",
        f"bamboo_job_time_seconds_total{{{inside('state', 'Waiting')}}} 4.0",
        f"bamboo_checkpoint_last_timestamp_seconds{{{job}}} 70.0",
        f"bamboo_job_cost_dollars_per_hour{{{job}}} 2.5",
        f"bamboo_job_on_demand_dollars_per_hour{{{job}}} 8.0",
        f"bamboo_job_unpriced_nodes{{{job}}} 1.0",
        f'bamboo_stalls_total{{cause="WaitCycle",{job}}} 2.0',
        f'bamboo_stalls_total{{cause="InstructionOverdue",{job}}} 0.0',
    ):
        assert line in text
    figures[0] = JobFigures(JOB, replace(BUSY, progress=TrainingProgress(9)), 64)
    text = generate_latest(metrics.registry).decode()
    for name in (
        "job_training_loss",
        "checkpoint_last_timestamp_seconds",
        "job_cost_dollars_per_hour",
    ):
        assert f"bamboo_{name}{{" not in text
    figures.clear()
    assert "training_job" not in generate_latest(metrics.registry).decode()


def test_the_network_is_shown_as_far_as_it_is_known() -> None:
    figures = [JobFigures(JOB, BUSY, 64)]
    metrics = Metrics(lambda: figures)
    job = 'job_namespace="ns",training_job="job"'
    known = {"network": "2e+09", "planned_network": "1e+09", "slowest_pair": "5e+08"}
    text = generate_latest(metrics.registry).decode()
    for name, value in known.items():
        assert f"bamboo_job_{name}_bytes_per_second{{{job}}} {value}" in text
    figures[0] = JobFigures(JOB, replace(BUSY, network=Network()), 64)
    text = generate_latest(metrics.registry).decode()
    for name in known:
        assert f"bamboo_job_{name}_bytes_per_second{{" not in text


def test_the_time_in_a_state_does_not_fall_when_the_state_changes() -> None:
    """A scrape counts until itself; then the state ends at the earlier time of the reconcile."""
    now, status = 100.25, JobStatus(JobPhase.RECOVERING, ())
    recovering = Times(TimeState.RECOVERING, 70.0)
    training = Times(TimeState.TRAINING, 100.0, {"Recovering": 30.0})
    figures = [JobFigures(JOB, replace(status, times=recovering), 64)]
    metrics = Metrics(lambda: figures, clock=lambda: now)

    def recovered() -> float | None:
        labels = {"job_namespace": "ns", "training_job": "job", "state": "Recovering"}
        return metrics.registry.get_sample_value("bamboo_job_time_seconds_total", labels)

    assert recovered() == 30.25
    figures[0] = replace(figures[0], status=replace(status, times=training))
    assert recovered() == 30.25
    again = training.entered(TimeState.RECOVERING, 300.0)
    figures[0], now = replace(figures[0], status=replace(status, times=again)), 400.0
    assert recovered() == 130.0
    another = replace(JOB, uid="another")
    figures[0], now = JobFigures(another, replace(status, times=recovering), 64), 71.0
    assert recovered() == 1.0


def test_requests_are_counted() -> None:
    metrics = Metrics(list)
    metrics.observe_request("GET", "pods", 403, 0.1)
    line = 'bamboo_operator_kube_api_requests_total{code="403",resource="pods",verb="GET"} 1.0'
    assert line in generate_latest(metrics.registry).decode()


def values(figures: JobFigures, *names: str) -> list[float | None]:
    """The values of gauges without further labels; None: there is no such series."""
    text = generate_latest(Metrics(lambda: [figures]).registry).decode().splitlines()
    start = '{job_namespace="ns",training_job="job"} '
    found = dict(line.split(start) for line in text if start in line)
    return [float(found[name]) if name in found else None for name in names]


CHECKPOINTS = ("bamboo_checkpoint_interval_steps", "bamboo_checkpoint_behind_steps")


@pytest.mark.parametrize(("written", "behind"), [(-1, 10.0), (0, 10.0), (8, 2.0), (10, 0.0)])
def test_how_far_checkpoints_are_behind(written: int, behind: float) -> None:
    """A checkpoint of step 8 holds steps 0 to 7, and step 9 is the newest one that is committed."""
    status = replace(BUSY, checkpoint_step=written)
    job = JobFigures(JOB, status, 64, has_checkpoints=True, checkpoint_every=5)
    assert values(job, *CHECKPOINTS) == [5.0, behind]
    at_the_end = replace(job, checkpoint_every=0)
    assert values(at_the_end, *CHECKPOINTS) == [None, behind]
    assert values(JobFigures(JOB, status, 64), *CHECKPOINTS) == [None, None]


def test_the_best_checkpoint_has_gauges() -> None:
    names = ("bamboo_checkpoint_best_step", "bamboo_checkpoint_best_value")
    best = BestCheckpoint(4, 0, "loss", 0.0, "/c/4")
    assert values(JobFigures(JOB, replace(BUSY, best=best), 64), *names) == [4.0, 0.0]
    assert values(JobFigures(JOB, BUSY, 64), *names) == [None, None]


def test_an_unknown_reason_makes_no_series_of_its_own() -> None:
    """Else a writer of the status could make as many series as there are words."""
    job = JobFigures(JOB, replace(BUSY, conditions=(Condition("Stalled", True, "Abc"),)), 64)
    text = generate_latest(Metrics(lambda: [job]).registry).decode()
    assert "Abc" not in text
    assert 'reason="Other",status="True",training_job="job",type="Stalled"' in text
