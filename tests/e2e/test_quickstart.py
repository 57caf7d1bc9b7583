"""`scripts/quickstart` and `bamboo quickstart` as a user runs them."""

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

from bamboo_cli.run.faults import Fault
from bamboo_devcluster.cluster import Cluster, is_running, stop_cluster

from .conftest import CHECKOUT
from .jobs import Object, eventually, tiny_job

pytestmark = pytest.mark.timeout(300)
IN_TURN = pytest.mark.rotating(2)


class Run:
    """A quick start; its files and its output are below ``home``."""

    def __init__(self, home: Path, *command: str) -> None:
        self.home = home
        for name in ("tmp", "state"):
            (home / name).mkdir(parents=True)
        environment = {
            **os.environ,
            "TMPDIR": str(home / "tmp"),
            "XDG_STATE_HOME": str(home / "state"),
            "COLUMNS": "240",  # so that a row of the report is one line
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
        """The exit code. AssertionError with the output if it takes too long."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {timeout_s:g} s:\n{self.output}") from None

    def close(self) -> None:
        """Stop everything that still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        self._output.close()
        for directory in self.home.glob("**/cluster"):
            stop_cluster(directory)

    def leftovers(self) -> list[str]:
        """Folders and processes that the run left behind."""
        pattern = str(self.home / "tmp")
        listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return [*map(str, (self.home / "tmp").iterdir())] + [
            line for line in listed.stdout.splitlines() if pattern in line
        ]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Any]:
    # A shell's background process ignores SIGINT, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    runs: list[Run] = []

    def begin(*command: str) -> Run:
        runs.append(Run(tmp_path / str(len(runs)), *command))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    """Start a quick start with a small job and no faults."""

    def start(job: Object, *arguments: str) -> Run:
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job))
        command = [sys.executable, "-P", "-m", "bamboo_cli", "quickstart"]
        run: Run = begin(*command, "--file", str(path), "--nodes", "6", "--no-losses", *arguments)
        return run

    return start


FAULTS = {Fault.NOTICED: 1, Fault.SILENT: 1, Fault.NEIGHBOURS: 2}
"""Fault -> number of agents lost."""
_ROW = r" \d+ +{} +quickstart-p\d-s\d-i\d +\d x 4 from step \d+, \d agents.* [\d.]+ s +[\d.]+ s"
"""A row of the report: step, fault, first agent, plan, two times."""


@pytest.mark.timeout(900)
def test_the_whole_quick_start(begin: Any) -> None:
    """The README's first command. The report has each fault with its recovery, and the final state
    equals the undisturbed run's and that of one agent that trains alone."""
    run = begin(str(CHECKOUT / "scripts/quickstart"))
    assert run.wait(580) == 0, run.output
    assert re.search(r"quickstart Complete at step (\d+) of \1 ", run.output), run.output
    assert "validation loss falling" in run.output
    mode = r"redundancy (None|Replica|Eager), taken by Auto: with [\d.]+ losses an hour among"
    assert re.search(mode, " ".join(run.output.split())), run.output
    for fault, agents in FAULTS.items():
        row = re.search(_ROW.format(fault), run.output)
        assert row, f"{fault}:\n{run.output}"
        rest = run.output[row.end() :].splitlines()[:agents]
        assert len(re.findall(r"quickstart-p\d-s\d-i\d", row[0] + "".join(rest))) == agents
    lost = re.search(r"(\d+) agents lost \((\d+) with notice\), no restore", run.output)
    assert lost, run.output
    assert int(lost[1]) >= sum(FAULTS.values())
    assert int(lost[2]) >= 1
    assert "of all 8 layers equal the undisturbed run's, bit for bit" in run.output
    *_, where, final = run.output.splitlines()
    report = Path(where.removeprefix("The report is "))
    page = report.read_text()
    titles = ["Agents by zone", "Committed steps", "Throughput", "Training loss", "Validation loss"]
    assert page.count("<svg") == len(titles), run.output
    assert all(f"<h2>{title}" in page for title in titles)
    assert "zone-a" in page
    assert not run.leftovers()
    assert re.fullmatch(r"The final state is [0-9a-f]{16}: the same on every grid, .*", final)
    alone = begin(str(CHECKOUT / "scripts/quickstart"), "--grid", "1x1", "--no-losses")
    assert alone.wait(300) == 0, alone.output
    assert alone.output.splitlines()[-1] == final


@IN_TURN
def test_ctrl_c_cleans_up(start: Any) -> None:
    run = start(tiny_job("long", training={"steps": 5000}))
    eventually(lambda: "Running" in run.output, timeout_s=90, explain=lambda: run.output)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(60) == 130, run.output
    assert not run.leftovers()
    assert "Traceback" not in run.output


@IN_TURN
def test_a_failed_job_fails_the_command_and_a_kept_cluster_is_usable(start: Any) -> None:
    run = start(tiny_job("broken", model={"args": {"width": 33}}), "--keep")
    assert run.wait(120) == 1, run.output
    assert "width: 33 is not divisible by heads 2" in run.output
    directory = run.home / "state/bamboo/quickstart/cluster"
    assert is_running(directory)
    steps = run.output[run.output.index("To use it:") :].splitlines()
    typed = [line.strip() for line in steps if line.startswith("  ")]
    assert f"export KUBECONFIG={Cluster.attach(directory).kubeconfig}" in typed
    done = subprocess.run(
        ["bash", "-ec", "\n".join(typed)], env={**os.environ, "KUBECONFIG": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "UserCodeFailed" in done.stdout
    assert "The cluster is down." in done.stderr
    assert [x.name for x in (run.home / "state/bamboo").iterdir()] == ["quickstart-report.html"]
