"""`bamboo quickstart` as a user runs it: a process of its own, to its end, or to Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_devcluster.cluster import Cluster, is_running, stop_cluster

from .jobs import Object, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)


class Run:
    """A quick start whose files lie below ``home``; its output is kept."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        for name in ("tmp", "state"):
            (home / name).mkdir()
        environment = {
            **os.environ,
            "TMPDIR": str(home / "tmp"),
            "XDG_STATE_HOME": str(home / "state"),
            "COLUMNS": "160",
        }
        self._output = (home / "output").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bamboo_cli", "quickstart", *arguments],
            cwd=home, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def output(self) -> str:
        return (self.home / "output").read_text()

    def wait(self, timeout_s: float) -> int:
        """The exit code; AssertionError with the output when it takes too long."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {timeout_s:g} s:\n{self.output}") from None

    def close(self) -> None:
        """Nothing stays, whatever happened."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        self._output.close()
        for directory in self.home.glob("**/cluster"):
            stop_cluster(directory)

    def leftovers(self) -> list[str]:
        """Folders and processes of the run that are still there."""
        pattern = str(self.home / "tmp")
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return [*map(str, (self.home / "tmp").iterdir())] + [
            line for line in listed.stdout.splitlines() if pattern in line
        ]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    # Whom a shell has put into the background ignores SIGINT, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    runs: list[Run] = []

    def start(job: Object, *arguments: str) -> Run:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        runs.append(Run(tmp_path, "--file", str(path), "--nodes", "6", *arguments))
        return runs[-1]

    yield start
    for run in runs:
        run.close()
    signal.signal(signal.SIGINT, before)


def test_to_the_end(start: Any) -> None:
    run = start(tiny_job("brief", training={"steps": 20}), "--no-losses")
    assert run.wait(120) == 0, run.output
    for part in ("brief Complete at step 20 of 20", "validation loss falling", "clean up"):
        assert part in run.output
    assert not run.leftovers()


def test_ctrl_c_cleans_up(start: Any) -> None:
    run = start(tiny_job("long", training={"steps": 5000}), "--no-losses")
    eventually(lambda: "Running" in run.output, timeout_s=90, explain=lambda: run.output)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.output
    assert not run.leftovers()
    assert "Traceback" not in run.output


def test_a_job_that_fails_fails_the_command_and_a_kept_cluster_can_be_used(
    start: Any, tmp_path: Path
) -> None:
    run = start(tiny_job("broken", model={"args": {"width": 33}}), "--no-losses", "--keep")
    assert run.wait(120) == 1, run.output
    assert "width 33 is not divisible by heads 2" in run.output
    directory = tmp_path / "state/bamboo/quickstart/cluster"
    assert is_running(directory)
    told = run.output[run.output.index("To use it:") :].splitlines()
    typed = [line.strip() for line in told if line.startswith("  ")]
    assert f"export KUBECONFIG={Cluster.attach(directory).kubeconfig}" in typed
    done = subprocess.run(
        ["bash", "-ec", "\n".join(typed)], env={**os.environ, "KUBECONFIG": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "UserCodeFailed" in done.stdout
    assert "The cluster is down." in done.stderr
    assert not list((tmp_path / "state/bamboo").iterdir())
