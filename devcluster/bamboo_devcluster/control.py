"""The daemon's control endpoint, used by `Cluster` and the command line.

JSON over HTTPS with client certificates; served on the cluster's own loopback address.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from bamboo_devcluster.errors import DevclusterError
from bamboo_devcluster.kube import pki
from bamboo_devcluster.kube.client import ApiError, UnreachableError
from bamboo_devcluster.nodes.interface import NodeKind
from bamboo_devcluster.spec import NodeSpec

_OPERATOR = "devcluster-admin"


class ControlServer:
    """Serves the node operations of one cluster."""

    def __init__(self, nodes: NodeKind, stop: Callable[[], None]) -> None:
        self._nodes, self._stop = nodes, stop
        self._runner: web.AppRunner | None = None
        self._actions: dict[str, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "add": lambda a: nodes.add(NodeSpec.from_json(a["spec"])),
            "kill": lambda a: nodes.kill(a["name"]),
            "freeze": lambda a: nodes.freeze(a["name"]),
            "thaw": lambda a: nodes.thaw(a["name"]),
            "remove": lambda a: nodes.remove(a["name"]),
            "break_devices": lambda a: nodes.break_devices(a["name"]),
            "repair_devices": lambda a: nodes.repair_devices(a["name"]),
            "cut": lambda a: nodes.cut(a["name"], a["other"]),
            "heal": lambda a: nodes.heal(a["name"], a["other"]),
            "notice": lambda a: nodes.notice(a["name"], float(a["lead_s"])),
            "kill_pod": lambda a: nodes.kill_pod(a["namespace"], a["name"]),
        }

    async def open(self, ip: str, authority: pki.Authority) -> str:
        """Start listening; return the URL."""
        pair = authority.issue("control", common_name="devcluster-control", addresses=[ip])
        application = web.Application()
        application.router.add_get("/nodes", self._list)
        application.router.add_post("/do/{action}", self._do)
        application.router.add_post("/stop", self._on_stop)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = pki.server_context(pair, authority.cert)
        await web.TCPSite(self._runner, ip, 0, ssl_context=context).start()
        return f"https://{ip}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner:
            await self._runner.cleanup()

    async def _list(self, request: web.Request) -> web.Response:
        _authorize(request)
        return web.json_response(self._nodes.states())

    async def _do(self, request: web.Request) -> web.Response:
        _authorize(request)
        action = self._actions.get(request.match_info["action"])
        if action is None:
            return web.json_response({"error": "no such action"}, status=404)
        try:
            await action(json.loads(await request.text()))
        except (DevclusterError, ApiError, UnreachableError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    async def _on_stop(self, request: web.Request) -> web.Response:
        _authorize(request)
        # Stop only after the response has been sent.
        asyncio.get_running_loop().call_later(0.05, self._stop)
        return web.json_response({})


def _authorize(request: web.Request) -> None:
    certificate = request.get_extra_info("peercert") or {}
    names = [value for row in certificate.get("subject", ()) for key, value in row
             if key == "commonName"]  # fmt: skip
    if names != [_OPERATOR]:
        raise web.HTTPForbidden(text="only the cluster's administrator may do this")
