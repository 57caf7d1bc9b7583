"""Where the S3 server comes from: the cache or a build; and the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import gobuild, versitygw


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_it_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def build(name: str, recipe: gobuild.Recipe, target: Path, report: object) -> None:
        assert (name, recipe.module) == ("versitygw", "versitygw")
        built.append(target)
        target.write_text("built")
        target.chmod(0o755)

    monkeypatch.setattr(gobuild, "build", build)
    program = versitygw.cache_directory() / "versitygw"
    assert versitygw.ensure(print) == versitygw.ensure(print) == program
    assert built == [program]


def test_without_go_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gobuild.shutil, "which", lambda name: None)
    with pytest.raises(BinaryError, match=r"versitygw can be .* `go` is not on the PATH"):
        versitygw.ensure(print)


def test_the_version_is_the_pinned_one() -> None:
    pins = (Path(gobuild.__file__).with_name("tools") / "versitygw/go.mod").read_text()
    assert f"require github.com/versity/versitygw v{versitygw.VERSION}\n" in pins
