"""The DaemonSet's process: which taints it writes, and that it writes nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.agent.notices.metadata_server import Ec2

from bamboo_agent import node_watcher
from bamboo_agent.node_watcher import Keeper, Node, NodeError, taints_with
from bamboo_agent.notices import watch
from bamboo_agent.notices.sources import News
from bamboo_agent.supervisor.config import ConfigError
from bamboo_core.api.spec import NoticeSource

OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
NOW = 1000.0


def leaving(at: int, lead_s: int) -> dict[str, Any]:
    return {"key": "bamboo.dev/leaving", "value": f"{at}-{lead_s}", "effect": "NoSchedule"}


def older(at: int) -> dict[str, Any]:
    """As an earlier version has written it."""
    return leaving(at, 0) | {"value": str(at)}


RISK = {"key": "bamboo.dev/at-risk", "effect": "PreferNoSchedule"}


@pytest.mark.parametrize(
    ("present", "leaves_at", "is_at_risk", "is_first", "wanted"),
    [
        ([OTHER], inf, False, True, [OTHER]),
        ([OTHER], 1030.5, False, False, [OTHER, leaving(1030, 30)]),
        ([OTHER], 990, False, False, [OTHER, leaving(990, 0)]),
        ([OTHER], inf, True, False, [OTHER, RISK]),
        ([RISK], 1030, True, False, [leaving(1030, 30), RISK]),
        ([leaving(1010, 120)], 1030, False, False, [leaving(1010, 120)]),  # the earliest counts
        ([leaving(1030, 120)], 1010, False, False, [leaving(1010, 10)]),
        ([leaving(1010, 9)], inf, False, True, [leaving(1010, 9)]),  # this process was restarted
        ([older(1010)], inf, False, True, [older(1010)]),
        ([leaving(900, 9), RISK, OTHER], inf, False, True, [OTHER]),  # the node was restarted
        ([leaving(900, 9)], inf, False, False, [leaving(900, 9)]),  # it may go a little later
        ([leaving(820, 9), OTHER], inf, False, False, [OTHER]),  # it is not going to
        ([leaving(820, 9)], 1060, False, False, [leaving(1060, 60)]),  # the cloud still says so
        ([older(900) | {"value": "soon"}], inf, False, True, []),
    ],
)
def test_taints(
    present: list[dict[str, Any]],
    leaves_at: float,
    is_at_risk: bool,
    is_first: bool,
    wanted: list[dict[str, Any]],
) -> None:
    found = taints_with(
        present,
        leaves_at=leaves_at,
        is_at_risk=is_at_risk,
        is_first=is_first,
        is_restarted=False,
        now=NOW,
    )
    assert found == wanted


@pytest.mark.parametrize(
    ("leaves_at", "wanted"), [(inf, [OTHER]), (1900, [OTHER, leaving(1900, 900)])]
)
def test_what_was_said_of_the_machine_before_its_restart_does_not_count(
    leaves_at: float, wanted: list[dict[str, Any]]
) -> None:
    """It was restarted before the announced time. Another notice may have come since."""
    found = taints_with(
        [leaving(1600, 900), OTHER],
        leaves_at=leaves_at,
        is_at_risk=False,
        is_first=True,
        is_restarted=True,
        now=NOW,
    )
    assert found == wanted


class FakeApi:
    """One node. Its version changes with each write; an old version is a conflict. clock: its own
    one, in seconds since 1970."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] = lambda: NOW
        self.taints: list[dict[str, Any]] = [OTHER]
        self.annotations: dict[str, str] = {}
        self.version = 7
        self.requests: list[tuple[str, str, str]] = []
        self.written = asyncio.Event()
        self.fails = 0
        self.is_changed_by_others = False
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path, request.headers["Authorization"]))
        if self.fails:
            self.fails -= 1
            return web.Response(status=500)
        if request.method == "PATCH":
            assert request.headers["Content-Type"] == "application/merge-patch+json"
            body = await request.json()
            if body["metadata"]["resourceVersion"] != str(self.version):
                return web.Response(status=409)
            assert body.keys() == {"metadata", "spec"}
            self.taints = body["spec"]["taints"]
            for key, value in body["metadata"]["annotations"].items():
                self.annotations.pop(key, None)
                self.annotations |= {} if value is None else {key: value}
            self.version += 1
            self.written.set()
        answer = {
            "metadata": {"resourceVersion": str(self.version), "annotations": self.annotations},
            "spec": {"taints": self.taints} if self.taints else {},
        }
        if self.is_changed_by_others:
            self.is_changed_by_others = False
            self.version += 1
        date = "unknown" if self.clock() < 0 else formatdate(self.clock(), usegmt=True)
        return web.json_response(answer, headers={"Date": date})


def keeper_of(node: Node, boot: str = "boot-1", at: float = NOW, *, off_s: float = 0.0) -> Keeper:
    """The node's clocks show this time; the one that can be set is wrong by ``off_s``."""
    return Keeper(node, boot, clock=lambda: at, wall=lambda: at + off_s)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    found = FakeApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/nodes/node-a"
    yield found
    await runner.cleanup()


@pytest.fixture
async def node(api: FakeApi, tmp_path: Path) -> AsyncIterator[Node]:
    (tmp_path / "token").write_text("t\n")
    async with aiohttp.ClientSession() as http:
        yield Node(api.url, tmp_path / "token", http)


async def test_a_notice_of_the_cloud_becomes_a_taint(api: FakeApi, node: Node) -> None:
    cloud = Ec2()
    cloud.documents["spot/instance-action"] = '{"action": "stop", "time": "2100-01-01T00:00:00Z"}'
    await cloud.start()
    keeper = keeper_of(node)
    names = [NoticeSource.AUTO]
    tasks = [
        asyncio.create_task(keeper.run()),
        asyncio.create_task(watch.run(names, keeper.announce, address=cloud.address)),
    ]
    async with asyncio.timeout(10):
        await api.written.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await cloud.stop()
    other, own = api.taints
    assert other == OTHER
    assert (own["key"], own["effect"]) == ("bamboo.dev/leaving", "NoSchedule")
    assert {(path, token) for _, path, token in api.requests} == {
        ("/api/v1/nodes/node-a", "Bearer t")
    }


async def test_nothing_is_written_without_need(api: FakeApi, node: Node) -> None:
    keeper = keeper_of(node)
    await keeper.update()
    keeper.announce(NoticeSource.GCE, News("k", 30.0, "x"))
    await keeper.update()
    await keeper.update()
    assert [method for method, _, _ in api.requests] == ["GET", "GET", "PATCH", "GET"]
    assert api.taints == [OTHER, leaving(1030, 30)]


async def test_a_conflict_or_an_api_server_that_fails_is_tried_again(
    api: FakeApi, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    api.fails, api.is_changed_by_others = 2, True
    keeper = keeper_of(node)
    keeper.announce(NoticeSource.AZURE, News("k", 30.0, "x"))
    task = asyncio.create_task(keeper.run(retry_s=0.01))
    async with asyncio.timeout(10):
        await api.written.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.taints == [OTHER, leaving(1030, 30)]
    assert "status 500" in caplog.text
    assert "status 409" in caplog.text


async def test_the_taint_goes_with_the_boot_that_it_was_said_of(api: FakeApi, node: Node) -> None:
    keeper = keeper_of(node)
    keeper.announce(NoticeSource.AZURE, News("k", 900.0, "x"))
    await keeper.update()
    assert api.annotations == {node_watcher.BOOT_ANNOTATION: "boot-1"}
    api.clock = lambda: NOW + 300
    await keeper_of(node, at=NOW + 300).update()
    assert api.taints == [OTHER, leaving(1900, 900)]
    await keeper_of(node, "boot-2", at=NOW + 300).update()
    assert (api.taints, api.annotations) == ([OTHER], {})


@pytest.mark.parametrize("off_s", [-300.0, 0.0, 300.0])
@pytest.mark.parametrize("is_told", [True, False])
async def test_the_end_is_by_the_api_servers_clock(
    api: FakeApi, node: Node, off_s: float, is_told: bool
) -> None:
    """R22: the operator compared the node's clock with its own. Its other one began at the boot."""
    api.clock = lambda: NOW + 5_000_000 if is_told else -1.0
    keeper = Keeper(node, "boot-1", clock=lambda: 60.0, wall=lambda: NOW + 5_000_000 + off_s)
    keeper.announce(NoticeSource.AWS_SPOT, News("k", 120.0, "x"))
    await keeper.update()
    end = int(NOW + 5_000_000 + 120 + (0 if is_told else off_s))
    assert api.taints == [OTHER, leaving(end, 120)]
    await keeper.update()
    assert [method for method, *_ in api.requests] == ["GET", "PATCH", "GET"]


async def test_clocks_that_differ_a_little_write_nothing_anew(api: FakeApi, node: Node) -> None:
    """A Date has whole seconds, so the difference is never the same."""
    keeper = keeper_of(node)
    keeper.announce(NoticeSource.GCE, News("k", 30.0, "x"))
    for second in (0, -2, 1, -1, 2):
        api.clock = lambda second=second: NOW + second  # type: ignore[misc]
        await keeper.update()
    assert api.taints == [OTHER, leaving(1030, 30)]
    assert [method for method, *_ in api.requests].count("PATCH") == 1


@pytest.mark.parametrize("is_still_said", [False, True])
async def test_a_node_that_outlives_its_announced_end(
    api: FakeApi, node: Node, is_still_said: bool
) -> None:
    """The cloud is asked afresh first. What it does not say any more does not stay."""
    api.taints = [OTHER, leaving(1000, 30)]
    now = [1000.0 - 1]
    api.clock = lambda: now[0]
    keeper = Keeper(node, "boot-1", clock=lambda: now[0], wall=lambda: now[0])
    await keeper.update()  # of an earlier process, which was told so
    now[0] += 1 + node_watcher.ASK_AGAIN_S
    task = asyncio.create_task(keeper.run())
    async with asyncio.timeout(10):
        await keeper.outlived()
        assert api.taints == [OTHER, leaving(1000, 30)]
        now[0] = 1000 + node_watcher.STAYS_S
        lead_s = 60.0
        keeper.announce(NoticeSource.GCE, News("k", lead_s, "x", is_hint=not is_still_said))
        await api.written.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    said = leaving(int(now[0] + lead_s), int(lead_s)) if is_still_said else RISK
    assert api.taints == [OTHER, said]


async def test_a_taint_goes_without_a_further_word(
    api: FakeApi, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cloud has taken its notice back, or the machine was restarted before its time."""
    monkeypatch.setattr(node_watcher, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(node_watcher, "STAYS_S", 0.02)
    api.taints = [OTHER, leaving(int(NOW), 30)]
    clock = itertools.count(NOW - 0.05, 0.01).__next__
    keeper = Keeper(node, "boot-1", clock=clock, wall=lambda: NOW - 0.05)
    task = asyncio.create_task(keeper.run())
    async with asyncio.timeout(10):
        await keeper.outlived()
        await api.written.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert api.taints == [OTHER]


async def test_an_api_server_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    async with aiohttp.ClientSession() as http:
        for token in ("token", "missing"):
            with pytest.raises(NodeError, match="GET http://127"):
                await Node("http://127.0.0.1:1/n", tmp_path / token, http).read()


ENV = {
    "BAMBOO_NODE": "node-a",
    "KUBERNETES_SERVICE_HOST": "fd00::1",
    "KUBERNETES_SERVICE_PORT": "443",
}


def test_the_nodes_address() -> None:
    assert node_watcher.node_url(ENV) == "https://[fd00::1]:443/api/v1/nodes/node-a"
    for name in ENV:
        with pytest.raises(ConfigError, match=f"^{name} is not set"):
            node_watcher.node_url(ENV | {name: ""})


async def test_without_an_account(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*ca.crt: No such file"):
        await node_watcher.serve(ENV, "boot-1", tmp_path)


def test_the_process_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAMBOO_NODE", raising=False)
    with pytest.raises(SystemExit) as ended:
        node_watcher.main()
    assert ended.value.code == (
        "bamboo-node-watcher: BAMBOO_NODE is not set; run this as the chart's DaemonSet does."
    )
