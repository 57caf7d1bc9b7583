"""Where kubeconform comes from: the cache, the official download, a build; and the errors."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import gobuild, kubeconform

NOWHERE = "http://127.0.0.1:9"  # nothing listens here
GO = """#!/bin/sh
if [ "$1" = list ]; then echo a; exit 0; fi
echo "$PWD $*" >> {log}
while [ "$1" != -o ]; do shift; done
echo built > "$2"; chmod +x "$2"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no site, no go."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("BAMBOO_KUBECONFORM_URL", NOWHERE)
    monkeypatch.setattr(gobuild.shutil, "which", lambda name: None)
    return tmp_path


def with_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plays go; returns the file that lists its builds."""
    go, log = folder / "bin/go", folder / "log"
    go.parent.mkdir()
    go.write_text(GO.format(log=log))
    go.chmod(0o755)
    monkeypatch.setattr(gobuild.shutil, "which", lambda name: str(go))
    return log


def published(folder: Path, monkeypatch: pytest.MonkeyPatch, checksum: str = "") -> None:
    """A site as a folder: file URLs need no server."""
    data = b"published\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("kubeconform")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    site = folder / f"site/v{kubeconform.VERSION}"
    site.mkdir(parents=True)
    name = kubeconform.source().file_name
    (site / name).write_bytes(buffer.getvalue())
    checksum = checksum or hashlib.sha256(buffer.getvalue()).hexdigest()
    (site / "CHECKSUMS").write_text(f"{checksum}  {name}\n")
    monkeypatch.setenv("BAMBOO_KUBECONFORM_URL", f"file://{folder}/site")


def test_it_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(folder, monkeypatch)
    found = kubeconform.ensure(print)
    assert found.read_text() == "published\n"
    assert {path.name for path in found.parent.iterdir()} == {"kubeconform", ".lock"}


def test_it_is_built_once_without_a_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = with_go(folder, monkeypatch)
    left = kubeconform.cache_directory() / ".build-kubeconform-old"
    left.mkdir(parents=True)  # by a build that was killed
    found = kubeconform.ensure(print)
    assert found.read_text() == "built\n"
    assert kubeconform.ensure(print) == found
    (build,) = log.read_text().splitlines()
    assert build.split()[0].endswith("programs/tools/kubeconform")
    assert f"main.version=v{kubeconform.VERSION}" in build
    assert {path.name for path in found.parent.iterdir()} == {"kubeconform", ".lock"}


def test_a_wrong_checksum_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_go(folder, monkeypatch)
    published(folder, monkeypatch, "0" * 64)
    with pytest.raises(BinaryError, match="has the wrong checksum"):
        kubeconform.ensure(print)


def test_without_a_site_and_go_the_error_says_so() -> None:
    with pytest.raises(BinaryError, match="neither downloaded nor built: `go` is not on the PATH"):
        kubeconform.ensure(print)


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    with pytest.raises(BinaryError, match="set XDG_CACHE_HOME"):
        kubeconform.ensure(print)


def test_the_version_is_that_of_the_module() -> None:
    tools = Path(gobuild.__file__).with_name("tools") / "kubeconform"
    wanted = f"github.com/yannh/kubeconform v{kubeconform.VERSION}\n"
    assert wanted in (tools / "go.mod").read_text()
    assert (tools / "go.sum").exists()
