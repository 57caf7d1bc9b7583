"""The worker's process depends on the supervisor's, and leaves it the processor."""

import os
import subprocess
import sys
from pathlib import Path

MODULE = "import os, signal\nprint(os.nice(0), signal.getsignal(signal.SIGTERM).name)\n"


def launch(folder: Path, parent: int) -> subprocess.CompletedProcess[str]:
    (folder / "said.py").write_text(MODULE)
    return subprocess.run(
        [sys.executable, "-m", "bamboo_agent.supervisor.launch", str(parent), "said"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_worker_gives_way_to_its_supervisor(tmp_path: Path) -> None:
    found = launch(tmp_path, os.getpid())
    assert found.stdout.split() == [str(min(19, os.nice(0) + 5)), "SIG_IGN"], found.stderr


def test_a_worker_whose_supervisor_has_ended_does_not_start(tmp_path: Path) -> None:
    found = launch(tmp_path, 1)
    assert found.returncode != 0
    assert "has already ended" in found.stderr
