"""What is left until a job's end, wherever a user looks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from bamboo_cli.job import left
from bamboo_cli.job.diagnosis import explain
from bamboo_cli.job.listing import job_row
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import read_job
from bamboo_cli.run.from_cluster import from_cluster
from bamboo_cli.views.page import page
from bamboo_cli.views.terminal.diagnosis import explain_view
from bamboo_cli.views.terminal.job_screen import job_screen
from bamboo_cli.views.terminal.jobs_table import jobs_view
from bamboo_cli.views.terminal.run_report import text_report

NOW = 100.0


def plain(shown: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=400).print(shown)
    return out.getvalue()


def status(manifest: dict[str, Any]) -> str:
    return plain(job_screen(Snapshot(read_job(manifest, NOW))))


def top(manifest: dict[str, Any]) -> str:
    return plain(jobs_view([job_row(manifest, [], NOW)], NOW, has_namespaces=False))


def explained(manifest: dict[str, Any]) -> str:
    return plain(explain_view(explain(manifest, [], [], NOW)))


def report(manifest: dict[str, Any]) -> str:
    return plain(text_report(from_cluster(manifest, [], [], [], [], NOW), {}))


def html(manifest: dict[str, Any]) -> str:
    return page(from_cluster(manifest, [], [], [], [], NOW), {})


VIEWS = pytest.mark.parametrize("view", [status, top, explained, report, html])
View = Callable[[dict[str, Any]], str]


@VIEWS
def test_every_view_tells_time_and_cost(training: dict[str, Any], view: View) -> None:
    training["status"]["estimate"] = {"timeLeft": "x", "secondsLeft": 12_600, "dollarsLeft": 4.5}
    said = view(training)
    assert "3.5 h" in said
    assert "4.50" in said
    assert "4.50+?" not in said
    training["status"]["cost"] = {"unpricedNodes": 2, "dollarsPerHour": 3.0}
    assert "4.50+?" in view(training)


@VIEWS
def test_what_is_not_known_yet_is_said(training: dict[str, Any], view: View) -> None:
    training["status"]["estimate"] = {"timeLeft": "not known yet"}
    assert "not known yet" in view(training)


@VIEWS
def test_a_job_that_has_ended_has_nothing_left(training: dict[str, Any], view: View) -> None:
    """Even if a status of an earlier operator says so."""
    training["status"]["estimate"] = {"timeLeft": "x", "secondsLeft": 12_600, "dollarsLeft": 4.5}
    training["status"]["conditions"] = [{"type": "Complete", "status": "True", "reason": "X"}]
    assert "3.5 h" not in view(training)
    assert "4.50" not in view(training)


@VIEWS
def test_without_an_estimate_nothing_is_said(training: dict[str, Any], view: View) -> None:
    said = view(training)
    assert "not known yet" not in said
    assert "USD to" not in said


def test_a_job_of_which_nothing_is_heard_has_no_estimate(training: dict[str, Any]) -> None:
    training["status"]["estimate"] = {"timeLeft": "x", "secondsLeft": 60}
    training["status"]["progress"]["reportTime"] = "1970-01-01T00:00:00Z"
    assert left.time_text(read_job(training, 50.0)) == "60 s"
    assert left.time_text(read_job(training, 9000.0)) == ""
    assert left.sentence(read_job(training, 9000.0)) == ""
