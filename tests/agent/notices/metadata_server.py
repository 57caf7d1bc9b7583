"""A metadata server of a test, over real HTTP on this machine, in the dialect of each cloud."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    """What was asked. Names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Answer:
    """raw: sent as it is, instead of the rest."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None

    def encode(self) -> bytes:
        if self.raw is not None:
            return self.raw
        body = self.body.encode()
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{k}: {v}" for k, v in self.headers.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class MetadataServer:
    """``heads``: the bytes of all requests. ``broken`` overrides every answer while it is set.

    said_at: the server's time, in seconds since 1970, or date: what it says instead; None: it does
    not say its time.
    """

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.broken: Answer | None = None
        self.is_hanging = False
        self.address = ""
        self.said_at: float | None = None
        self.date: str | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        host, _, port = (self.address or "127.0.0.1:0").rpartition(":")
        self._server = await asyncio.start_server(self._serve, host, int(port))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._converse(reader, writer)
        except asyncio.CancelledError:
            pass  # by stop
        finally:
            self._serving.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if self.is_hanging:
                await reader.read()  # until the client gives up
            answer = self.broken or await self.answer(_parse(head))
            date = self.date if self.said_at is None else formatdate(self.said_at, usegmt=True)
            said = {} if date is None else {"Date": date}
            writer.write(replace(answer, headers=answer.headers | said).encode())
            await writer.drain()

    async def answer(self, request: Request) -> Answer:
        """The dialect."""
        return Answer(404)


class Gce(MetadataServer):
    """Compute Engine. Values are below instance/; :meth:`change` answers those who wait."""

    def __init__(self) -> None:
        super().__init__()
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.versions = dict.fromkeys(self.values, 1)
        self._changed = asyncio.Condition()

    async def change(self, name: str, value: str) -> None:
        async with self._changed:
            self.values[name] = value
            self.versions[name] += 1
            self._changed.notify_all()

    async def answer(self, request: Request) -> Answer:
        if request.headers.get("metadata-flavor") != "Google":
            return Answer(403)
        if request.path == "/":
            return Answer(200, "computeMetadata/\n", {"Metadata-Flavor": "Google"})
        name = request.path.removeprefix("/computeMetadata/v1/instance/")
        if name not in self.values or request.method != "GET":
            return Answer(404)
        if request.query.get("wait_for_change") == "true":
            last = request.query.get("last_etag", self._etag(name))
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(float(request.query["timeout_sec"])):
                        await self._changed.wait_for(lambda: self._etag(name) != last)
        headers = {"Metadata-Flavor": "Google", "ETag": self._etag(name)}
        return Answer(200, self.values[name], headers)

    def _etag(self, name: str) -> str:
        return f"{self.versions[name]:016x}"


class Ec2(MetadataServer):
    """EC2 with IMDSv2. A token is good for ``uses`` requests."""

    def __init__(self, uses: int = 10**9) -> None:
        super().__init__()
        self.documents: dict[str, str] = {}
        self.uses = uses
        self.tokens = 0
        self._left = 0

    async def answer(self, request: Request) -> Answer:
        if request.path == "/latest/api/token":
            return self._token(request)
        if (
            request.headers.get("x-aws-ec2-metadata-token") != f"token-{self.tokens}"
            or not self._left
        ):
            return Answer(401)
        self._left -= 1
        document = self.documents.get(request.path.removeprefix("/latest/meta-data/"))
        return Answer(404) if document is None else Answer(200, document)

    def _token(self, request: Request) -> Answer:
        life = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if request.method != "PUT" or not life.isdecimal() or int(life) > 21600:
            return Answer(400)
        self.tokens += 1
        self._left = self.uses
        return Answer(200, f"token-{self.tokens}")


class Azure(MetadataServer):
    """Azure. ``publish`` makes a new document of scheduled events."""

    def __init__(self, name: str = "aks-gpu-1_0") -> None:
        super().__init__()
        self.name = name
        self.document: dict[str, Any] = {"DocumentIncarnation": 1, "Events": []}

    def publish(self, *events: dict[str, Any]) -> None:
        number = self.document["DocumentIncarnation"] + 1
        self.document = {"DocumentIncarnation": number, "Events": list(events)}

    async def answer(self, request: Request) -> Answer:
        if request.headers.get("metadata") != "true" or request.method != "GET":
            return Answer(400)
        if request.path == "/metadata/versions":
            return Answer(200, '{"apiVersions": ["2021-02-01"]}')
        if request.path == "/metadata/instance/compute/name" and "api-version" in request.query:
            return Answer(200, self.name)
        if request.path == "/metadata/scheduledevents" and "api-version" in request.query:
            return Answer(200, json.dumps(self.document))
        return Answer(404)


def event(kind: str, *resources: str, **changed: Any) -> dict[str, Any]:
    """A scheduled event as Azure writes it."""
    found = {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(resources),
        "NotBefore": "Fri, 02 Jan 2026 03:04:35 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return found | changed


def _parse(head: bytes) -> Request:
    first, *lines = head.decode("ascii").rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    parts = urlsplit(target)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Request(method, parts.path, query, headers)
