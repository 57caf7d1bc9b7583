"""Startup, readiness and liveness probes, and lifecycle hooks, of one container run."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp

from bamboo_devcluster.children import launch
from bamboo_devcluster.nodes.process.pods.container import Container

Object = dict[str, Any]


class _Thresholds:
    """Counts consecutive probe results against the thresholds."""

    def __init__(self, probe: Object, *, is_good: bool) -> None:
        self._needed = {
            True: int(probe.get("successThreshold") or 1),
            False: int(probe.get("failureThreshold") or 3),
        }
        self.is_good = is_good
        self._run = 0
        self._last: bool | None = None

    def add(self, result: bool) -> bool:
        """Add a result; return whether enough results in a row agree on it."""
        self._run = self._run + 1 if result is self._last else 1
        self._last = result
        if self._run < self._needed[result]:
            return False
        self.is_good = result
        return True


async def watch_over(container: Container, pod_ip: str, changed: Callable[[], None]) -> None:
    """Run all probes of the container's current run; cancelled when the run ends."""
    spec = container.spec
    if startup := spec.get("startupProbe"):
        if not await _until_started(container, startup, pod_ip):
            return
        container.record.is_started = True
        container.record.is_ready = not spec.get("readinessProbe")
        changed()
    async with asyncio.TaskGroup() as group:
        if probe := spec.get("readinessProbe"):
            group.create_task(_readiness(container, probe, pod_ip, changed))
        if probe := spec.get("livenessProbe"):
            group.create_task(_liveness(container, probe, pod_ip))


async def run_hook(container: Container, hook: Object, pod_ip: str) -> None:
    """Run a lifecycle hook: exec, httpGet or sleep."""
    if "sleep" in hook:
        await asyncio.sleep(hook["sleep"]["seconds"])
        return
    # No timeout here: the caller enforces the grace period.
    if text := await _attempt(container, hook, pod_ip):
        container.ports.event("Warning", "FailedPreStopHook", text)


async def _until_started(container: Container, probe: Object, pod_ip: str) -> bool:
    thresholds = _Thresholds(probe, is_good=False)
    async for failure in _results(container, probe, pod_ip):
        if thresholds.add(not failure):
            if thresholds.is_good:
                return True
            _give_up(container, probe, "Startup", failure)
            return False
    return False


async def _readiness(
    container: Container, probe: Object, pod_ip: str, changed: Callable[[], None]
) -> None:
    thresholds = _Thresholds(probe, is_good=False)
    async for failure in _results(container, probe, pod_ip):
        if failure:
            container.ports.event("Warning", "Unhealthy", f"Readiness probe failed: {failure}")
        if thresholds.add(not failure) and container.record.is_ready != thresholds.is_good:
            container.record.is_ready = thresholds.is_good
            changed()


async def _liveness(container: Container, probe: Object, pod_ip: str) -> None:
    thresholds = _Thresholds(probe, is_good=True)
    async for failure in _results(container, probe, pod_ip):
        if thresholds.add(not failure) and not thresholds.is_good:
            _give_up(container, probe, "Liveness", failure)
            return


def _give_up(container: Container, probe: Object, what: str, failure: str) -> None:
    grace_s = probe.get("terminationGracePeriodSeconds") or container.grace_s
    text = f"Container {container.record.name} failed {what.lower()} probe, will be restarted"
    container.ports.event("Warning", "Unhealthy", f"{what} probe failed: {failure}")
    container.ports.event("Normal", "Killing", text)
    container.restart(float(grace_s))


async def _results(container: Container, probe: Object, pod_ip: str) -> AsyncIterator[str]:
    """Yield the failure text ("" for success) of each probe, at the probe's period."""
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    while True:
        await container.ports.awake()
        yield await _try_once(container, probe, pod_ip)
        await asyncio.sleep(float(probe.get("periodSeconds") or 10))


async def _try_once(container: Container, probe: Object, pod_ip: str) -> str:
    """Return why the probe failed; empty if it succeeded."""
    timeout_s = float(probe.get("timeoutSeconds") or 1)
    try:
        async with asyncio.timeout(timeout_s):
            return await _attempt(container, probe, pod_ip)
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"


async def _attempt(container: Container, action: Object, pod_ip: str) -> str:
    try:
        if "httpGet" in action:
            return await _http(container, action["httpGet"], pod_ip)
        if "tcpSocket" in action:
            return await _tcp(container, action["tcpSocket"], pod_ip)
        if "exec" in action:
            return await _exec(container, action["exec"]["command"])
    except (OSError, aiohttp.ClientError, launch.StartError) as error:
        return str(error)
    return f"process nodes do not support {sorted(action)}"


async def _http(container: Container, action: Object, pod_ip: str) -> str:
    scheme = str(action.get("scheme") or "HTTP").lower()
    port = _port(container, action["port"])
    url = f"{scheme}://{action.get('host') or pod_ip}:{port}{action.get('path') or '/'}"
    headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or []}
    context = ssl.create_default_context()
    context.check_hostname = False  # a kubelet does not verify certificates in probes either
    context.verify_mode = ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url, headers=headers) as response,
    ):
        if 200 <= response.status < 400:
            return ""
        return f"HTTP probe failed with statuscode: {response.status}"


async def _tcp(container: Container, action: Object, pod_ip: str) -> str:
    host, port = action.get("host") or pod_ip, _port(container, action["port"])
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    return ""


async def _exec(container: Container, command: list[str]) -> str:
    if container.process is None or container.order is None:
        return "the container does not run"
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        order = replace(container.order, argv=command)
        process = await launch.start_inside(container.process, order, null)
    finally:
        os.close(null)
    try:
        code = await asyncio.shield(process.exit_code)
    finally:
        process.signal(9)
    return f"exit code {code}" if code else ""


def _port(container: Container, port: int | str) -> int:
    if isinstance(port, int):
        return port
    for item in container.spec.get("ports") or []:
        if item.get("name") == port:
            return int(item["containerPort"])
    raise OSError(f"the container has no port named {port}")
