"""Names of HuggingFace's hub: an agent that cannot reach it says so soon, and takes a copy that it
has. The hub is a server of this machine."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import datasets
import pytest
import transformers
from huggingface_hub import constants

from bamboo_agent import hub
from bamboo_agent.datasets import huggingface
from bamboo_agent.model import FactoryError
from bamboo_agent.models.configurations import load
from bamboo_agent.user_code import call_factory
from bamboo_core.api.spec import FactorySpec

ROWS = "bamboo_agent.datasets.huggingface:build"
REMEDY = (
    "name a folder in the image or on a volume that all agents mount (spec.worker.podTemplate), or"
    ' let agents reach the hub; with HF_HUB_OFFLINE: "1" in spec.worker.env they take a copy in the'
    " folder of HF_HOME and do not ask"
)
CONFIG = {"model_type": "gpt2", "n_layer": 3, "n_embd": 8, "n_head": 2, "vocab_size": 16}


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a hub that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"http://127.0.0.1:{found.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    return address


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub that takes connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"http://127.0.0.1:{found.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(hub, "LIMIT_S", 0.5)
        yield address


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A folder with a data set."""
    datasets.Dataset.from_dict({"text": ["one"]}).save_to_disk(tmp_path / "saved")
    return str(tmp_path / "saved")


def tokenizer(saved: str) -> Any:
    return huggingface.build(saved, tokenizer="team/words")


def rows(saved: str) -> Any:
    return huggingface.build("team/rows", "train")


def model(saved: str) -> Any:
    return load(transformers, "team/model", {}, ["gpt2"])


CASES = [
    (tokenizer, "args.tokenizer 'team/words'"),
    (rows, "args.path 'team/rows'"),
    (model, "spec.model.args.config 'team/model'"),
]


@pytest.mark.parametrize(("named", "what"), CASES)
def test_a_hub_that_refuses_is_told_at_once(
    refusing: str, saved: str, tmp_path: Path, named: Callable[[str], Any], what: str
) -> None:
    began = time.monotonic()
    with pytest.raises(hub.HubError) as found:
        named(saved)
    assert time.monotonic() - began < hub.LIMIT_S
    told = str(found.value)
    assert told.startswith(f"{what} cannot be loaded: the hub {refusing} cannot be reached (Conn")
    assert told.endswith(f", and {tmp_path / 'home'} has no whole copy of it: {REMEDY}")
    assert constants.HF_HUB_OFFLINE is False, "other code of the user's may ask again"


@pytest.mark.parametrize("named", [named for named, _ in CASES])
def test_a_hub_that_does_not_answer_is_told_soon(
    mute: str, saved: str, named: Callable[[str], Any]
) -> None:
    began = time.monotonic()
    with pytest.raises(hub.HubError, match=f"the hub {mute} (cannot be reached|has not answered)"):
        named(saved)
    assert time.monotonic() - began < 10


def test_the_limit_leaves_time_to_say_so() -> None:
    assert hub.LIMIT_S <= 10


def test_a_name_that_is_looked_up_for_ever_has_the_same_limit(
    monkeypatch: pytest.MonkeyPatch, mute: str, saved: str
) -> None:
    class Session:
        def head(self, address: str, timeout: float) -> None:
            time.sleep(3600)

    monkeypatch.setattr("huggingface_hub.get_session", Session)
    with pytest.raises(hub.HubError, match=r"has not answered within 0\.5 s"):
        tokenizer(saved)


def test_a_hub_that_is_not_to_be_asked_is_not(
    monkeypatch: pytest.MonkeyPatch, refusing: str, saved: str
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hub.HubError, match=r"cannot be loaded: HF_HUB_OFFLINE is set, and "):
        tokenizer(saved)
    assert constants.HF_HUB_OFFLINE is True


@pytest.mark.parametrize("field", ["spec.data.factory", "spec.data.validation.factory"])
def test_the_field_and_the_factory_are_named(refusing: str, saved: str, field: str) -> None:
    spec = FactorySpec(ROWS, {"path": saved, "tokenizer": "team/words"})
    words = f"^{field}: {ROWS} raised HubError: args.tokenizer 'team/words' cannot be loaded: "
    with pytest.raises(FactoryError, match=words):
        call_factory(spec, seed=1, field=field)


def test_an_error_that_is_not_the_hub_s_stays_as_it_is(refusing: str) -> None:
    with pytest.raises(KeyError), hub.asked("args.path", "team/rows"):
        raise KeyError
    assert constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize("name", ["/no/folder", "./no", "~/no", "a/b/c", "no/"])
def test_a_path_is_no_name(refusing: str, caplog: pytest.LogCaptureFixture, name: str) -> None:
    with hub.asked("args.path", name):
        assert constants.HF_HUB_OFFLINE is False
    assert not caplog.text


def test_a_folder_that_cannot_be_written_is_told_as_it_is(refusing: str) -> None:
    error = PermissionError(errno.EACCES, "cannot be written", "/.cache")
    with pytest.raises(PermissionError), hub.asked("args.path", "team/rows"):
        raise error


# ---------------------------------------------------------------- a hub that answers


class Hub(BaseHTTPRequestHandler):
    """It has the configuration of one model."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        if self._answer():
            self.wfile.write(self.body)

    def _answer(self) -> bool:
        is_there = self.path == "/team/model/resolve/main/config.json"
        self.body = json.dumps(CONFIG).encode() if is_there else b""
        self.send_response(200 if is_there else 404)
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        return is_there

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def layers(address: str, home: Path) -> subprocess.CompletedProcess[str]:
    """How many the model has, as a new process with these variables finds."""
    program = (
        "import logging, transformers; from bamboo_agent.models.configurations import load;"
        "logging.basicConfig(level='INFO');"
        "print(load(transformers, 'team/model', {}, ['gpt2']).num_hidden_layers)"
    )
    variables = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(home)}
    variables.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
    )


def test_a_name_is_downloaded_and_its_copy_is_taken_later(
    answering: str, refusing: str, tmp_path: Path
) -> None:
    home = tmp_path / "agents"
    first = layers(answering, home)
    assert first.stdout == "3\n", first.stderr
    words = f"spec.model.args.config team/model: from the hub {answering}, which may take a while"
    assert words in first.stderr
    second = layers(refusing, home)
    assert second.stdout == "3\n", second.stderr
    assert (
        f"cannot be reached (ConnectError: [Errno 111] Connection refused); taking a copy in {home}"
        in second.stderr
    )


def test_a_download_is_told_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, answering: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", answering)
    with caplog.at_level(logging.INFO, hub.__name__), hub.asked("args.path", "team/rows"):
        assert f"args.path team/rows: from the hub {answering}" in caplog.text
