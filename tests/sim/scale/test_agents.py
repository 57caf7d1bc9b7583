"""Fake agents speak with the production service, and the fake nodes fill up in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.operator.harness import AGENTS, Harness

from bamboo_core.arbiter_state.events import DesiredState
from bamboo_devcluster.kube.client import ApiError
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_sim.scale.agents import FakeAgent, Fleet, Operator, Training
from bamboo_sim.scale.control_plane import GPUS_OF_A_NODE, ControlPlane
from bamboo_sim.scale.kubelets import Kubelets, RunningPod, of_jobs
from bamboo_sim.scale.operator_process import OperatorProcess

JOB = "ns/job"


@pytest_asyncio.fixture
async def harness() -> AsyncIterator[Harness]:
    found = Harness()
    await found.serve()
    yield found
    await found.close()


def pods(harness: Harness) -> list[RunningPod]:
    """The job's agents, with tokens that the API server accepts."""
    return [
        RunningPod("ns", name, f"uid-{name}", JOB, f"node-{zone}", zone, token)
        for name, zone in zip(AGENTS, "ab", strict=True)
        for token in [harness.add_pod(name, zone=zone)]
    ]


async def until(actor: JobActor, condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
            actor.tick()


async def test_a_job_of_fake_agents_trains_and_goes_on_in_a_new_session(harness: Harness) -> None:
    harness.now = 0.0
    actor, fleet = harness.lead(), Fleet(step_s=10.0)
    actor.tell(DesiredState(pipelines=1))
    fleet.add(pods(harness), Operator(harness.port, harness.authority.certificate))
    training = fleet.jobs[JOB]
    await until(actor, lambda: training.is_running)
    for _ in range(2):
        training.commit(10.0)
    await until(actor, lambda: actor.view().progress.committed == 1)
    for session in actor.sessions.all():
        session.close()
    await until(actor, lambda: fleet.state()["sessions"] == 2 * len(AGENTS))
    await until(actor, lambda: training.is_running and fleet.state()["connected"] == len(AGENTS))
    training.commit(10.0)
    await until(actor, lambda: actor.view().progress.committed == 2)
    for agent in fleet.agents:
        await agent.leave()


async def test_a_loss_is_told_and_answered(harness: Harness) -> None:
    harness.now = 0.0
    actor, fleet = harness.lead(), Fleet(step_s=10.0)
    actor.tell(DesiredState(pipelines=1))
    fleet.add(pods(harness), Operator(harness.port, harness.authority.certificate))
    await until(actor, lambda: fleet.jobs[JOB].is_running)
    before = fleet.agents[0].stopped_at
    at = await fleet.lose(JOB, 1)
    (left,) = fleet.agents
    await until(actor, lambda: left.stopped_at > before)
    assert left.stopped_at >= at
    await left.leave()


async def test_an_agent_opens_no_stream_before_its_turn(harness: Harness) -> None:
    """The operator counts streams that wait, and refuses them when there are too many."""
    opened: list[str] = []

    class Channel:
        def stream_stream(self, method: str) -> Any:
            opened.append(method)
            raise AssertionError

    gate = asyncio.Semaphore(0)
    agent = FakeAgent(pods(harness)[0], Training(), gate)
    waits = asyncio.create_task(agent._converse(Channel()))
    await asyncio.wait({waits}, timeout=0)
    assert not opened
    gate.release()
    with pytest.raises(AssertionError):
        await waits
    assert opened


def test_nodes_of_a_zone_fill_up_in_order() -> None:
    kubelets = Kubelets(None, nodes=9)  # type: ignore[arg-type]
    zone = {"topology.kubernetes.io/zone": "zone-b"}
    found = [kubelets._place(zone) for _ in range(2 * GPUS_OF_A_NODE)]
    assert found == [1] * GPUS_OF_A_NODE + [4] * GPUS_OF_A_NODE
    assert [kubelets._place({}) for _ in range(2)] == [0, 0]


class Tokens:
    """The API server's part that gives tokens; one pod is gone."""

    async def post(self, path: str, body: Any) -> Any:
        assert path == "/api/v1/namespaces/ns/serviceaccounts/default/token"
        name = body["spec"]["boundObjectRef"]["name"]
        if name == "gone":
            raise ApiError(404, "NotFound", "no such pod")
        if name == "late":
            raise ApiError(500, "InternalError", "no key")
        return {"status": {"token": f"token of {name}"}}


async def test_a_pod_gets_its_token_when_an_agent_needs_it() -> None:
    kubelets = Kubelets(Tokens(), nodes=9)  # type: ignore[arg-type]
    there, gone, late = (
        RunningPod("ns", name, f"u-{name}", "ns/one", "n", "z")
        for name in ("there", "gone", "late")
    )
    (found,) = await kubelets.with_tokens([there, gone])
    assert found.name == "there"
    assert found.token == "token of there"
    with pytest.raises(ApiError):
        await kubelets.with_tokens([late])


def test_the_log_says_when_something_happened(tmp_path: Path) -> None:
    plane = ControlPlane(None, "", tmp_path, tmp_path, {})  # type: ignore[arg-type]
    operator, now = OperatorProcess(plane), time.monotonic()
    lines = [
        {"time": datetime.fromtimestamp(at, UTC).isoformat(), "result": result}
        for at, result in ((time.time() - 9, "Decision"), (time.time(), "Decision"), (1.0, "Else"))
    ]
    operator.log.write_text("\n".join([*map(json.dumps, lines), "Traceback", ""]))
    assert operator.logged_at(result="Decision") == pytest.approx(now, abs=1.0)
    with pytest.raises(LookupError, match="nothing"):
        operator.logged_at(result="nothing")


def test_pods_belong_to_jobs() -> None:
    first = RunningPod("ns", "a", "u1", "ns/one", "n", "z", "t")
    second = RunningPod("ns", "b", "u2", "ns/two", "n", "z", "t")
    assert of_jobs([first, second]) == {"ns/one": [first], "ns/two": [second]}
