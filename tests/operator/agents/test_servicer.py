"""Sessions of agents: who is let in, what is passed on, how plans come out."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tests.core.controller.builders import JOB

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.job import leadership
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import PlanRequest
from bamboo_core.protocol.messages import (
    CommitRecord,
    Directive,
    Heartbeat,
    Progress,
    Reconnect,
    Release,
    Stop,
    Welcome,
)
from bamboo_operator.arbiters.job_actor import JobActor
from bamboo_operator.kube import api
from bamboo_operator.kube.api import ApiError
from bamboo_operator.status import durable_facts
from bamboo_proto.v1 import agent_pb2 as pb

from ..agent_client import NAMES, refused, review, token_of, until
from ..harness import Harness


def ticked(actor: JobActor) -> JobActor:
    actor.tick()
    return actor


async def test_a_token_that_is_not_known(served: Harness) -> None:
    served.lead()
    code, text = await refused(served.agent(NAMES[0], token=token_of("nobody")))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "the token is not valid" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"audiences": ["other"]}, "not meant for bamboo-operator"),
        ({"user": {"username": "admin"}}, "does not belong to a service account"),
        ({"user": {"username": "system:serviceaccount:ns:x", "extra": {}}}, "not bound to a pod"),
    ],
)
async def test_tokens_of_others(served: Harness, changes: dict[str, Any], words: str) -> None:
    token = served.add_pod(NAMES[0])
    served.kube.reviews[token] = review(NAMES[0], **changes)
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert words in text


async def test_a_pod_that_was_deleted_cannot_come_back(served: Harness) -> None:
    token = served.add_pod(NAMES[0])
    del served.kube.objects[api.pod("ns", NAMES[0])]
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert (code, text) == (grpc.StatusCode.UNAUTHENTICATED, f"pod ns/{NAMES[0]} is gone")


async def test_a_pod_without_a_job(served: Harness) -> None:
    token = served.add_pod(NAMES[0])
    del served.kube.objects[api.pod("ns", NAMES[0])]["metadata"]["ownerReferences"]
    _, text = await refused(served.agent(NAMES[0], token=token))
    assert "belongs to no BambooJob" in text


async def test_an_unreachable_api_server_is_not_the_agents_fault(served: Harness) -> None:
    token = served.add_pod(NAMES[0])

    def fail(verb: str, path: str) -> None:
        raise ApiError(0, "Unreachable", "away")

    served.kube.fail = fail
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "cannot review tokens" in text


async def test_a_job_without_a_leader(served: Harness) -> None:
    code, _ = await refused(served.agent(NAMES[0], token=served.add_pod(NAMES[0])))
    assert code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_job_whose_actor_is_replaced_before_the_hello(
    served: Harness, *, is_replaced: bool
) -> None:
    """The agent must not wait for ever on an actor that is gone."""
    old = served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    async with asyncio.timeout(10):
        await agent.call.initial_metadata()  # sent before the Hello is awaited
    await served.jobs.forget([JOB.uid])
    new = served.lead() if is_replaced else None
    await agent.hello()
    if new is None:
        assert (await refused(agent))[0] is grpc.StatusCode.UNAVAILABLE
    else:
        async with asyncio.timeout(10):
            assert isinstance(await agent.hear(), Welcome)
        assert new.view().connected == {NAMES[0]}
        await agent.close()
    assert not old.sessions.all()


async def test_an_operator_that_shuts_down(served: Harness) -> None:
    served.lead()
    served.service.is_draining = True
    code, _ = await refused(served.agent(NAMES[0], token=served.add_pod(NAMES[0])))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_an_agent_speaks_only_for_its_own_pod(served: Harness) -> None:
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello(agent=NAMES[1])
    code, text = await refused(agent)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert text == f"the token belongs to pod {NAMES[0]}, not to {NAMES[1]}"


async def test_hello_comes_first_and_once(served: Harness) -> None:
    served.lead()
    token = served.add_pod(NAMES[0])
    agent = served.agent(NAMES[0], token=token)
    await agent.send(Heartbeat(1, 0, 0))
    code, text = await refused(agent)
    assert (code, text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the first message must be a Hello, not heartbeat",
    )
    again = served.agent(NAMES[0], token=token)
    await again.hello()
    await again.hello()
    code, text = await refused(again)
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "Hello was already sent")


async def test_nonsense_ends_the_stream_and_nothing_else(served: Harness) -> None:
    actor = served.lead()
    token = served.add_pod(NAMES[0])
    agent = served.agent(NAMES[0], token=token)
    await agent.hello()
    await agent.call.write(pb.AgentMessage())
    code, _ = await refused(agent)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    other = served.agent(NAMES[0], token=token)
    await other.hello()
    assert isinstance(await other.hear(), Welcome)
    await other.close()
    await until(lambda: len(actor.sessions) == 0)


async def test_welcome(served: Harness) -> None:
    actor = served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0], zone="b"))
    await agent.hello()
    welcome = await agent.hear()
    assert isinstance(welcome, Welcome)
    assert (welcome.term, welcome.job, welcome.job_uid) == (3, "ns/job", JOB.uid)
    assert actor.view().connected == {NAMES[0]}
    await agent.close()
    await until(lambda: not actor.view().connected)


async def test_what_an_agent_says_of_its_place_fits_the_status(served: Harness) -> None:
    """Its node is not known, so its word counts. The API server would refuse the whole status."""
    actor, token = served.lead(), served.add_pod(NAMES[0])
    del served.kube.objects[f"{api.pod('ns', NAMES[0])}"]["spec"]["nodeName"]
    agent = served.agent(NAMES[0], token=token)
    await agent.hello(node="n" * 2000, zone="层" * 500, machine="m" * 2000)
    assert isinstance(await agent.hear(), Welcome)
    hello = actor._leadership.arbiter.state.membership.agents[AgentId(NAMES[0])].hello
    assert (hello.zone, len(hello.node), len(hello.machine)) == ("层" * 20 + "...", 253, 320)
    await agent.close()


async def test_a_new_stream_replaces_the_old_one(served: Harness) -> None:
    actor = served.lead()
    token = served.add_pod(NAMES[0])
    first, second = (served.agent(NAMES[0], token=token) for _ in range(2))
    await first.hello()
    await first.hear()
    await second.hello()
    assert isinstance(await second.hear(), Welcome)
    code, _ = await refused(first)
    assert code is grpc.StatusCode.OK
    assert actor.view().connected == {NAMES[0]}
    await second.close()


async def test_a_token_that_expires_ends_the_stream(served: Harness) -> None:
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0], expires_at=served.now + 0.2))
    await agent.hello()
    code, _ = await refused(agent)
    assert code is grpc.StatusCode.OK


async def test_from_hello_to_directive_facts_first(served: Harness) -> None:
    """Two agents register, are stopped, report, and get a plan that is durable by then.

    Both report one zone, in which the job could not start; the API server knows
    better.
    """
    actor = served.lead()
    actor.tell(DesiredState(pipelines=1))
    agents = [
        served.agent(name, token=served.add_pod(name, zone=zone))
        for name, zone in zip(NAMES, "ab", strict=True)
    ]
    for agent in agents:
        await agent.hello()
        assert isinstance(await agent.hear(), Welcome)
        await agent.ready()
    for agent in agents:
        stop = await agent.hear()
        assert isinstance(stop, Stop)
        await agent.report(stop)
    for agent in agents:
        directive = await agent.hear()
        assert isinstance(directive, Directive)
        assert directive.voters == NAMES
        stored = served.kube.objects[api.job("ns", "job")]
        assert durable_facts.read(stored).plan == directive.fence
    view = actor.view()
    assert (view.planned, view.recovering, view.pipelines) == (True, False, 1)
    assert EventReason.PLANNED in [record.reason for record in served.records]
    before = served.woken
    committed = CommitRecord(0, loss=2.0)
    await agents[0].send(Progress(committed, step_s=0.5), Heartbeat(1, 1, 1))
    await until(lambda: served.woken_later == 1)
    assert actor.view().progress == TrainingProgress(0, loss=2.0, step_s=0.5)
    assert 0 < served.woken <= before + 1
    for agent in agents:
        await agent.close()


async def test_a_defect_of_the_planner_is_tried_again_and_fails_the_job_not_the_operator() -> None:
    def broken(request: PlanRequest, is_wanted: object) -> Any:
        raise ZeroDivisionError("oops")

    served = Harness(plan=broken)
    served.apply()
    await served.serve()
    actor = served.lead()
    actor.tell(DesiredState(pipelines=1))
    agents = [
        served.agent(n, token=served.add_pod(n, zone=z)) for n, z in zip(NAMES, "ab", strict=True)
    ]
    for agent in agents:
        await agent.hello()
        await agent.hear()
        await agent.ready()
    for agent in agents:
        stop = await agent.hear()
        assert isinstance(stop, Stop)
        await agent.report(stop)
    await until(lambda: "ZeroDivisionError: oops; it is asked again" in actor.view().detail)
    state = actor._leadership.arbiter.state
    state.faults = 7  # seven pauses would take minutes
    actor.tell(DesiredState(pipelines=1, least=1, drained=frozenset({AgentId("nobody")})))
    for agent in agents:
        stop = await agent.hear()
        assert isinstance(stop, Stop)
        await agent.report(stop)
    await until(lambda: actor.view().outcome is Outcome.FAILED)
    assert "ZeroDivisionError: oops" in actor.view().message
    assert isinstance(await agents[0].hear(), Release)
    for agent in agents:
        await agent.close()
    await served.close()


async def test_a_defect_of_the_arbiter_restarts_it_with_a_higher_term(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = served.lead()
    token = served.add_pod(NAMES[0])
    agent = served.agent(NAMES[0], token=token)
    await agent.hello()
    await agent.hear()

    def broken(event: object, now: float, heard_at: float) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(leadership, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(actor._leadership.arbiter, "handle", broken)
    actor.tick()
    code, _ = await refused(agent)
    assert code is grpc.StatusCode.OK
    again = served.agent(NAMES[0], token=token)
    await again.hello()
    await until(lambda: len(actor.sessions) == 1)
    assert actor.view().connected == frozenset()
    await until(lambda: ticked(actor).view().connected == {NAMES[0]})
    welcome = await again.hear()
    assert isinstance(welcome, Welcome)
    assert welcome.term == 4
    await again.close()


async def test_an_operator_that_does_not_lead_sends_nothing(served: Harness) -> None:
    actor = served.lead()
    served.is_leading = False
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await until(lambda: len(actor.sessions) == 1)
    actor.tick()
    assert actor.view().connected == frozenset()
    await agent.close()


async def test_agents_are_asked_to_reconnect(served: Harness) -> None:
    actor = served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await agent.hear()
    actor.send_away(1.5)
    assert await agent.hear() == Reconnect(1.5)
    await agent.close()


async def test_a_plan_waits_until_its_facts_are_written(served: Harness) -> None:
    actor = served.lead()
    broken = True

    def fail(verb: str, path: str) -> None:
        if broken and verb == "apply":
            raise ApiError(503, "Unavailable", "etcd is away")

    served.kube.fail = fail
    actor.tell(DesiredState(pipelines=1, suspended=True))
    await until(lambda: ("apply", api.job_status("ns", "job")) in served.kube.requests)
    assert "arbiter" not in served.kube.objects[api.job("ns", "job")].get("status", {})
    broken = False
    await until(lambda: "arbiter" in served.kube.objects[api.job("ns", "job")].get("status", {}))


async def test_a_leader_of_a_higher_term_is_not_overwritten(served: Harness) -> None:
    actor = served.lead()
    path = api.job("ns", "job")
    served.kube.objects[path]["status"] = {"arbiter": {"term": 99}}
    actor.tell(DesiredState(pipelines=1, suspended=True))
    woken = served.woken
    await until(lambda: actor.is_overtaken)
    assert served.kube.objects[path]["status"] == {"arbiter": {"term": 99}}
    assert served.woken > woken
    await until(lambda: not actor._writer.is_busy)
    actor.tell(DesiredState(pipelines=1))
    assert not actor._writer.is_busy
