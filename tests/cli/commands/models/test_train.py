"""`bamboo train`: what it refuses before anything runs, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.profiles import QUICKSTART

from bamboo_cli.errors import CommandError
from bamboo_cli.local import program
from bamboo_cli.main import cli
from bamboo_core.api import local_run
from bamboo_core.api.outcome import Outcome


class Stand:
    """In place of the program: what it was asked, and what it tells."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.tells: list[local_run.Told] = [local_run.Ended(Outcome.COMPLETE, "all is done")]
        self.code = 0

    def __call__(self, name: str, spec: Any, folder: Path, **more: Any) -> Stand:
        self.asked = {"name": name, "spec": spec, "folder": folder, **more}
        return self

    def told(self) -> Iterator[local_run.Told]:
        yield from self.tells


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stand:
    made = Stand()
    monkeypatch.setattr(program, "Program", made)
    monkeypatch.chdir(tmp_path)
    return made


def train(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["train", "-f", str(QUICKSTART), *arguments])


def test_without_local_it_says_what_a_cluster_takes(stand: Stand) -> None:
    found = train()
    assert isinstance(found.exception, CommandError)
    assert f"on a cluster, use kubectl apply -f {QUICKSTART}" in str(found.exception)
    assert not stand.asked


@pytest.mark.parametrize(
    ("given", "found"),
    [("first.pt", "{here}/first.pt"), ("s3://b/first", "s3://b/first"), ("file:///w", "file:///w")],
)
def test_first_weights_are_at_a_path_or_at_an_address(
    given: str, found: str, stand: Stand, tmp_path: Path
) -> None:
    assert train("--local", "--initial-from", given).exit_code == 0
    assert stand.asked["spec"].model.initial_from == found.format(here=tmp_path)


def test_options_come_to_the_program(stand: Stand, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    found = train(
        *("--local", "--pipelines", "1", "--stages", "2", "--steps", "7", "--kill", "3"),
        *("--check", "--out", str(out)),
    )
    assert found.exit_code == 0, found.output
    assert stand.asked["name"] == "local/quickstart"
    assert stand.asked["folder"] == out
    assert (stand.asked["kills"], stand.asked["checks"]) == (3, True)
    spec = stand.asked["spec"]
    assert (spec.pipelines.count, spec.pipelines.stages, spec.training.steps) == (1, 2, 7)
    assert "Complete: all is done" in found.output


def test_a_new_folder_has_name_and_time(stand: Stand, tmp_path: Path) -> None:
    assert train("--local").exit_code == 0
    (made,) = (tmp_path / "bamboo-runs").iterdir()
    assert made.name.startswith("quickstart-2")
    assert stand.asked["folder"] == made


def test_two_runs_in_one_second_have_two_folders(
    stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "now")
    for _ in range(3):
        assert train("--local").exit_code == 0
    found = sorted(folder.name for folder in (tmp_path / "bamboo-runs").iterdir())
    assert found == ["quickstart-now", "quickstart-now-2", "quickstart-now-3"]


@pytest.mark.parametrize(
    ("where", "text"), [("there", "exists; give a new folder"), ("file/run", "cannot be made")]
)
def test_a_folder_that_cannot_be_new_is_refused(
    where: str, text: str, stand: Stand, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("")
    found = train("--local", "--out", str(tmp_path / where))
    assert isinstance(found.exception, CommandError)
    assert text in str(found.exception)
    assert not stand.asked


def test_a_failure_is_the_command_s_error(stand: Stand) -> None:
    stand.tells = [local_run.Ended(Outcome.FAILED, "layer 1, Linear: it does not fit")]
    found = train("--local")
    assert isinstance(found.exception, CommandError)
    assert str(found.exception) == "layer 1, Linear: it does not fit."


def test_a_factory_that_cannot_be_imported_is_named_with_its_field(stand: Stand) -> None:
    module = "bamboo_agent.models.gpt"
    stand.tells = [local_run.Ended(Outcome.FAILED, f"cannot import {module!r}: No module")]
    assert str(train("--local").exception) == (
        f"cannot import {module!r}: No module; correct spec.model.factory, install what is missing"
        " on this machine, or name its folder in PYTHONPATH."
    )


def test_different_bits_are_its_exit_code(stand: Stand) -> None:
    stand.tells.insert(0, local_run.Compared(3, 9, "layer 0, param/weight"))
    stand.code = 1
    found = train("--local", "--check")
    assert found.exit_code == 1
    assert "DIFFERENT" in found.output


@pytest.mark.parametrize("option", ["--pipelines", "--stages", "--steps"])
def test_numbers_below_one_are_refused(option: str, stand: Stand) -> None:
    assert train("--local", option, "0").exit_code == 2
    assert not stand.asked
