"""The program that trains here, stood in for by small ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.profiles import QUICKSTART

from bamboo_cli.errors import ProgramError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.local.program import Program
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import JobSpec

HEAD = """
import argparse, os, sys
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import from_json
parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--folder")
parser.add_argument("--kill", type=int)
parser.add_argument("--variables")
parser.add_argument("--check", action="store_true")
parser.add_argument("--tell", type=int)
given = parser.parse_args()
spec = from_json(sys.stdin.read())
tell = os.fdopen(given.tell, "w")
def say(told): print(local_run.to_line(told), file=tell, flush=True)
"""


@pytest.fixture(scope="module")
def spec() -> JobSpec:
    return read_manifest(QUICKSTART)[1]


def program(spec: JobSpec, folder: Path, text: str, **more: object) -> Program:
    command = (sys.executable, "-c", HEAD + text)
    return Program("local/job", spec, folder, program=command, **more)  # type: ignore[arg-type]


def test_it_gets_the_spec_and_the_options_and_is_heard(spec: JobSpec, tmp_path: Path) -> None:
    text = """
print("words of the user's code")
say(local_run.Happened(given.name, f"{spec.training.steps} {given.kill} {given.check}"))
say(local_run.Ended(Outcome.COMPLETE, "", given.folder))
sys.exit(3)
"""
    run = program(spec, tmp_path, text, kills=2, checks=True)
    happened, ended = run.told()
    assert happened == local_run.Happened("local/job", f"{spec.training.steps} 2 True")
    assert ended == local_run.Ended(Outcome.COMPLETE, "", str(tmp_path))
    assert run.code == 3
    assert "words of the user's code" in (tmp_path / "run.log").read_text()


def test_an_end_without_a_word_is_an_error_with_the_last_line(
    spec: JobSpec, tmp_path: Path
) -> None:
    run = program(spec, tmp_path, "sys.exit('a bad thing')")
    with pytest.raises(ProgramError, match=r"exit code 1: a bad thing .*run\.log"):
        list(run.told())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import faulthandler; faulthandler.enable(); os.kill(os.getpid(), 11)",
         r"has crashed: Fatal Python error: Segmentation fault; the stack is in .*run\.log"),
        ("os.kill(os.getpid(), 9)", r"exit code -9: it was killed, perhaps for lack of memory"),
        ("os._exit(3)", r"exit code 3: no output; code of the model or the data may have ended"),
    ],
)  # fmt: skip
def test_code_that_ends_the_program_is_told(
    spec: JobSpec, tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        list(program(spec, tmp_path, text).told())


def test_missing_torch_is_told_with_the_remedy(spec: JobSpec, tmp_path: Path) -> None:
    text = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    with pytest.raises(ProgramError, match=r"install bamboo-train\[agent\]"):
        list(program(spec, tmp_path, text).told())


def test_a_program_that_is_not_there_is_an_error(spec: JobSpec, tmp_path: Path) -> None:
    run = Program("local/job", spec, tmp_path, program=("/nowhere/python",))
    with pytest.raises(ProgramError, match="cannot run /nowhere/python"):
        list(run.told())


def test_a_program_that_does_not_read_its_input_is_an_error(spec: JobSpec, tmp_path: Path) -> None:
    run = Program("local/job", spec, tmp_path, program=(sys.executable, "-c", "pass"))
    with pytest.raises(ProgramError, match="exit code 0"):
        list(run.told())
