"""The client of the API server: its watch, its errors, and the fixtures' `wait_for`."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bamboo_devcluster.kube import client, pki
from bamboo_devcluster.kube.client import ApiError, KubeApi, UnreachableError
from bamboo_devcluster.testing import wait_for


class FakeServer:
    """An API server that lists one pod and answers watches from a script."""

    def __init__(self) -> None:
        self.watches: list[list[Any]] = []
        self.versions: list[str] = []
        self.lists = 0

    async def pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            items = [pod("listed", str(self.lists))]
            return web.json_response(
                {"metadata": {"resourceVersion": str(self.lists)}, "items": items}
            )
        self.versions.append(request.query["resourceVersion"])
        events = self.watches.pop(0) if self.watches else []
        return web.Response(text="".join(json.dumps(event) + "\n" for event in events))

    async def broken(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=500, text="no JSON")


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[tuple[FakeServer, KubeApi]]:
    authority = pki.Authority(tmp_path / "pki")
    pair = authority.issue("server", common_name="server", addresses=["127.0.0.1"])
    authority.issue("admin", common_name="devcluster-admin")
    server, application = FakeServer(), web.Application()
    application.router.add_get("/pods", server.pods)
    application.router.add_get("/broken", server.broken)
    runner = web.AppRunner(application)
    await runner.setup()
    context = pki.server_context(pair, authority.cert)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    async with KubeApi.from_directory(tmp_path, url) as api:
        yield server, api
    await runner.cleanup()


async def collect(api: KubeApi, count: int) -> list[tuple[str, Any]]:
    seen = []
    async for kind, item in api.watch("/pods"):
        seen.append((kind, [i["metadata"]["name"] for i in item] if kind == "SYNC" else
                     item["metadata"]["name"]))  # fmt: skip
        if len(seen) == count:
            break
    return seen


async def test_a_watch_resumes_after_a_lost_connection(fake) -> None:
    server, api = fake
    server.watches = [
        [{"type": "ADDED", "object": pod("a", "5")}, {"type": "BOOKMARK", "object": pod("", "7")}],
        [{"type": "DELETED", "object": pod("a", "8")}],
    ]
    assert await collect(api, 3) == [("SYNC", ["listed"]), ("ADDED", "a"), ("DELETED", "a")]
    assert server.versions == ["1", "7"]


async def test_a_watch_lists_again_when_its_version_has_expired(fake, monkeypatch) -> None:
    monkeypatch.setattr(client, "_RETRY_DELAY_S", 0)
    server, api = fake
    gone = {"code": 410, "reason": "Expired", "message": "too old"}
    server.watches = [[{"type": "ERROR", "object": gone}]]
    assert await collect(api, 2) == [("SYNC", ["listed"])] * 2
    assert server.lists == 2


async def test_errors_carry_code_and_text(fake) -> None:
    _, api = fake
    with pytest.raises(ApiError, match="500 : no JSON"):
        await api.get("/broken")
    with pytest.raises(ApiError, match="404"):
        await api.get("/nowhere")


async def test_a_closed_port_is_unreachable(tmp_path: Path) -> None:
    pki.Authority(tmp_path / "pki").issue("admin", common_name="devcluster-admin")
    async with KubeApi.from_directory(tmp_path, "https://127.0.0.1:9") as api:
        with pytest.raises(UnreachableError):
            await api.get("/readyz")
        with pytest.raises(AssertionError, match=r"/readyz did not become as expected"):
            await wait_for(api, "/readyz", bool, timeout_s=0.2)
