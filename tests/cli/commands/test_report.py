"""`bamboo report` against a fake API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.events import event
from tests.cli.fake_api import EVENTS_PATH, JOB_PATH, PODS_PATH, Server

from bamboo_cli.main import cli
from bamboo_core.api.events import EventReason as Reason


@pytest.fixture
def invoke(server: Server, kubeconfig: Path, training: dict[str, Any]) -> Callable[..., Any]:
    training["status"]["startTime"] = "1970-01-01T00:00:00Z"
    server.answers[JOB_PATH] = (200, training)
    server.answers[PODS_PATH] = (200, {"items": []})
    events = [
        event(2.0, Reason.PLANNED, epoch=1, agents="gpt-p0-s0-i0"),
        event(11.0, Reason.RESUMED, epoch=2, step=4, pause_s=0.9),
    ]
    known = [one | {"lastTimestamp": one["eventTime"]} for one in events]
    server.answers[EVENTS_PATH] = (200, {"items": known})

    def call(*more: str) -> Any:
        return CliRunner().invoke(cli, ["report", "gpt", *more, "--kubeconfig", str(kubeconfig)])

    return call


def test_the_command_prints(invoke: Callable[..., Any]) -> None:
    result = invoke("--price", "others=2")
    assert result.exit_code == 0, result.exception
    assert "team/gpt" in result.output
    assert "agent-hours" in result.output


def test_the_command_writes_a_page(invoke: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    result = invoke("--html", str(path))
    assert result.output == f"The report is {path}\n"
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_the_command_refuses_bad_input(invoke: Callable[..., Any], tmp_path: Path) -> None:
    missing = invoke("--html", str(tmp_path / "no/run.html"))
    assert "--html" in str(missing.exception)
    assert "does not exist; create it" in str(missing.exception)
    needs = "--html needs the name of a file, such as report.html;"
    for name, said in ((str(tmp_path), str(tmp_path)), ("", ".")):
        assert str(invoke("--html", name).exception) == f"{needs} {said} is a folder."
    (tmp_path / "run.html").symlink_to("run.html")
    looped = str(invoke("--html", str(tmp_path / "run.html")).exception)
    assert looped.endswith(
        "run.html cannot be written (Too many levels of symbolic links); make"
        " room or mend that, or name another file."
    )
    assert "'x' is not POOL=USD" in str(invoke("--price", "x").exception)
