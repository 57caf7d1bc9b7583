"""The attack on the ports for health and metrics of the operator and of an agent.

Probes and a scrape must get through in between, also while 1,000 connections to each port are idle,
and after many have asked for the metrics of 1,000 jobs and have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import resource
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from bamboo_agent.supervisor import health
from bamboo_core.api.reasons import JobPhase
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView
from bamboo_operator.monitoring.health import HealthServer, Pulse
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.monitoring.metrics_server import MetricsServer
from bamboo_operator.monitoring.registry import Metrics
from bamboo_sim.attack import inputs
from bamboo_sim.attack.strangers import PATIENCE_S, Attack, Inside, Victim

PROBES = {"agent": ("/healthz", "/metrics"), "health": ("/livez",), "metrics": ("/metrics",)}

IDLE = 1000
"""Connections to each port on which nothing is ever said."""
JOBS = 1000
"""Of which the operator has metrics."""
LEAVING = 300
"""Who ask for metrics before each probe, from four addresses, and do not wait for them."""
_FILES = 512
"""That the victim may have open."""


class _Written:
    """In place of the standard error stream: what a server writes there about a stranger."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        told["written"] = 0

    def write(self, text: str) -> int:
        """Count it."""
        self._told["written"] += len(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


async def start(inside: Inside) -> dict[str, int]:
    """The three servers, as operator and supervisor start them."""
    sys.stderr = _Written(inside.told)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    figures = [job(number) for number in range(JOBS)]
    pulse = Pulse()
    inside.kept.append(asyncio.create_task(pulse.beat(lambda lag_s: None)))
    lively = HealthServer(pulse, host="127.0.0.1", port=0)
    lively.start()
    registry = Metrics(lambda: figures).registry
    scraped = MetricsServer(registry, host="127.0.0.1", port=0)
    served = health.HealthServer(health.Metrics(job="ns/job", agent="a"), is_ready=lambda: True)
    return {
        "agent": await served.start("127.0.0.1", 0),
        "health": lively.port,
        "metrics": scraped.port,
    }


def job(number: int) -> JobFigures:
    """A job that trains."""
    view = JobView("ns", f"job-{number}", f"uid-{number}", generation=1, created_at=0.0)
    return JobFigures(view, JobStatus(JobPhase.RUNNING, ()), global_batch=64)


def run(cases: int, seed: int, *, silent: int = IDLE) -> dict[str, Any]:
    """The figures of one attack. silent: idle connections to each port."""
    victim = Victim(start)
    written = 0

    def look(state: dict[str, Any]) -> None:
        nonlocal written
        written = state["written"]
        for port in victim.ports.values():
            for number in range(LEAVING):
                ask_and_leave(port, f"127.0.2.{1 + number % 4}")
        for name, paths in PROBES.items():
            for path in paths:
                probe(victim.ports[name], path)

    attack = Attack(victim, seed, say=inputs.request, look=look)
    with idle(victim.ports.values(), silent):
        tally = attack.run(cases)
    return tally.figures() | {"written_bytes": written}


@contextlib.contextmanager
def idle(ports: Iterable[int], count: int) -> Iterator[None]:
    """Hold so many idle connections to each of these ports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for port in ports:
            for _ in range(count):
                address = "127.0.0.1", port
                stack.enter_context(socket.create_connection(address, PATIENCE_S))
        yield


def ask_and_leave(port: int, address: str) -> None:
    """Ask for metrics and close. OSError: it takes no connections."""
    stranger = socket.create_connection(
        ("127.0.0.1", port), PATIENCE_S, source_address=(address, 0)
    )
    with stranger, contextlib.suppress(OSError):  # it has made room already
        stranger.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")


def probe(port: int, path: str) -> None:
    """As the kubelet and Prometheus do. ValueError, OSError: it is not answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200 or not answer.read():
            raise ValueError(f"{path} is answered with {answer.status}")
    except http.client.HTTPException as error:
        raise ValueError(repr(error)) from error
    finally:
        connection.close()
