"""`scripts/quickstart` and `bamboo quickstart` as a user runs them: to the end, or to Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_devcluster.cluster import Cluster, is_running, stop_cluster

from .conftest import CHECKOUT
from .jobs import Object, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)


class Run:
    """A quick start, begun by a command line; its files lie below ``home``, its output is kept."""

    def __init__(self, home: Path, *command: str) -> None:
        self.home = home
        for name in ("tmp", "state"):
            (home / name).mkdir()
        environment = {
            **os.environ,
            "TMPDIR": str(home / "tmp"),
            "XDG_STATE_HOME": str(home / "state"),
            "COLUMNS": "240",  # every fault in one line of the report
        }
        self._output = (home / "output").open("wb")
        self.process = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL,
            start_new_session=True, stdout=self._output, stderr=subprocess.STDOUT,
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
def begin(tmp_path: Path) -> Iterator[Any]:
    # Whom a shell has put into the background ignores SIGINT, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    runs: list[Run] = []

    def begin(*command: str) -> Run:
        runs.append(Run(tmp_path, *command))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    """A small job instead of the example, undisturbed."""

    def start(job: Object, *arguments: str) -> Run:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-P", "-m", "bamboo_cli", "quickstart"]
        run: Run = begin(*command, "--file", str(path), "--nodes", "6", "--no-losses", *arguments)
        return run

    return start


BLOWS = {
    "a node is reclaimed, with notice": 1,
    "a node vanishes, without a word": 1,
    "two neighbours vanish at once": 2,
}
"""Each with the number of agents that it hits."""
_ROW = r" \d+ +{} +quickstart-p\d-s\d-i\d +\d x 4 from step \d+, \d agents.* [\d.]+ s +[\d.]+ s"
"""Of the report: step, fault, first agent, the plan that training went on with, two times."""


@pytest.mark.timeout(600)
def test_to_the_end(begin: Any) -> None:
    """The README's first command, with the example that is shipped: nodes are lost in every way,
    each loss is in the report with how it was absorbed, and not a bit is another."""
    run = begin(str(CHECKOUT / "scripts/quickstart"))
    assert run.wait(580) == 0, run.output
    assert re.search(r"quickstart Complete at step (\d+) of \1 ", run.output), run.output
    assert "validation loss falling" in run.output
    for fault, agents in BLOWS.items():
        told = re.search(_ROW.format(fault), run.output)
        assert told, f"{fault}:\n{run.output}"
        rest = run.output[told.end() :].splitlines()[:agents]
        assert len(re.findall(r"quickstart-p\d-s\d-i\d", told[0] + "".join(rest))) == agents
    lost = re.search(r"(\d+) agents lost \((\d+) of them announced\), nothing restored", run.output)
    assert lost, run.output
    assert int(lost[1]) >= sum(BLOWS.values())
    assert int(lost[2]) >= 1
    assert "of all 8 layers equal the undisturbed run's, bit for bit" in run.output
    assert not run.leftovers()


def test_ctrl_c_cleans_up(start: Any) -> None:
    run = start(tiny_job("long", training={"steps": 5000}))
    eventually(lambda: "Running" in run.output, timeout_s=90, explain=lambda: run.output)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.output
    assert not run.leftovers()
    assert "Traceback" not in run.output


def test_a_job_that_fails_fails_the_command_and_a_kept_cluster_can_be_used(
    start: Any, tmp_path: Path
) -> None:
    run = start(tiny_job("broken", model={"args": {"width": 33}}), "--keep")
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
