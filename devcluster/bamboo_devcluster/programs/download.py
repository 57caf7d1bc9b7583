"""Downloads programs from their official sites and verifies them.

The expected checksum comes from `tools/checksums.txt` (lines `SHA256  FILE`). For a file that is
not listed there, it is the checksum published on the same site.
"""

import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path

from bamboo_devcluster.errors import BinaryError
from bamboo_devcluster.spec import machine_architecture

CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20
_PERCENT_STEP = 25
_PINS = Path(__file__).with_name("tools") / "checksums.txt"


class UnavailableError(Exception):
    """The download site cannot be reached, or does not have the file."""


@dataclass(frozen=True)
class Source:
    """Where one program is published."""

    url: str
    checksum_url: str
    member: str = ""  # the path inside a tar archive; empty for a bare program. For several: folder

    @property
    def file_name(self) -> str:
        """The published file's name."""
        return self.url.rpartition("/")[2]


def find_source(program: str, *, kubernetes: str, etcd: str, helm: str) -> Source:
    """Return where a program is published for this machine's processor."""
    arch = machine_architecture()
    if program == "etcd":
        base = _base("BAMBOO_ETCD_URL", "https://github.com/etcd-io/etcd/releases/download")
        stem = f"etcd-v{etcd}-linux-{arch}"
        folder = f"{base}/v{etcd}"
        return Source(f"{folder}/{stem}.tar.gz", f"{folder}/SHA256SUMS", f"{stem}/etcd")
    if program == "helm":
        base = _base("BAMBOO_HELM_URL", "https://get.helm.sh")
        url = f"{base}/helm-v{helm}-linux-{arch}.tar.gz"
        return Source(url, f"{url}.sha256sum", f"linux-{arch}/helm")
    base = _base("BAMBOO_KUBERNETES_URL", "https://dl.k8s.io/release")
    url = f"{base}/v{kubernetes}/bin/linux/{arch}/{program}"
    return Source(url, f"{url}.sha256")


def fetch(source: Source, target: Path, report: Callable[[str], None], pins: Path = _PINS) -> None:
    """Download and verify one program into `target`.

    Raises UnavailableError if the site cannot be reached, BinaryError if the content is wrong.
    """
    _install(_extract(source, _verified(source, report, pins)), target)


def fetch_all(source: Source, targets: Mapping[str, Path], report: Callable[[str], None]) -> None:
    """Download and verify an archive; install programs of its folder `source.member`.

    targets: where to, by name. Raises like :func:`fetch`.
    """
    data = _verified(source, report, _PINS)
    for name, target in targets.items():
        _install(_extract(replace(source, member=f"{source.member}/{name}"), data), target)


def _verified(source: Source, report: Callable[[str], None], pins: Path) -> bytes:
    expected = pinned_checksum(source.file_name, pins) or _published_checksum(source)
    data = _read_all(source, report)
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        raise BinaryError(
            f"{source.url} has the wrong checksum (expected {expected[:12]}, got {actual[:12]}); "
            "it was not installed. Try again, or set KUBEBUILDER_ASSETS to a folder of programs."
        )
    return data


def pinned_checksum(file_name: str, pins: Path = _PINS) -> str:
    """Return the pinned checksum of a published file, or an empty string."""
    return _find_checksum(pins.read_text(), file_name) if pins.exists() else ""


def _published_checksum(source: Source) -> str:
    with _open(source.checksum_url, CONNECT_TIMEOUT_S) as response:
        text = response.read(_CHUNK_BYTES).decode(errors="replace")
    found = _find_checksum(text, source.file_name)
    if not found:
        raise UnavailableError(f"{source.checksum_url} does not name {source.file_name}")
    return found


def _find_checksum(text: str, file_name: str) -> str:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 1 and len(words[0]) == 64:
            return words[0]
        if len(words) == 2 and words[1].lstrip("*").rpartition("/")[2] == file_name:
            return words[0]
    return ""


def _read_all(source: Source, report: Callable[[str], None]) -> bytes:
    buffer = io.BytesIO()
    with _open(source.url, _READ_TIMEOUT_S) as response:
        total = int(response.headers.get("Content-Length") or 0)
        shown = 0
        try:
            while chunk := response.read(_CHUNK_BYTES):
                buffer.write(chunk)
                percent = 100 * buffer.tell() // total if total else 0
                if percent >= shown + _PERCENT_STEP:
                    shown = percent - percent % _PERCENT_STEP
                    report(f"{source.file_name}: {shown} % downloaded")
        except (OSError, ValueError) as error:
            raise UnavailableError(f"{source.url}: {error}") from error
    return buffer.getvalue()


def _open(url: str, timeout_s: float) -> HTTPResponse:
    try:
        response: HTTPResponse = urllib.request.urlopen(url, timeout=timeout_s)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        raise UnavailableError(f"{url}: {error}") from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"{url}: {getattr(error, 'reason', error)}") from error


def _extract(source: Source, data: bytes) -> bytes:
    if not source.member:
        return data
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            member = archive.extractfile(source.member)
            if member:
                return member.read()
    except (KeyError, tarfile.TarError) as error:
        raise BinaryError(f"{source.url} does not contain {source.member}: {error}") from error
    raise BinaryError(f"{source.url} does not contain the program {source.member}")


def _install(data: bytes, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o755)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def _base(variable: str, default: str) -> str:
    return os.environ.get(variable, default).rstrip("/")
