"""`bamboo export` and `bamboo import`: what they ask of the program, and what they refuse."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.fake_api import JOB_PATH, Server
from tests.cli.profiles import QUICKSTART

from bamboo_cli.errors import CommandError, ProgramError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.local import weights
from bamboo_cli.main import cli
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, to_json


class Stand:
    """In place of the program."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.spec: JobSpec | None = None

    def __call__(
        self,
        what: str,
        arguments: list[str],
        spec: JobSpec | None,
        on_moved: Callable[[local_run.Moved], None],
    ) -> local_run.Written:
        self.arguments, self.spec = [what, *arguments], spec
        on_moved(local_run.Moved(1, 1))
        return local_run.Written("there", "here", 3, 4_000, ["no config"])

    def option(self, name: str) -> str | None:
        if name not in self.arguments:
            return None
        return self.arguments[self.arguments.index(name) + 1]


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stand:
    made = Stand()
    monkeypatch.setattr(weights, "move", made)
    monkeypatch.chdir(tmp_path)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def refused(*arguments: str) -> str:
    error = run(*arguments).exception
    assert isinstance(error, CommandError), error
    return str(error)


def test_an_address_and_options_come_to_the_program(stand: Stand) -> None:
    found = run(
        *("export", "file:///data/x", "--out", "w", "--format", "torch", "--dtype", "float16"),
        *("--step", "4", "--attempt", "2", "--force"),
    )
    assert found.exit_code == 0, found.output
    assert found.output == "here -> there: 3 tensors, 4,000 bytes\nnote: no config\n"
    assert stand.arguments[0] == "export"
    assert stand.option("--source") == "file:///data/x"
    assert [stand.option(f"--{x}") for x in ("out", "format", "dtype", "step", "attempt")] == [
        *("w", "torch", "float16", "4", "2")
    ]
    assert "--force" in stand.arguments
    assert stand.spec is None


def test_the_best_checkpoint_is_asked_for(stand: Stand) -> None:
    assert run("export", "file:///data/x", "--out", "w", "--best").exit_code == 0
    assert "--best" in stand.arguments
    assert "--step" not in stand.arguments
    both = run("export", "file:///data/x", "--out", "w", "--best", "--step", "4")
    assert "--best names a checkpoint: leave --step and --attempt out" in both.output


def test_a_run_on_this_machine_knows_its_job(stand: Stand, tmp_path: Path) -> None:
    _, spec = read_manifest(QUICKSTART)
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / weights.JOB_FILE).write_text(to_json(spec))
    assert run("export", "r1", "--out", "w").exit_code == 0
    assert stand.option("--source") == str(tmp_path / "r1")
    assert stand.spec == spec
    (tmp_path / "r1" / weights.JOB_FILE).write_text("{}")
    assert "job.json cannot be read: " in refused("export", "r1", "--out", "w")
    (tmp_path / "r1" / weights.JOB_FILE).unlink()
    assert run("export", "r1", "--out", "w", "-f", str(QUICKSTART)).exit_code == 0
    assert stand.spec == spec


@pytest.fixture
def job(training: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Its checkpoints are on this machine."""
    uid = training["metadata"]["uid"]
    training["spec"]["checkpoint"] = {"uri": (tmp_path / "c").as_uri()}
    (tmp_path / "c" / uid).mkdir(parents=True)
    path = f"{tmp_path}/c/{uid}/attempt-0002/step-00000400"
    training["status"]["lastCheckpoint"] = {"step": 400, "path": path}
    return training


def of_job(server: Server, kubeconfig: Path, job: dict[str, Any], *more: str) -> list[str]:
    server.answers[JOB_PATH] = (200, job)
    return ["export", "gpt", "--out", "w", "--kubeconfig", str(kubeconfig), *more]


def test_a_job_has_its_newest_checkpoint_in_the_status(
    stand: Stand, server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    found = run(*of_job(server, kubeconfig, job))
    assert found.exit_code == 0, found.exception
    address = f"{job['spec']['checkpoint']['uri']}/{job['metadata']['uid']}"
    assert [stand.option(f"--{x}") for x in ("source", "step", "attempt")] == [address, "400", "2"]
    assert stand.spec is not None
    assert run(*of_job(server, kubeconfig, job, "--step", "100")).exit_code == 0
    assert [stand.option(f"--{x}") for x in ("step", "attempt")] == ["100", None]
    del job["status"]["lastCheckpoint"]
    assert run(*of_job(server, kubeconfig, job)).exit_code == 0
    assert [stand.option(f"--{x}") for x in ("step", "attempt")] == [None, None]


def test_a_job_whose_files_are_elsewhere_says_how_to_get_them(
    stand: Stand, server: Server, kubeconfig: Path, job: dict[str, Any]
) -> None:
    job["spec"]["checkpoint"] = {"uri": "file:///not/here"}
    text = refused(*of_job(server, kubeconfig, job))
    uid = job["metadata"]["uid"]
    assert f"file:///not/here/{uid}, which is not on this machine" in text
    assert f"kubectl cp -n team POD:/not/here/{uid} FOLDER" in text
    del job["spec"]["checkpoint"]
    assert "no spec.checkpoint" in refused(*of_job(server, kubeconfig, job))
    job["spec"]["training"]["steps"] = "many"
    assert "spec.training.steps" in refused(*of_job(server, kubeconfig, job))
    assert not stand.arguments


def test_a_folder_that_is_not_there_may_be_meant(stand: Stand, tmp_path: Path) -> None:
    text = refused("export", "w", "--out", "x", "--kubeconfig", str(tmp_path / "none"))
    assert "There is no folder w here. As a job: no cluster is configured in " in text
    assert not stand.arguments


def test_import_asks_for_all_that_is_given(stand: Stand, tmp_path: Path) -> None:
    found = run(
        *("import", "w.pt", "--job", str(QUICKSTART), "--out", "first", "--force", "--cast"),
        *("--ignore", "a.*", "--ignore", "b"),
    )
    assert found.exit_code == 0, found.exception
    assert f"spec.model.initialFrom: {tmp_path / 'first'}" in found.output
    assert stand.option("--source") == str(tmp_path / "w.pt")
    assert [x for x in stand.arguments if x in ("a.*", "b", "--cast", "--force")] == [
        *("a.*", "b", "--cast", "--force")
    ]
    assert stand.spec == read_manifest(QUICKSTART)[1]
    assert run("import", "memory://w", "--job", str(QUICKSTART), "--out", "f").exit_code == 0
    assert stand.option("--source") == "memory://w"


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def telling(told: local_run.Told) -> list[str]:
    line = local_run.to_line(told)
    return program(f"import os, sys; os.write(int(sys.argv[-1]), {line + chr(10)!r}.encode())")


def test_the_last_word_of_the_program_counts() -> None:
    written = local_run.Written("a", "b", 1, 2, [])
    assert weights.move("export", [], None, print, program=telling(written)) == written
    with pytest.raises(CommandError, match=r"^bad file\.$"):
        weights.move("export", [], None, print, program=telling(local_run.Refused("bad file")))
    with pytest.raises(ProgramError, match="bamboo import ended with exit code 1: a bad thing"):
        weights.move("import", [], None, print, program=program("exit('a bad thing')"))
