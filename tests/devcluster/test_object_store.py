"""The S3 server of tests: it answers, ends with its block, and says why it does not start."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_devcluster import object_store
from bamboo_devcluster.errors import ComponentError
from bamboo_devcluster.programs import versitygw


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plays the server: a script."""
    path = tmp_path / "versitygw"
    monkeypatch.setattr(versitygw, "ensure", lambda report: path)
    return path


LISTENS = f"""#!{sys.executable}
import socket, sys

host, port = sys.argv[2].split(":")
server = socket.create_server((host, int(port)))
while True:
    server.accept()
"""


def test_it_answers_until_its_block_ends(tmp_path: Path, program: Path) -> None:
    program.write_text(LISTENS)
    program.chmod(0o755)
    with object_store.running(tmp_path / "s3") as store:
        assert store.make_bucket("b") == "s3://b"
        assert (store.data / "b").is_dir()
        assert store.environment["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{store.port}"
    with socket.socket() as found:
        assert found.connect_ex(("127.0.0.1", store.port)) != 0


def test_it_speaks_https_and_its_clients_trust_it(tmp_path: Path, program: Path) -> None:
    told = f"""open("{tmp_path}/told", "w").write(" ".join(sys.argv))"""
    program.write_text(LISTENS.replace("host, port =", f"{told}\nhost, port ="))
    program.chmod(0o755)
    folder = tmp_path / "s3"
    with object_store.running(folder, is_secure=True) as store:
        pair = f"--cert {folder}/pki/server.crt --key {folder}/pki/server.key"
        assert pair in (tmp_path / "told").read_text()
        assert store.environment["AWS_ENDPOINT_URL"] == f"https://127.0.0.1:{store.port}"
        assert store.environment["AWS_CA_BUNDLE"] == f"{folder}/pki/ca.crt"
    with object_store.running(tmp_path / "plain") as store:
        assert "--cert" not in (tmp_path / "told").read_text()
        assert "AWS_CA_BUNDLE" not in store.environment


def test_the_log_says_why_it_does_not_start(tmp_path: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\necho address already in use >&2\nexit 1\n")
    program.chmod(0o755)
    refused = pytest.raises(ComponentError, match="does not start: address already in use")
    with refused, object_store.running(tmp_path / "s3"):
        pass


HOLDS = """
import sys
from pathlib import Path
from bamboo_devcluster import object_store
from bamboo_devcluster.programs import versitygw
versitygw.ensure = lambda report: Path(sys.argv[1])
with object_store.running(Path(sys.argv[2])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_process_that_holds_it(
    tmp_path: Path, program: Path, number: signal.Signals
) -> None:
    """As the script of docs/devcluster.md: a signal leaves no server behind."""
    told = f"""open("{tmp_path}/pid", "w").write(str(__import__("os").getpid()))"""
    program.write_text(LISTENS.replace("host, port =", f"{told}\nhost, port ="))
    program.chmod(0o755)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(program), str(tmp_path / "s3")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        server = int((tmp_path / "pid").read_text())
        ended = select.poll()
        ended.register(os.pidfd_open(server), select.POLLIN)
        assert not ended.poll(0)
        holder.send_signal(number)
        holder.wait()
        try:
            assert ended.poll(10_000), "the server has outlived its holder"
        except AssertionError:
            os.kill(server, signal.SIGKILL)
            raise
