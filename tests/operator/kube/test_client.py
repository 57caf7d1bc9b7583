"""Answers that are not the API server's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import aiohttp.web
import pytest
import yaml

from bamboo_core.api.limits import RECURSION_LIMIT
from bamboo_core.api.reasons import JobPhase
from bamboo_operator.kube.api import FEW, ApiError
from bamboo_operator.kube.client import Kube, connect


@pytest.mark.parametrize("text", ["<html>login</html>", "", "[]", '"ok"'])
async def test_the_answer_of_a_proxy_is_an_error_like_any_other(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any) -> tuple[int, str]:
        return 200, text

    kube = Kube(None)
    monkeypatch.setattr(kube, "_send", answer)
    with pytest.raises(
        ApiError, match=r"0 Unreachable: the answer is not the API server's"
    ) as found:
        await kube.create("/api/v1/namespaces/x/events", {})
    assert found.value.code == 0


@pytest.mark.parametrize("code", [200, 502])
async def test_a_long_answer_of_a_proxy_is_cut_by_bytes(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any) -> tuple[int, str]:
        return code, "层" * 999

    kube = Kube(None)
    monkeypatch.setattr(kube, "_send", answer)
    with pytest.raises(ApiError) as found:
        await kube.create("/api/v1/namespaces/x/events", {})
    assert found.value.message.endswith("层" * 165 + "...")
    assert len(found.value.message.encode()) < 600


async def test_a_deep_job_does_not_make_the_others_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The API server accepts args 10000 levels deep from whoever may create a job."""
    deep = '{"a":' * 9900 + "1" + "}" * 9900

    async def answer(*_: Any) -> tuple[int, str]:
        return 200, f'{{"items": [{{"spec": {deep}}}, {{"spec": {{}}}}]}}'

    kube, limit = Kube(None), sys.getrecursionlimit()
    monkeypatch.setattr(kube, "_send", answer)
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        assert len(await kube.list("/apis/bamboo.dev/v1alpha1/bamboojobs")) == 2
    finally:
        sys.setrecursionlimit(limit)


async def test_jobs_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 500 could have 15 GB in memory."""
    read: list[int] = []
    read_before: list[int] = []

    async def answer(_: str, __: str, query: dict[str, str], *___: Any) -> tuple[int, str]:
        read_before.append(len(read))
        first, size = int(query.get("continue", 0)), int(query["limit"])
        found, after = list(range(first, min(25, first + size))), first + size
        meta = {"continue": str(after)} if after < 25 else {}
        return 200, json.dumps({"items": [{"n": n} for n in found], "metadata": meta})

    kube = Kube(None)
    monkeypatch.setattr(kube, "_send", answer)
    async for job in kube.each("/apis/bamboo.dev/v1alpha1/bamboojobs"):
        read.append(job["n"])
    assert read == list(range(25))
    assert read_before == [0, FEW, 2 * FEW]


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/nodes", "nodes"),
        ("/api/v1/namespaces/x", "namespaces"),
        ("/api/v1/namespaces/x/pods/y", "pods"),
        ("/apis/bamboo.dev/v1alpha1/namespaces/x/bamboojobs/y/status", "bamboojobs"),
        ("/apis/kueue.x-k8s.io", "apis"),  # which versions there are
    ],
)
async def test_requests_are_counted_by_resource(
    path: str, resource: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any) -> tuple[int, str]:
        return 200, "{}"

    kube, seen = Kube(None), []
    monkeypatch.setattr(kube, "_send", answer)
    kube.observe_with(lambda verb, resource, code, seconds: seen.append((verb, resource, code)))
    await kube.get(path)
    assert seen == [("GET", resource, 200)]


class _Stream:
    """An answer that comes in pieces."""

    def __init__(self, status: int, *pieces: bytes | Exception) -> None:
        self.status, self.pieces, self.is_closed = status, pieces, False
        self.response = self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def read(self) -> bytes:
        return b"".join(piece for piece in self.pieces if isinstance(piece, bytes))

    def close(self) -> None:
        self.is_closed = True


async def watched(stream: _Stream, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    async def answer(verb: str, path: str, query: dict[str, str], *_: Any) -> _Stream:
        assert (query["fieldSelector"], query["resourceVersion"]) == ("a=b", "7")
        assert query["labelSelector"] == "c"
        return stream

    kube = Kube(None)
    monkeypatch.setattr(kube, "_open", answer)
    try:
        return [
            event async for event in kube.watch("/api/v1/pods", fields="a=b", labels="c", since="7")
        ]
    finally:
        assert stream.is_closed


async def test_events_of_a_watch_come_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Stream(200, b'{"type": "ADD', b'ED"}\n{"type": "DELETED"}\n{"ty', b'pe": "X"}\n')
    assert [event["type"] for event in await watched(stream, monkeypatch)] == [
        "ADDED", "DELETED", "X",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (_Stream(403, b'{"reason": "Forbidden", "message": "no"}'), 403),
        (_Stream(200, b'{"type": "ADDED"}\n', aiohttp.ClientPayloadError("cut")), 0),
        (_Stream(200, b"<html>\n"), 0),
    ],
)
async def test_a_watch_that_breaks_is_an_error_like_any_other(
    stream: _Stream, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApiError) as found:
        await watched(stream, monkeypatch)
    assert found.value.code == code


@asynccontextmanager
async def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kube]:
    """A client of a server that sends back the path, the query and the body of each request."""

    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        said = {"path": request.path, "query": dict(request.query)}
        if request.can_read_body:
            said["body"] = await request.json()
        return aiohttp.web.json_response(said)

    application = aiohttp.web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    server = aiohttp.web.AppRunner(application)
    await server.setup()
    await aiohttp.web.TCPSite(server, "127.0.0.1", 0).start()
    port = server.addresses[0][1]
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "x",
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    kube = await connect()
    try:
        yield kube
    finally:
        await kube.close()
        await server.cleanup()


async def test_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"status": {"phase": JobPhase.RUNNING, "none": None, "pair": (1, 2.5)}}
    async with served(tmp_path, monkeypatch) as kube:
        found = await kube.create("/api/v1/namespaces/x/pods", body)
        listed = await kube.apply("/api/v1/namespaces/x/pods/y", {}, manager="m")
    assert found == {
        "path": "/api/v1/namespaces/x/pods",
        "query": {"fieldValidation": "Strict"},
        "body": {"status": {"phase": "Running", "none": None, "pair": [1, 2.5]}},
    }
    assert listed["query"] == {"fieldManager": "m", "force": "true"}
    assert listed["body"] == {}


async def test_no_request_waits_for_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two for each request, to look for ~/.netrc and a proxy, took a tenth of the operator's time
    while pods were made."""
    threads: list[Any] = []
    async with served(tmp_path, monkeypatch) as kube:
        monkeypatch.setattr(
            asyncio.get_running_loop(), "run_in_executor", lambda *args: threads.append(args)
        )
        assert (await kube.get("/api/v1/nodes") or {})["path"] == "/api/v1/nodes"
    assert threads == []
