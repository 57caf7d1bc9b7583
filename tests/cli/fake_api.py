"""A small fake of the API server: it answers GET from a table and records DELETE and PATCH."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from tests.cli.conftest import make_node, make_pod

JOBS_PATH = "/apis/bamboo.dev/v1alpha1/namespaces/team/bamboojobs"
JOB_PATH = f"{JOBS_PATH}/gpt"
PODS_PATH = "/api/v1/namespaces/team/pods"
EVENTS_PATH = "/api/v1/namespaces/team/events"


class Server(ThreadingHTTPServer):
    """Everything that is not in the table is 404, as from the API server. Bytes are sent raw."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, Any]] = {}
        self.deleted: list[tuple[str, dict[str, Any]]] = []  # path, options
        self.patched: list[tuple[str, str, Any]] = []  # path, kind of patch, body
        self.asked: list[str] = []  # paths with their queries
        self.names: list[list[tuple[str, str]]] = []  # of each request, headers that impersonate
        self.on_delete: Callable[[str], None] = lambda path: None
        self.on_patch: Callable[[Any], None] = lambda body: None


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._note_names()
        self.server.asked.append(self.path)
        missing = (404, {"kind": "Status", "message": "not found", "code": 404})
        self._answer(*self.server.answers.get(self.path.partition("?")[0], missing))

    def do_DELETE(self) -> None:
        self._note_names()
        length = int(self.headers.get("Content-Length") or 0)
        options = json.loads(self.rfile.read(length) or b"{}")
        path = self.path.partition("?")[0]
        code, body = self.server.answers.get(f"DELETE {path}", (200, {"kind": "Pod"}))
        if code == 200:
            self.server.deleted.append((path, options))
            self.server.on_delete(path)
        self._answer(code, body)

    def do_PATCH(self) -> None:
        self._note_names()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code, answer = self.server.answers.get(f"PATCH {self.path}", (200, body))
        if code == 200:
            self.server.patched.append((self.path, self.headers["Content-Type"], body))
            self.server.on_patch(body)
        self._answer(code, answer)

    def _note_names(self) -> None:
        given = [(name.lower(), value) for name, value in self.headers.items()]
        self.server.names.append([each for each in given if each[0].startswith("impersonate-")])

    def _answer(self, code: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        del arguments


@contextmanager
def serving(manifest: dict[str, Any]) -> Iterator[Server]:
    """A server that knows one job, one node, two pods and two events."""
    server = Server()
    events = [
        {"reason": "Second", "message": "b", "lastTimestamp": "2026-01-01T08:00:02Z"},
        {"reason": "First", "message": "a", "eventTime": "2026-01-01T08:00:01.5Z"},
    ]
    pods = [make_pod("gpt-p0-s0-i1", "a"), make_pod("gpt-p0-s1-i2", ownerReferences=[])]
    server.answers = {
        JOB_PATH: (200, manifest),
        JOBS_PATH: (200, {"items": [manifest]}),
        "/api/v1/nodes": (200, {"items": [make_node("a", "zone-a")]}),
        PODS_PATH: (200, {"items": pods}),
        EVENTS_PATH: (200, {"items": events}),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(path: Path, port: int, **user: Any) -> Path:
    """user: fields of the user besides its token."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "me", "user": {"token": "t"} | user}],
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team"}}
        ],
    }
    path.write_text(yaml.safe_dump(config))
    return path
