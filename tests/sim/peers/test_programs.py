"""The peers' programs, as far as they need no torchft: one worker trains, and errors are told."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.peers import environment, workload
from benchmarks.peers.commits import CommitLog, CommitReader
from benchmarks.peers.peer_fleets import TorchftFleet
from benchmarks.peers.processes import ENVIRONMENT, Program
from benchmarks.peers.variants import BY_NAME

from bamboo_sim.programs.results_file import ROOT


def test_logs_are_read_while_they_grow(tmp_path: Path) -> None:
    reader = CommitReader(tmp_path)
    log = CommitLog(tmp_path, "rank-1", attempt=2)
    log.add(0, 32)
    with next(tmp_path.iterdir()).open("a") as file:
        file.write('{"half')
    assert [(c.step, c.worker, c.attempt, c.pid) for c in reader.read()] == [
        (0, "rank-1", 2, os.getpid())
    ]
    CommitLog(tmp_path, "rank-2").add(1, 28, done=False)
    assert [(c.step, c.samples, c.done) for c in reader.read()] == [(0, 32, True), (1, 28, False)]


def test_forked_workers_do_not_import_what_an_optimizer_needs() -> None:
    """Eight workers would import the same 900 modules at every restart."""
    code = "import sys, peers.torchrun_host; print('torch._dynamo' in sys.modules)"
    environ = {**os.environ, **ENVIRONMENT}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_a_replica_that_heals_does_not_know_the_samples_of_a_step(tmp_path: Path) -> None:
    fleet = TorchftFleet(tmp_path, BY_NAME["torchft_tuned"], Path("python"))
    for worker, samples, done in [("replica-1", 4, True), ("replica-0", 28, True)]:
        CommitLog(tmp_path / "commits", worker).add(7, samples, done=done)
    CommitLog(tmp_path / "commits", "replica-2").add(8, 24, done=False)
    fleet.commits()
    assert [(c.step, c.samples) for c in fleet.counted()] == [(7, 28), (7, 28), (8, 24)]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of torchrun alone in its group."""
    (tmp_path / "commits").mkdir()
    rendezvous = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    started_by = {"PEERS_LAUNCHER": str(os.getpid()), "TORCHELASTIC_RESTART_COUNT": "3"}
    process = subprocess.Popen(
        [sys.executable, "-m", "peers.torchrun_host", "worker", str(tmp_path)],
        env={**os.environ, **ENVIRONMENT, **rendezvous, **started_by},
    )
    yield process
    process.kill()
    process.wait()


def test_a_worker_trains_and_saves(worker: subprocess.Popen[bytes], tmp_path: Path) -> None:
    reader, checkpoint = CommitReader(tmp_path / "commits"), tmp_path / "checkpoint.pt"
    end = time.monotonic() + 100
    while not checkpoint.exists() and time.monotonic() < end:
        assert worker.poll() is None
        time.sleep(0.05)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM
    steps = [c.step for c in reader.read()]
    assert steps[: workload.CHECKPOINT_EVERY] == [*range(workload.CHECKPOINT_EVERY)]
    assert {(c.samples, c.attempt) for c in reader.commits} == {(workload.SHARE, 3)}
    content = torch.load(checkpoint)
    assert content["step"] == workload.CHECKPOINT_EVERY
    training = workload.Training(0)
    before = training.module[0].position.detach().clone()
    training.load(content["state"])
    assert not torch.equal(training.module[0].position, before)


def test_a_program_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    fails = "import sys; print('ready', flush=True); sys.exit('no lighthouse')"
    program = Program([sys.executable, "-c", fails], tmp_path / "log", talks=True)
    assert program.line() == "ready"
    with pytest.raises(RuntimeError, match="log has ended:\nno lighthouse"):
        program.line()
    program.end()
    assert program.has_ended()


def test_an_environment_that_cannot_be_made_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"no-such-package-of-bamboo==1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", wanted)
    monkeypatch.setattr(environment, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(SystemExit, match="--only torchrun go without it"):
        environment.interpreter()
    assert "installing torchft failed" in capfd.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (["--only", "zzz"], "--only zzz matches nothing; there are: bamboo, "),
        (["--kills", "0"], "'0' is not an integer of at least 1"),
        (["--minutes", "-1"], "'-1' is not a number of at least 0"),
    ],
)
def test_bad_arguments_start_nothing(
    option: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = runpy.run_path(str(ROOT / "benchmarks/against_peers.py"))
    monkeypatch.setattr("sys.argv", ["against_peers.py", *option])
    with pytest.raises(SystemExit) as ended:
        program["main"]()
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
