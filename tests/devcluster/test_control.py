"""The daemon's control endpoint."""

import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp

from bamboo_devcluster.control import ControlServer
from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube import pki


class FakeNodes:
    """A node kind without nodes."""

    async def kill(self, name: str) -> None:
        raise NodeError(f"no node {name}")

    def states(self) -> dict[str, str]:
        return {"a": "running"}


async def ask(url: str, client: pki.Pair, authority: Path, method: str, path: str) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(client.cert, client.key)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.request(method, url + path, data='{"name": "x"}') as response,
    ):
        return response.status, await response.text()


async def test_only_the_administrator_controls_nodes(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path)
    admin = authority.issue("admin", common_name="devcluster-admin")
    other = authority.issue("other", common_name="kube-scheduler")
    stopped: list[bool] = []
    control = ControlServer(FakeNodes(), lambda: stopped.append(True))  # type: ignore[arg-type]
    url = await control.open("127.0.0.1", authority)
    for method, path in (("GET", "/nodes"), ("POST", "/do/kill"), ("POST", "/stop")):
        status, text = await ask(url, other, authority.cert, method, path)
        assert (status, text) == (403, "only the cluster's administrator may do this")
    assert await ask(url, admin, authority.cert, "GET", "/nodes") == (200, '{"a": "running"}')
    status, text = await ask(url, admin, authority.cert, "POST", "/do/kill")
    assert (status, json.loads(text)) == (400, {"error": "no node x"})
    status, text = await ask(url, admin, authority.cert, "POST", "/do/nonsense")
    assert (status, json.loads(text)) == (404, {"error": "no such action"})
    assert not stopped
    await control.close()
