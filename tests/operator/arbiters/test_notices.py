"""Notices at the operator: a real agent on a cloud that preempts it, and taints of nodes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agent.notices.metadata_server import Gce

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.arbiter_state.events import Record
from bamboo_core.job.leadership import NODE
from bamboo_core.model.ids import AgentId
from bamboo_operator.kube import api
from bamboo_operator.monitoring.registry import Metrics

from ..harness import AGENTS, Harness

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
NAME = "job-p0-s0-i0"


async def until_departing(harness: Harness) -> None:
    actor = harness.lead()
    async with asyncio.timeout(100):
        while not actor.view().departing:  # noqa: ASYNC110 - an agent's process says it
            await asyncio.sleep(0.02)


@pytest.fixture
async def cloud() -> AsyncIterator[Gce]:
    server = Gce()
    await server.start()
    yield server
    await server.stop()


async def test_an_agent_that_its_cloud_preempts_is_replaced(
    served: Harness, cloud: Gce, tmp_path: Path
) -> None:
    """From the metadata server through the agent's process to the pod that takes its place."""
    await cloud.change("preempted", "TRUE")
    await served.reconcile()
    token = served.add_pod(NAME)
    (tmp_path / "token").write_text(token)
    (tmp_path / "ca").write_bytes(served.authority.certificate)
    env = os.environ | {
        "BAMBOO_OPERATOR_ADDRESS": f"127.0.0.1:{served.port}",
        "BAMBOO_OPERATOR_NAME": "bamboo-operator",
        "BAMBOO_JOB": "ns/job",
        "BAMBOO_AGENT": NAME,
        "BAMBOO_POD_UID": f"uid-{NAME}",
        "BAMBOO_POD_IP": "127.0.0.1",
        "BAMBOO_NODE": "node-a",
        "BAMBOO_TOKEN_FILE": str(tmp_path / "token"),
        "BAMBOO_CA_FILE": str(tmp_path / "ca"),
        "BAMBOO_HEALTH_PORT": "0",
        "BAMBOO_NOTICES": "Auto",
        "BAMBOO_METADATA_ADDRESS": cloud.address,
    }
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bamboo_sim.fleet.processes.run_supervisor", "tests.agent.supervisor.dummy_worker"),
        cwd=ROOT,
        env=env,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await until_departing(served)
        before = set(served.pods())
        await served.reconcile()
        new = set(served.pods()) - before
        assert [name.rpartition("-i")[0] for name in new] == ["job-p0-s0"]
    finally:
        agent.kill()
        await agent.wait()


def taint(harness: Harness, key: str, value: str = "") -> None:
    path = f"{api.nodes()}/node-a"
    spec = {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}
    harness.kube.put(path, harness.kube.objects[path] | {"spec": spec})
    harness.nodes.changed()


@pytest.mark.parametrize("off_s", [0, 300])
async def test_a_taint_is_a_notice_to_the_agents_on_the_node(served: Harness, off_s: int) -> None:
    """With the time that the taint says; never with more than was left when it was set."""
    actor = served.lead()
    await served.reconcile()
    agent = served.agent(NAME, token=served.add_pod(NAME, zone="a"))
    served.add_pod(AGENTS[1], zone="b")
    await agent.hello()
    await agent.hear()
    taint(served, "bamboo.dev/leaving", f"{int(served.now) + 25 + off_s}-25")
    await served.reconcile()
    state = actor._leadership.arbiter.state
    assert state.desired is not None
    assert state.desired.drained == {AgentId(NAME)}
    left_s = state.membership.agents[AgentId(NAME)].departs_at - asyncio.get_running_loop().time()
    assert 20 < left_s <= 25
    await agent.close()


async def test_a_taint_is_told_once(harness: Harness) -> None:
    harness.lead()
    await harness.reconcile()
    harness.add_pod(NAME, zone="a")
    taint(harness, "karpenter.sh/disrupted")
    for _ in range(3):
        await harness.reconcile()
    told = [r for r in harness.records if r.reason is EventReason.AGENT_LEAVING]
    assert [r.message for r in told] == [
        f"{NAME} is to leave its node: it has the taint karpenter.sh/disrupted"
    ]
    taint(harness, "DeletionCandidateOfClusterAutoscaler")
    await harness.reconcile()
    hints = [r for r in harness.records if r.reason is EventReason.AGENT_AT_RISK]
    assert len(hints) == 1
    await harness.jobs.close()


def test_notices_are_counted_by_source() -> None:
    """An agent may say anything; the label has few values."""
    metrics = Metrics(list)
    for source in ("", "Gce", NODE, "<script>", "x" * 9999):
        facts = {EventFact.SOURCE: source}
        metrics.notice(Record(Severity.NORMAL, EventReason.AGENT_LEAVING, "m", facts))
    facts = {EventFact.SOURCE: "AwsRebalance"}
    metrics.notice(Record(Severity.NORMAL, EventReason.AGENT_AT_RISK, "m", facts))
    metrics.notice(Record(Severity.NORMAL, EventReason.AGENT_LEFT, "m"))
    found = {
        sample.labels["source"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "bamboo_notices_total"
    }
    assert found == {"Signal": 1, "Gce": 1, "Node": 1, "Other": 2, "AwsRebalance": 1}
