"""Where Prometheus comes from: PATH, cache, download, Debian's package; and the errors."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import download, prometheus

NOWHERE = "http://127.0.0.1:9"  # nothing listens here


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an empty PATH, no site."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BAMBOO_PROMETHEUS_URL", NOWHERE)
    return tmp_path


def published(folder: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """A site as a folder: file URLs need no server."""
    source = prometheus.source()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(f"{source.member}/{name}")
            archive.addfile(info)
    site = folder / f"site/v{prometheus.VERSION}"
    site.mkdir(parents=True)
    (site / source.file_name).write_bytes(buffer.getvalue())
    checksum = hashlib.sha256(buffer.getvalue()).hexdigest()
    (site / "sha256sums.txt").write_text(f"{checksum}  {source.file_name}\n")
    monkeypatch.setenv("BAMBOO_PROMETHEUS_URL", f"file://{folder}/site")


def test_installed_programs_are_taken_first(folder: Path) -> None:
    for name in prometheus.PROGRAMS:
        program(folder / "bin" / name)
        program(prometheus.cache_directory() / name)
    assert prometheus.ensure(print)["promtool"] == folder / "bin/promtool"


def test_half_an_installation_does_not_count(folder: Path) -> None:
    program(folder / "bin/promtool")
    for name in prometheus.PROGRAMS:
        program(prometheus.cache_directory() / name)
    assert prometheus.ensure(print)["promtool"] == prometheus.cache_directory() / "promtool"


def test_both_come_from_one_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(folder, monkeypatch, prometheus.PROGRAMS)
    found = prometheus.ensure(print)
    assert set(found) == set(prometheus.PROGRAMS)
    assert all(path.parent == prometheus.cache_directory() for path in found.values())


def test_an_archive_without_a_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(folder, monkeypatch, ("prometheus",))
    with pytest.raises(BinaryError, match=r"does not contain .*/promtool"):
        prometheus.ensure(print)


@pytest.mark.parametrize(
    ("dpkg", "says"),
    [
        ("mkdir -p root/usr/bin; cp $0 root/usr/bin/prometheus; cp $0 root/usr/bin/promtool", ""),
        ("echo broken >&2; exit 2", "cannot be unpacked .broken.; put prometheus and promtool on"),
        ("mkdir -p root/usr/bin", "does not contain prometheus"),
        (None, "No such file"),
    ],
)
def test_debians_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dpkg: str | None, says: str
) -> None:
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    monkeypatch.setattr(prometheus.shutil, "which", lambda name: None)
    program(folder / "bin/apt-get", "#!/bin/sh\ntouch prometheus_1_amd64.deb\n")
    if dpkg is None:
        monkeypatch.setenv("PATH", f"{folder}/bin")
        program(folder / "bin/apt-get", "#!/bin/sh\n: >prometheus_1_amd64.deb\n")
    else:
        program(folder / "bin/dpkg", f"#!/bin/sh\n{dpkg}\n")
    if says:
        with pytest.raises(BinaryError, match=says):
            prometheus.ensure(print)
        assert not list(prometheus.cache_directory().glob("prom*"))
    else:
        assert set(prometheus.ensure(print)) == set(prometheus.PROGRAMS)


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    with pytest.raises(BinaryError, match="set XDG_CACHE_HOME"):
        prometheus.ensure(print)


def test_a_wrong_checksum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published(folder, monkeypatch, prometheus.PROGRAMS)
    sums = next((folder / "site").rglob("sha256sums.txt"))
    sums.write_text(sums.read_text().replace(sums.read_text()[:64], "0" * 64))
    with pytest.raises(BinaryError, match="has the wrong checksum"):
        prometheus.ensure(print)


def test_a_single_program_still_comes_from_an_archive() -> None:
    source = download.find_source("etcd", kubernetes="1", etcd="2", helm="3")
    assert source.member.endswith("/etcd")
