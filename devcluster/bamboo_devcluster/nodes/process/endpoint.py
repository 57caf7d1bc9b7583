"""The kubelet's HTTPS endpoint of each process node: container logs, health.

Requires a client certificate of the cluster, as the API server has.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from aiohttp import web

from bamboo_devcluster.kube import clock, pki
from bamboo_devcluster.nodes.process.node import NodeAddress
from bamboo_devcluster.nodes.process.pods.container import Container
from bamboo_devcluster.nodes.process.pods.container_log import LogQuery, read_log
from bamboo_devcluster.nodes.process.pods.pod import PodWorker

KUBELET_PORT = 10250
FindWorker = Callable[[str, str], PodWorker | None]


class KubeletServers:
    """One listening endpoint per node, each with a certificate for its own address."""

    def __init__(self, authority: pki.Authority) -> None:
        self._authority = authority
        self._runners: dict[str, web.AppRunner] = {}

    async def open(self, name: str, ip: str, find: FindWorker) -> NodeAddress:
        """Start listening for a node, on any free port if the usual one is taken."""
        pair = self._authority.issue(
            f"node-{name}", common_name=f"system:node:{name}", organization="system:nodes",
            names=[name], addresses=[ip],
        )  # fmt: skip
        context = pki.server_context(pair, self._authority.cert)
        runner = web.AppRunner(_application(find), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, ip, KUBELET_PORT, ssl_context=context).start()
            port = KUBELET_PORT
        except OSError:
            await web.TCPSite(runner, ip, 0, ssl_context=context).start()
            port = runner.addresses[0][1]
        self._runners[name] = runner
        return NodeAddress(ip, port)

    async def close(self, name: str) -> None:
        """Stop listening for a node."""
        if runner := self._runners.pop(name, None):
            runner._shutdown_timeout = 0.1
            await runner.cleanup()

    async def close_all(self) -> None:
        """Stop listening everywhere."""
        for name in list(self._runners):
            await self.close(name)


def _application(find: FindWorker) -> web.Application:
    async def logs(request: web.Request) -> web.StreamResponse:
        return await _send_logs(request, find)

    async def health(request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok")

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs)
    application.router.add_get("/healthz", health)
    return application


async def _send_logs(request: web.Request, find: FindWorker) -> web.StreamResponse:
    names = request.match_info
    worker = find(names["namespace"], names["pod"])
    if worker is None:
        return web.Response(status=404, text=f"pod {names['pod']} does not run on this node")
    found = [c for c in worker.containers if c.record.name == names["container"]]
    if not found:
        return web.Response(status=404, text=f"container {names['container']} not found")
    await worker.node_awake()
    try:
        query, previous = _query(request)
    except ValueError as error:
        return web.Response(status=400, text=str(error))
    path = found[0].log_path(previous=previous)
    if not path.exists():
        return web.Response(status=400, text=_no_log(names, previous=previous))
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    async for text in read_log(path, query, has_ended=_end_of(found[0], path)):
        await response.write(text)
    await response.write_eof()
    return response


def _no_log(names: Mapping[str, str], *, previous: bool) -> str:
    of = f'"{names["container"]}" in pod "{names["pod"]}"'
    if previous:
        return f"previous terminated container {of} not found"
    return f"container {of} is waiting to start"


def _end_of(container: Container, path: Path) -> Callable[[], bool]:
    def has_ended() -> bool:
        is_running = container.process is not None and container.process.is_running
        return path != container.log_path() or not is_running

    return has_ended


def _query(request: web.Request) -> tuple[LogQuery, bool]:
    values = request.query
    since = clock.from_time(values["sinceTime"]) if "sinceTime" in values else None
    if "sinceSeconds" in values:
        import datetime as dt

        since = clock.now() - dt.timedelta(seconds=int(values["sinceSeconds"]))
    query = LogQuery(
        follow=values.get("follow") == "true",
        timestamps=values.get("timestamps") == "true",
        tail_lines=int(values["tailLines"]) if "tailLines" in values else None,
        limit_bytes=int(values["limitBytes"]) if "limitBytes" in values else None,
        since=since,
    )
    return query, values.get("previous") == "true"
