"""Where programs come from: assets, cache, download, build; and the errors."""

import functools
import hashlib
import http.server
import io
import os
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.programs import binaries, download, gobuild
from bamboo_devcluster.programs.download import Source, UnavailableError

PROGRAM = b"#!/bin/sh\necho hello\n"


def program(path: Path, text: bytes = PROGRAM) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(0o755)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    for name in ("KUBERNETES", "ETCD", "HELM"):
        monkeypatch.setenv(f"BAMBOO_{name}_URL", "http://127.0.0.1:9")  # nothing listens here
    return binaries.cache_directory()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder served as all three download sites."""
    root = tmp_path / "site"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    handler = functools.partial(Handler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("KUBERNETES", "ETCD", "HELM"):
            monkeypatch.setenv(f"BAMBOO_{name}_URL", f"http://127.0.0.1:{server.server_port}")
        yield root
        server.shutdown()
        thread.join()


def source_of(name: str) -> Source:
    return download.find_source(name, kubernetes="1.36.3", etcd="3.6.8", helm="4.3.1")


def publish(root: Path, name: str, data: bytes, checksum: str) -> None:
    """Publish a program on the site."""
    source = source_of(name)
    if source.member:
        data = archive(source.member, data)
    base = "/".join(source.url.split("/")[:3])
    file = root / source.url.removeprefix(base + "/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    sums = root / source.checksum_url.removeprefix(base + "/")
    line = f"{checksum or sha256(data)}  {source.file_name}\n"
    sums.write_text(line if source.member else line.split()[0])


def archive(member: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        info = tarfile.TarInfo(member)
        info.size = len(data)
        file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_assets_take_precedence_over_the_cache(tmp_path, monkeypatch, empty_cache) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    program(tmp_path / "assets" / "etcd")
    program(empty_cache / "etcd")
    program(empty_cache / "helm")
    found = binaries.ensure(print, ["etcd", "helm"])
    assert found == {"etcd": tmp_path / "assets" / "etcd", "helm": empty_cache / "helm"}


@pytest.mark.parametrize("name", ["kubectl", "etcd", "helm"])
def test_programs_are_downloaded_and_verified(site: Path, empty_cache: Path, name: str) -> None:
    publish(site, name, PROGRAM, "")
    said: list[str] = []
    found = binaries.ensure(said.append, [name])
    assert found[name].read_bytes() == PROGRAM
    assert found[name].stat().st_mode & stat.S_IXUSR
    assert any("100 % downloaded" in line for line in said)
    assert {p.name for p in empty_cache.iterdir()} == {name, ".lock"}


@pytest.mark.parametrize("name", ["kubectl", "etcd"])
def test_a_wrong_checksum_is_refused(site: Path, empty_cache: Path, name: str) -> None:
    publish(site, name, PROGRAM, "0" * 64)
    with pytest.raises(BinaryError, match="has the wrong checksum"):
        binaries.ensure(print, [name])
    assert not (empty_cache / name).exists()


def test_a_pin_overrides_the_published_checksum(site: Path, tmp_path: Path) -> None:
    publish(site, "kubectl", PROGRAM, "")
    source = source_of("kubectl")
    pins = tmp_path / "pins"
    pins.write_text(f"# comment\n{'1' * 64}  kubectl\n")
    assert download.pinned_checksum("kubectl", pins) == "1" * 64
    with pytest.raises(BinaryError, match="expected 111111111111"):
        download.fetch(source, tmp_path / "kubectl", print, pins)
    pins.write_text(f"{sha256(PROGRAM)}  kubectl\n")
    download.fetch(source, tmp_path / "kubectl", print, pins)


def test_an_archive_without_the_program_is_an_error(site: Path, tmp_path: Path) -> None:
    publish(site, "helm", PROGRAM, "")
    real = source_of("helm")
    wrong = Source(real.url, real.checksum_url, "other/helm")
    with pytest.raises(BinaryError, match="does not contain other/helm"):
        download.fetch(wrong, tmp_path / "helm", print)


def test_a_site_without_the_file_is_unavailable(site: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="404"):
        download.fetch(source_of("helm"), tmp_path / "helm", print)
    source = source_of("etcd")
    publish(site, "etcd", PROGRAM, "")
    sums = next(site.rglob("SHA256SUMS"))
    sums.write_text("nothing here\n")
    with pytest.raises(UnavailableError, match="does not name etcd"):
        download.fetch(source, tmp_path / "etcd", print)


def test_without_network_and_go_the_error_says_so(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    with pytest.raises(BinaryError, match="neither downloaded nor built: `go` is not on the PATH"):
        binaries.ensure(said.append, ["etcd"])
    assert len(said) == 1
    assert said[0].startswith("etcd: cannot be downloaded (http://127.0.0.1:9")


FAKE_GO = """#!/bin/sh
if [ "$1" = list ]; then echo a; echo b; exit 0; fi
while [ "$1" != -o ]; do shift; done
echo a >&2; echo b >&2
%s
"""


def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    program(tmp_path / "bin" / "go", (FAKE_GO % ending).encode())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_a_program_that_cannot_be_downloaded_is_built(tmp_path, monkeypatch, empty_cache) -> None:
    fake_go(tmp_path, monkeypatch, 'echo program > "$2"; chmod +x "$2"')
    program(empty_cache / ".build-etcd-old" / "etcd")  # left by a build that was killed
    said: list[str] = []
    found = binaries.ensure(said.append, ["etcd", "kube-apiserver"])
    assert found["etcd"].read_text() == "program\n"
    assert "etcd: 1 of 2 packages compiled" in said
    assert not list(empty_cache.glob(".build-*"))


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (
            'echo "go: no such module" >&2; exit 1',
            r"etcd could not be built .*: go: no such module",
        ),
        ('echo "write x: no space left on device" >&2; exit 1', r"The disk that holds .* is full"),
        ("exit 2", r"etcd could not be built .*: code 2"),
    ],
)
def test_a_build_that_fails_says_why(tmp_path, monkeypatch, ending, message) -> None:
    fake_go(tmp_path, monkeypatch, ending)
    with pytest.raises(BinaryError, match=message):
        binaries.ensure(print, ["etcd"])


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BinaryError, match="set XDG_CACHE_HOME to a folder that you can write"):
        binaries.ensure(print, ["etcd"])


def test_a_full_disk_is_reported(site, monkeypatch) -> None:
    publish(site, "kubectl", PROGRAM, "")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_install", fail)
    with pytest.raises(BinaryError, match=r"The disk that holds .* is full"):
        binaries.ensure(print, ["kubectl"])


def test_every_program_has_a_recipe_whose_version_matches_its_module() -> None:
    tools = Path(gobuild.__file__).with_name("tools")
    for name in (*binaries.PROGRAMS, *binaries.KUBELET):
        recipe = gobuild.find_recipe(
            name, kubernetes=binaries.KUBERNETES_VERSION, helm=binaries.HELM_VERSION
        )
        assert (tools / recipe.module / "go.sum").exists()
    wanted = {
        "kubernetes": f"k8s.io/kubernetes v{binaries.KUBERNETES_VERSION}",
        "kubelet": f"k8s.io/kubernetes v{binaries.KUBERNETES_VERSION}",
        "etcd": f"go.etcd.io/etcd/server/v3 v{binaries.ETCD_VERSION}",
        "helm": f"helm.sh/helm/v4 v{binaries.HELM_VERSION}",
    }
    for module, line in wanted.items():
        assert line in (tools / module / "go.mod").read_text()
