"""A new project: its names, its files, and that its job is one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.local.new_project import write_project
from bamboo_cli.main import cli


def test_the_project_has_the_folder_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "first-gpt"
    written = write_project(folder)
    assert {str(path) for path in written} >= {
        "Dockerfile",
        "README.md",
        "first_gpt/data.py",
        "first_gpt/model.py",
        "job.yaml",
        "test_local.py",
    }
    for path in written:
        text = (folder / path).read_text()
        assert "my_training" not in text
        assert "my-training" not in text
        assert "BAMBOO_VERSION" not in text
        if path.suffix == ".py":
            ast.parse(text)


def test_its_job_is_valid(tmp_path: Path) -> None:
    write_project(tmp_path / "mine")
    name, spec = read_manifest(tmp_path / "mine" / "job.yaml")
    assert name == "mine"
    assert spec.model.factory == "mine.model:build"
    # agents could not write into a claim that belongs to root
    assert spec.worker.pod_template["spec"]["securityContext"] == {"fsGroup": 65532}


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert write_project(tmp_path / "mine")


@pytest.mark.parametrize("name", ["My", "1st", "a_b", "class", "a" * 60, "dot.name", "tail-"])
def test_a_name_that_no_job_or_package_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="lower-case letters"):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["torch", "transformers", "json", "bamboo-agent"])
def test_a_name_that_hides_a_library_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"would hide the Python package .* such as my-{name}"):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder, file = tmp_path / "mine", tmp_path / "file"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    file.write_text("mine")
    for there in (folder, file):
        with pytest.raises(CommandError, match="exists; give the name of a new folder"):
            write_project(there)
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot write"):
        write_project(tmp_path / "file" / "mine")


def test_the_command_says_how_to_go_on(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["init", str(tmp_path / "mine")])
    assert found.exit_code == 0, found.output
    assert f"cd {tmp_path / 'mine'} && bamboo train -f job.yaml --local --check" in found.output
