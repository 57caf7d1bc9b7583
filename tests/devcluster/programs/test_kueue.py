"""Where Kueue comes from: the cache, or a build from its module; and the errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from bamboo_devcluster.__main__ import main
from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import binaries, gobuild, kueue

# Plays go: lists packages and the module's folder, builds a program.
GO = """#!/bin/sh
case "$*" in
  "list -deps "*) echo a;;
  "list -m "*) %s;;
  *) while [ "$1" != -o ]; do shift; done; cp "$0" "$2";;
esac
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a read-only module with a chart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = tmp_path / "module"
    (found / "charts/kueue/templates").mkdir(parents=True)
    (found / "charts/kueue/Chart.yaml").write_text("name: kueue\n")
    (found / "charts/kueue/templates/crd.yaml").write_text("kind: X\n")
    for path in [*found.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    play_go(tmp_path, monkeypatch, f"echo {found}")
    return found


def play_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    go = tmp_path / "bin/go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(GO % listed)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")


def test_it_is_built_once_with_its_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kueue.cache_directory() / "chart").mkdir(parents=True)  # without the program it does not count
    (kueue.cache_directory() / "chart/old").write_text("")
    assert kueue.find() is None
    found = kueue.ensure(print)
    assert found.manager == kueue.cache_directory() / "kueue"
    assert [p.name for p in sorted(found.chart.rglob("*"))] == [
        "Chart.yaml", "templates", "crd.yaml"
    ]  # fmt: skip
    (found.chart / "templates/crd.yaml").write_text("a copy can be changed\n")
    play_go(tmp_path, monkeypatch, "exit 1")
    assert kueue.ensure(print) == kueue.find() == found
    assert {p.name for p in kueue.cache_directory().iterdir()} == {"kueue", "chart", ".lock"}


def test_the_command_builds_it_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "ensure", lambda report, names: {"helm": Path("/programs/helm")})
    done = CliRunner().invoke(main, ["binaries"])
    assert done.stdout == "/programs\n"
    assert kueue.find() is None
    done = CliRunner().invoke(main, ["binaries", "--kueue"])
    assert done.stdout.splitlines() == sorted(["/programs", str(kueue.cache_directory())])
    assert kueue.find() is not None


def test_without_go_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryError, match="Kueue cannot be built: `go` is not on the PATH"):
        kueue.ensure(print)


def test_a_module_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_go(tmp_path, monkeypatch, "echo no such module >&2; exit 1")
    with pytest.raises(BinaryError, match=r"files of sigs.k8s.io/kueue .* no such module"):
        kueue.ensure(print)
    assert kueue.find() is None


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BinaryError, match="set XDG_CACHE_HOME"):
        kueue.ensure(print)


def test_the_version_is_that_of_the_module() -> None:
    folder = Path(gobuild.__file__).with_name("tools") / "kueue"
    assert f"sigs.k8s.io/kueue v{kueue.VERSION}\n" in (folder / "go.mod").read_text()
    assert (folder / "go.sum").exists()
