"""An S3 server on this machine, for tests. A bucket is a folder of it."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.children import launch
from bamboo_devcluster.errors import ComponentError
from bamboo_devcluster.kube import pki
from bamboo_devcluster.programs import versitygw

REGION = "us-east-1"
_KEY, _SECRET = "root", "a-secret-of-tests"
_TRIES = 3  # another process may take the port
_START_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True)
class ObjectStore:
    """A server that runs. port: of 127.0.0.1; data: the folder with the buckets; authority: the
    certificate that clients trust, if it speaks HTTPS."""

    program: Path
    port: int
    data: Path
    authority: Path | None = None

    @property
    def url(self) -> str:
        """The address of its API."""
        return f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a client with all rights."""
        return self.environment_of(_KEY, _SECRET)

    def environment_of(self, key: str, secret: str) -> dict[str, str]:
        """The variables of a client with an identity of its own."""
        trust = {"AWS_CA_BUNDLE": str(self.authority)} if self.authority else {}
        return {
            **trust,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def make_bucket(self, name: str) -> str:
        """Make a bucket; returns its address."""
        (self.data / name).mkdir()
        return f"s3://{name}"

    def add_user(self, key: str, secret: str) -> None:
        """Add an identity without rights. ComponentError if the server refuses it."""
        result = subprocess.run(
            [
                *(str(self.program), "admin", "--access", _KEY, "--secret", _SECRET),
                *("--endpoint-url", self.url, "--allow-insecure", "create-user"),
                *("--access", key, "--secret", secret, "--role", "user"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise ComponentError(f"the S3 server adds no user: {result.stderr.strip()}")


@contextmanager
def running(
    folder: Path, report: Callable[[str], None] = print, *, is_secure: bool = False
) -> Iterator[ObjectStore]:
    """A server over a folder, which is made. It ends with this process, however that ends.
    is_secure: over HTTPS. BinaryError, ComponentError."""
    program = versitygw.ensure(report)
    for name in ("data", "users"):
        (folder / name).mkdir(parents=True)
    process, store = _start(program, folder, pki.Authority(folder / "pki") if is_secure else None)
    try:
        yield store
    finally:
        process.terminate()
        process.wait()


def _start(
    program: Path, folder: Path, authority: pki.Authority | None
) -> tuple[subprocess.Popen[bytes], ObjectStore]:
    log, trusted, secure = folder / "log", None, list[str]()
    if authority is not None:
        pair = authority.issue("server", common_name="s3", addresses=["127.0.0.1"])
        trusted, secure = authority.cert, ["--cert", str(pair.cert), "--key", str(pair.key)]
    for _ in range(_TRIES):
        store = ObjectStore(program, _free_port(), folder / "data", trusted)
        command = [
            *(str(program), "--port", f"127.0.0.1:{store.port}", "--region", REGION, "--quiet"),
            *(*secure, "--iam-dir", str(folder / "users"), "posix", str(store.data)),
        ]
        secrets: Mapping[str, str] = {"ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
        with log.open("wb") as lines:
            process = launch.popen(command, secrets, lines.fileno())
        if _answers(process, store.port):
            return process, store
        process.kill()
        process.wait()
    raise ComponentError(f"the S3 server does not start: {log.read_text()[-300:]}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as found:
            if found.connect_ex(("127.0.0.1", port)) == 0:
                return process.poll() is None
        time.sleep(_POLL_S)
    return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
