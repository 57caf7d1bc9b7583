"""Taints its own node when the cloud gives notice of the node's end.

    python -m bamboo_agent.node_watcher

For clusters whose pods cannot reach the metadata server: the chart's ``notices.daemonSet`` runs it
in the network of each node. It asks what agents would ask, and the operator takes the taint for a
notice to the agents on the node.

The taint says when the node goes by the API server's clock, since the node's own may be wrong.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import aiohttp

from bamboo_agent.notices import watch
from bamboo_agent.notices.sources import News, rfc1123
from bamboo_agent.supervisor.config import ConfigError, metadata_address, notice_sources
from bamboo_core.api.spec import NoticeSource
from bamboo_core.evidence import node_notices
from bamboo_core.evidence.node_notices import AT_RISK_TAINT, LEAVING_TAINT

log = logging.getLogger(__name__)

Taint = dict[str, Any]
"""As the API server writes it: key, value, effect and more."""

RETRY_S = 1.0
STAYS_S = 180.0
"""So long after its announced end a node that is still there loses the taint, unless the cloud
still says that it goes."""
ASK_AGAIN_S = 120.0
"""So long after the announced end the cloud is asked afresh."""
BOOT_ANNOTATION = "bamboo.dev/leaving-boot"
"""Of the node: the boot ID of the machine that was going to leave."""
_SAME_S = 2.0
"""Clocks that differ by no more are taken for equal, since a Date has whole seconds."""
_REQUEST_S = 5.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NodeError(Exception):
    """The API server refused or could not be reached; try again."""


def taints_with(
    present: list[Taint],
    *,
    leaves_at: float,
    is_at_risk: bool,
    is_first: bool,
    is_restarted: bool,
    now: float,
) -> list[Taint]:
    """The node's taints as they should be. Those of others stay as they are.

    leaves_at, now: seconds since 1970; inf: there is no notice. is_first: this process has just
    begun; what an earlier one has left is removed if its time has passed, since the node is still
    there. is_restarted: the machine has been started since the taint was set, so it has left
    already.
    """
    own = {t.get("key"): str(t.get("value", "")) for t in present}
    value = node_notices.leaving(leaves_at, now) if leaves_at < inf else ""
    known, stays_s = node_notices.left_by(own.get(LEAVING_TAINT, "")), 0.0 if is_first else STAYS_S
    if known is not None and not is_restarted and now < known[0] + stays_s:
        value = own[LEAVING_TAINT] if known[0] <= leaves_at else value
    is_at_risk = is_at_risk or (AT_RISK_TAINT in own and not is_first)
    found = [t for t in present if t.get("key") not in (LEAVING_TAINT, AT_RISK_TAINT)]
    if value:
        found.append({"key": LEAVING_TAINT, "value": value, "effect": "NoSchedule"})
    if is_at_risk:
        found.append({"key": AT_RISK_TAINT, "effect": "PreferNoSchedule"})
    return found


def announced_end(taints: list[Taint]) -> float:
    """When the node goes by its own taint, in seconds since 1970; inf: there is none."""
    values = [str(t.get("value", "")) for t in taints if t.get("key") == LEAVING_TAINT]
    found = [end[0] for value in values if (end := node_notices.left_by(value)) is not None]
    return min(found, default=inf)


class Node:
    """One node at the API server."""

    def __init__(self, url: str, token_file: Path, http: aiohttp.ClientSession) -> None:
        self._url, self._token_file, self._http = url, token_file, http
        self.said_at: float | None = None
        """When the API server answered last, by its clock, in seconds since 1970; None: unknown."""

    async def read(self) -> dict[str, Any]:
        """The node. NodeError."""
        return await self._request("GET", None)

    async def set_taints(self, taints: list[Taint], version: str, boot: str | None) -> None:
        """Replace all taints of a node that still has this resource version, and the annotation.
        NodeError."""
        meta = {"resourceVersion": version, "annotations": {BOOT_ANNOTATION: boot}}
        await self._request("PATCH", {"metadata": meta, "spec": {"taints": taints}})

    async def _request(self, method: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/merge-patch+json"}
        limit = aiohttp.ClientTimeout(total=_REQUEST_S)
        try:
            headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            async with self._http.request(
                method, self._url, json=body, headers=headers, timeout=limit
            ) as response:
                if response.status != 200:
                    raise NodeError(f"{method} {self._url}: status {response.status}")
                found: dict[str, Any] = await response.json()
                self.said_at = rfc1123(response.headers.get("Date"))
                return found
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise NodeError(f"{method} {self._url}: {type(error).__name__}: {error}") from error


class Keeper:
    """Keeps the node's taints as the notices say. boot: ID of the machine's present boot.

    clock: it only goes on. wall: seconds since 1970, until the API server has said its time.
    """

    def __init__(
        self,
        node: Node,
        boot: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._node, self._boot, self._clock = node, boot, clock
        self._zero = wall() - clock()  # time of the API server when our clock was 0
        self._leaves_at, self._is_at_risk, self._is_first = inf, False, True
        self._tainted_until = inf  # the announced end by the taint; inf: there is no taint
        self._asked = False  # the cloud was asked afresh after that
        self._changed, self._outlived = asyncio.Event(), asyncio.Event()
        self._changed.set()

    def announce(self, source: NoticeSource, news: News) -> None:
        """A notice or a hint has come."""
        del source
        if news.is_hint:
            self._is_at_risk = True
        else:
            self._leaves_at = min(self._leaves_at, self._clock() + news.lead_s)
        self._changed.set()

    async def run(self, retry_s: float = RETRY_S) -> None:
        """Write the taints after each change, until it has worked. Look again after the node's
        announced end."""
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._changed.wait()
            except TimeoutError:
                if not self._asked:
                    self._asked, self._leaves_at = True, inf
                    self._outlived.set()
                    continue
            self._changed.clear()
            try:
                await self.update()
            except NodeError as error:
                log.warning("the node's taints are not written yet: %s", error)
                self._changed.set()
                await asyncio.sleep(retry_s)

    def _pause_s(self) -> float | None:
        """Until something is due without a notice."""
        if self._tainted_until == inf:
            return None
        after_s = STAYS_S if self._asked else ASK_AGAIN_S
        return max(0.0, self._tainted_until + after_s - self._clock())

    async def outlived(self) -> None:
        """Return when the node has outlived its announced end: what does the cloud say now?"""
        await self._outlived.wait()
        self._outlived.clear()

    async def update(self) -> None:
        """Read the node and write its taints if they are not right. NodeError."""
        node, now = await self._node.read(), self._clock()
        if (said_at := self._node.said_at) is not None and abs(
            said_at - now - self._zero
        ) > _SAME_S:
            self._zero = said_at - now
        present = (node.get("spec") or {}).get("taints") or []
        marked = (node["metadata"].get("annotations") or {}).get(BOOT_ANNOTATION)
        wanted = taints_with(
            present,
            leaves_at=self._leaves_at + self._zero,
            is_at_risk=self._is_at_risk,
            is_first=self._is_first,
            is_restarted=marked not in (None, self._boot),
            now=now + self._zero,
        )
        before = {(t.get("key"), t.get("value", "")) for t in present}
        ends_at = announced_end(wanted) - self._zero
        if before != {(t.get("key"), t.get("value", "")) for t in wanted}:
            mark = self._boot if ends_at < inf else None
            await self._node.set_taints(wanted, node["metadata"]["resourceVersion"], mark)
            log.info("the node's taints: %s", ", ".join(t["key"] for t in wanted) or "none")
        if ends_at != self._tainted_until:
            self._tainted_until, self._asked = ends_at, False
        self._is_first = False


def node_url(env: Mapping[str, str]) -> str:
    """Where the API server has this node. ConfigError names the variable that is missing."""
    for name in ("BAMBOO_NODE", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        if not env.get(name):
            raise ConfigError(f"{name} is not set; run this as the chart's DaemonSet does.")
    host, port = env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{port}/api/v1/nodes/{env['BAMBOO_NODE']}"


async def serve(env: Mapping[str, str], boot: str, account: Path = _ACCOUNT) -> None:
    """Run for ever. ConfigError if the environment is wrong. boot: ID of the machine's boot."""
    url, names, address = node_url(env), notice_sources(env), metadata_address(env)
    try:
        trust = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except OSError as error:
        raise ConfigError(f"cannot read {account}/ca.crt: {error.strerror}.") from error
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as http:
        keeper = Keeper(Node(url, account / "token", http), boot)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.run())
            while True:
                asking = tasks.create_task(watch.run(names, keeper.announce, address=address))
                await keeper.outlived()
                asking.cancel()


def main() -> None:
    """Entry point."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        asyncio.run(serve(os.environ, _BOOT.read_text().strip()))
    except ConfigError as error:
        sys.exit(f"bamboo-node-watcher: {error}")


if __name__ == "__main__":
    main()
