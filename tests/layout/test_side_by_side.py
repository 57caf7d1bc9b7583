"""Tasks of scripts/test that share two cores: side by side; what failed is told last."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def run(root: Path, tmp_path: Path):
    """Run tasks that are defined in bash; its folder has a pipe."""
    os.mkfifo(tmp_path / "pipe")

    def run(tasks: str, *names: str) -> subprocess.CompletedProcess[str]:
        program = f"source '{root}/scripts/lib.sh'; {tasks}; side_by_side 2 {' '.join(names)}"
        return subprocess.run(
            ["/bin/bash", "-ceu", program],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def test_two_tasks_run_at_the_same_time_and_outputs_keep_their_order(run) -> None:
    done = run(
        "one() { read -r word <pipe && echo got $word; }; the_other() { echo word >pipe; }; "
        "third() { echo third; }",
        *("one", "the_other", "third"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if not line.endswith(" s")]
    assert lines == ["--> one", "got word", "--> the other", "--> third", "third"]
    assert "--> the other: 0 s\n" in done.stdout


def test_what_failed_is_named_at_the_end_with_its_last_lines(run) -> None:
    done = run(
        "one() { read -r word <pipe; seq 40; return 3; }; "
        "the_other() { echo word >pipe; echo cause >&2; false; }; third() { touch third; }",
        *("one", "the_other", "third"),
    )
    assert done.returncode == 1
    end = done.stdout[done.stdout.index("==>") :].splitlines()
    told = "failed; the last lines of its output:"
    assert end == [
        *(f"==> one {told}", *map(str, range(11, 41))),
        *(f"==> the other {told}", "cause"),
    ]


def test_no_task_starts_after_one_has_failed(run, tmp_path: Path) -> None:
    tasks = "one() { read -r word <pipe; false; }; two() { echo word >pipe; false; }"
    done = run(f"{tasks}; third() {{ touch third; }}", "one", "two", "third")
    assert done.returncode == 1
    assert "third" not in done.stdout
    assert not (tmp_path / "third").exists()
