"""scripts/mutate as a whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "bamboo_sim.mutation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "zzz"], "--only zzz matches no module; modules: arbiter/arbiter.py, "),
        (["--quick", "--write"], "leave out --quick or --write"),
        (["--only", "graph", "--write"], "leave out --only or --write"),
        (["--processes", "0"], "is not an integer of at least 1"),
        (["--minutes", "-1"], "is not a number of at least 0"),
    ],
)
def test_what_it_cannot_do_is_refused(arguments: list[str], words: str) -> None:
    done = mutate(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_an_unknown_mutant_is_told() -> None:
    done = mutate("--show", "0123456789", "--only", "graph/tasks")
    assert done.returncode == 1
    assert done.stderr == "bamboo: no mutant has the id 0123456789; the code may have changed\n"


def test_a_few_mutants_of_one_module() -> None:
    arguments = ["--only", "graph/gradients", "--mutants", "1", "--seed", "1", "--least", "1.1"]
    done = mutate("--quick", "--minutes", "0.005", *arguments)
    assert "graph/gradients.py, seed 1\n[1/1] " in done.stdout, done.stderr
    assert "\nmutants 1, killed " in done.stdout
    assert done.returncode == 1
    assert "is less than --least 1.1" in done.stderr
