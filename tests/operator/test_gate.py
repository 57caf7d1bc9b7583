"""Who is heard: only agents whose pods the operator has made, and nobody too loudly."""

from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest
from tests.core.controller.builders import JOB

from bamboo_core.arbiter.events import DesiredState
from bamboo_core.model.ids import Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.messages import AgentMessage, AgentReport, Heartbeat, Stop, Welcome
from bamboo_operator import accounts, api, entrance, handlers, seals, servicer, tls
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode
from bamboo_wire.options import AGENT_OPTIONS

from . import harness as harness_of_tests
from .agents import review, token_of
from .harness import Harness
from .memory_api import MemoryApi
from .objects import SEALS, pod_object
from .test_servicer import NAMES, refused, until

EVIL = "evil"


def forged(name: str = NAMES[0], **meta: Any) -> dict[str, Any]:
    """A pod in another namespace that claims to be an agent of the job, copied from a real one."""
    pod = pod_object(name)
    pod["metadata"] |= {"namespace": EVIL, "uid": f"evil-{name}"} | meta
    return pod


def put(harness: Harness, pod: dict[str, Any]) -> str:
    """Create the pod, and let the API server vouch for a token that is bound to it."""
    meta = pod["metadata"]
    harness.kube.put(api.pod(meta["namespace"], meta["name"]), pod)
    token = token_of(meta["uid"])
    found = review(meta["name"])
    found["user"]["username"] = f"system:serviceaccount:{meta['namespace']}:default"
    found["user"]["extra"]["authentication.kubernetes.io/pod-uid"] = [meta["uid"]]
    harness.kube.reviews[token] = found
    return token


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    pod = pod_object()
    change(pod)
    return pod


def no_seal(pod: dict[str, Any]) -> None:
    del pod["metadata"]["annotations"]


def odd_seal(pod: dict[str, Any]) -> None:
    pod["metadata"]["annotations"][seals.ANNOTATION] = "\u00e9"


def other_name(pod: dict[str, Any]) -> None:
    pod["metadata"]["name"] = NAMES[1]


def other_job(pod: dict[str, Any]) -> None:
    pod["metadata"]["ownerReferences"][0]["uid"] = "uid-2"


def other_job_name(pod: dict[str, Any]) -> None:
    pod["metadata"]["ownerReferences"][0]["name"] = "job-p0"


FORGERIES = [
    forged(),
    *(changed(x) for x in (no_seal, odd_seal, other_name, other_job, other_job_name)),
]
IDS = ["another namespace", "no seal", "odd seal", "another name", "another job", "another owner"]


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize("pod", FORGERIES, ids=IDS)
async def test_a_forged_pod_gets_no_session(served: Harness, pod: dict[str, Any]) -> None:
    actor = served.lead()
    before = actor.view()
    agent = served.agent(pod["metadata"]["name"], token=put(served, copy.deepcopy(pod)))
    code, text = await refused(agent)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "no operator has made pod" in text
    assert actor.view() == before
    assert served.refused == ["UNAUTHENTICATED"]


async def test_a_sealed_pod_reaches_only_the_job_of_its_own_namespace(served: Harness) -> None:
    """The seal is right, so an operator made it, but for a job that only shares the UID."""
    served.lead()
    pod = forged()
    pod["metadata"]["annotations"][seals.ANNOTATION] = SEALS.seal(
        namespace=EVIL, job="job", job_uid=JOB.uid, pod=NAMES[0]
    )
    code, text = await refused(served.agent(NAMES[0], token=put(served, pod)))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "no operator leads the job" in text


@pytest.mark.parametrize("term", [4, 1 << 40])
async def test_no_hello_deposes_the_leader(served: Harness, term: int) -> None:
    """The session is refused. The agent's older one and the job go on."""
    actor = served.lead()
    token = served.add_pod(NAMES[0])
    honest = served.agent(NAMES[0], token=token)
    await honest.hello()
    assert isinstance(await honest.hear(), Welcome)
    liar = served.agent(NAMES[0], token=token)
    await liar.hello(fence=Fence(0, term, 1))
    code, text = await refused(liar)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert text == f"the message is of term {term}; this operator leads the job in term 3"
    assert actor.view().connected == {NAMES[0]}
    await honest.ready()
    await until(lambda: actor.view().has_begun)
    await honest.close()


async def test_a_report_of_a_later_term_enters_no_plan(served: Harness) -> None:
    actor = served.lead()
    actor.tell(DesiredState(pipelines=1))
    agents = [
        served.agent(n, token=served.add_pod(n, zone=z)) for n, z in zip(NAMES, "ab", strict=True)
    ]
    for agent in agents:
        await agent.hello()
        await agent.hear()
        await agent.ready()
    stop = await agents[0].hear()
    assert isinstance(stop, Stop)
    await agents[0].send(AgentReport(stop.fence, Fence(0, 1 << 40, 0), {}, frozenset()))
    assert (await refused(agents[0]))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert not actor.view().planned
    await agents[1].close()


# ---------------------------------------------------------------- reconcile


async def test_forged_pods_change_nothing_of_a_job(harness: Harness) -> None:
    """Not its pods, nor its failures, nor the pods that are deleted."""
    harness.apply()
    await harness.reconcile()  # makes the pods
    await harness.reconcile()
    pods, status = harness.pods(), copy.deepcopy(harness.status)
    ended = {"terminated": {"exitCode": 2, "message": "UserCodeFailed: evil"}}
    bad = pod_object("job-p0-s0-i77", phase="Failed", state=ended)
    no_seal(bad)
    put(harness, bad)
    harness.deleted_pods.deleted(bad)
    assert SEALS.is_ours(pod_object())
    await harness.reconcile()
    assert harness.status == status
    assert harness.pods() == sorted([*pods, "job-p0-s0-i77"])


async def test_a_pod_that_the_operator_makes_is_its_own_again_after_a_restart(
    harness: Harness,
) -> None:
    harness.apply()
    await harness.reconcile()
    made = harness.kube.objects[api.pod("ns", harness.pods()[0])]
    assert SEALS.is_ours(made)
    assert not seals.Seals(b"another key" * 3).is_ours(made)


async def test_the_sweep_leaves_the_pods_of_others_alone(harness: Harness) -> None:
    bad = pod_object()
    no_seal(bad)
    put(harness, bad)
    put(harness, pod_object(NAMES[1]))
    await harness.reconcile()  # the job is gone
    assert harness.pods() == [NAMES[0]]


def test_only_a_bamboojob_that_controls_a_pod_is_its_owner() -> None:
    assert seals.owner_of(pod_object()) == seals.Owner("job", "uid-1")
    others: dict[str, Any] = {
        "apiVersion": "other.dev/v1alpha1", "kind": "Job", "controller": False,
    }  # fmt: skip
    for key, value in others.items():
        pod = pod_object()
        pod["metadata"]["ownerReferences"][0][key] = value
        assert seals.owner_of(pod) is None
        assert not SEALS.is_ours(pod)


async def test_pods_of_a_deleted_job_are_deleted_once(harness: Harness) -> None:
    """A second deletion could not end them sooner; of many pods, it would be many requests."""
    leaving = pod_object(NAMES[0])
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:09Z"
    put(harness, leaving)
    put(harness, pod_object(NAMES[1]))
    await harness.reconcile()  # the job is gone
    asked = [path for verb, path in harness.kube.requests if verb == "delete"]
    assert asked == [api.pod("ns", NAMES[1])]


async def test_only_our_pods_wake_a_job() -> None:
    added: list[object] = []
    deleted: list[object] = []
    seen: list[str] = []
    agents = handlers.agents(
        add=added.append, seen=seen.append, deleted=deleted.append, is_ours=SEALS.is_ours
    )
    unlabelled = pod_object()
    del unlabelled["metadata"]["labels"]
    for pod in (forged(), unlabelled, pod_object()):
        agents.there(pod)
    assert added == [("ns", "job")]
    assert deleted == []
    for pod in (forged(), pod_object()):
        agents.gone(pod)
    assert added == [("ns", "job")] * 2
    assert deleted == [pod_object()]
    assert seen == ["pods"] * 5


# ---------------------------------------------------------------- the key


async def test_the_key_is_made_once_and_kept() -> None:
    kube = MemoryApi()
    await tls.load_authorities(kube, "sys")
    first = await seals.load(kube, "sys", tls.SECRET)
    again = await seals.load(kube, "sys", tls.SECRET)
    words = {"namespace": "ns", "job": "job", "job_uid": "uid-1", "pod": "pod"}
    assert first.seal(**words) == again.seal(**words)


async def test_a_new_authority_keeps_the_key() -> None:
    """Else the agents of running jobs would become strangers."""
    kube = MemoryApi()
    await tls.load_authorities(kube, "sys")
    first = await seals.load(kube, "sys", tls.SECRET)
    path = api.secret("sys", tls.SECRET)
    kube.objects[path]["data"]["tls.crt"] = ""
    await tls.load_authorities(kube, "sys")
    assert kube.objects[path]["data"]["tls.crt"]
    again = await seals.load(kube, "sys", tls.SECRET)
    assert again.is_ours(pod_object()) == first.is_ours(pod_object())
    assert again._key == first._key


# ---------------------------------------------------------------- bounds


async def test_a_large_hello_is_refused_unread(served: Harness) -> None:
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello(node="x" * (9 << 10))
    code, text = await refused(agent)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("hello: has 9")
    assert text.endswith("bytes; at most 8192 are allowed")


async def test_no_message_may_be_longer_than_the_longest_report(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator does not trust the agent to keep the limit."""
    kept = [option for option in AGENT_OPTIONS if "max_send" not in option[0]]
    monkeypatch.setattr(harness_of_tests, "AGENT_OPTIONS", kept)
    served.lead()
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    big = pb.AgentMessage(hello=pb.Hello(node="x" * (5 << 20)))
    with suppress(grpc.aio.AioRpcError):
        await agent.call.write(big)
    assert (await refused(agent))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_pod_has_two_streams_at_most(served: Harness) -> None:
    """The newest wins, even if it has not said Hello yet."""
    served.lead()
    token = served.add_pod(NAMES[0])
    agents = []
    for _ in range(4):
        agents.append(served.agent(NAMES[0], token=token))
        async with asyncio.timeout(60):
            await agents[-1].call.initial_metadata()
    for old in agents[:2]:
        assert (await refused(old))[0] is grpc.StatusCode.ABORTED
    assert served.service._of_pods.count(f"uid-{NAMES[0]}") == entrance.STREAMS_OF_A_POD
    await agents[3].hello()
    assert isinstance(await agents[3].hear(), Welcome)
    for agent in agents[2:]:
        await agent.close()
    await until(lambda: served.service._of_pods.count(f"uid-{NAMES[0]}") == 0)


async def test_a_flood_of_messages_is_read_slowly(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "MESSAGE_S", accounts.OF_POD.burst / 20)
    monkeypatch.setattr(accounts, "OF_POD", accounts.OF_POD._replace(rate=1e-9))
    actor = served.lead()
    heard: list[object] = []
    monkeypatch.setattr(actor, "receive", lambda session, message: heard.append(message))
    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await agent.hear()
    for number in range(40):
        await agent.send(Heartbeat(number, 0, 0))
    await until(lambda: served.pauses != [])
    assert 15 < len(heard) < 40
    await agent.close()


async def test_a_new_stream_pays_for_the_old_one(served: Harness) -> None:
    """Else a pod that connects again and again could keep the operator busy for ever."""
    served.lead()
    token = served.add_pod(NAMES[0])
    for is_first in (True, False):
        agent = served.agent(NAMES[0], token=token)
        if is_first:
            await agent.hello()
            assert isinstance(await agent.hear(), Welcome)
            assert served.pauses == []
            with served.service._accounts.stream(f"uid-{NAMES[0]}", JOB.uid) as payer:
                payer.take(100.0)
        else:
            await until(lambda: served.pauses != [])
            assert served.pauses[0] > 100.0
        await agent.close()


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_long_message_is_parsed_in_a_thread(
    served: Harness, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The longest take most of a second, in which nothing else would happen."""
    parsed_in: list[threading.Thread] = []
    counts: list[float] = []
    actor = served.lead()
    agent_bytes, heard_at = decode.agent_bytes, actor._heard_at

    def noting(data: bytes) -> AgentMessage:
        parsed_in.append(threading.current_thread())
        counts.append(heard_at(math.inf))
        return agent_bytes(data)

    agent = served.agent(NAMES[0], token=served.add_pod(NAMES[0]))
    await agent.hello()
    await agent.hear()
    monkeypatch.setattr(decode, "agent_bytes", noting)
    items = frozenset(Item.out(0, 1, n) for n in range(size // 10))
    await agent.send(AgentReport(Fence(), Fence(), {}, items))
    await until(lambda: heard_at(math.inf) == math.inf and parsed_in != [])
    assert (parsed_in[0] is threading.main_thread()) == (size == 100)
    assert counts[0] < math.inf  # meanwhile nobody's silence counts
    await agent.close()


def test_what_the_messages_of_a_pod_and_a_job_may_cost() -> None:
    now = [0.0]
    known = accounts.Accounts(lambda: now[0])
    pod, job = accounts.OF_POD, accounts.OF_JOB
    with known.stream("pod-1", "job") as one:
        one.take(pod.burst - accounts.STREAM_S)
        assert one.pause_s() == 0.0
        one.take(1.0)
        assert one.pause_s() == pytest.approx(1.0 / pod.rate)
    now[0] += 1.0
    with known.stream("pod-1", "job") as again:
        assert again.pause_s() == pytest.approx((1.0 + accounts.STREAM_S) / pod.rate - 1.0)
    now[0] += 1000.0
    with known.stream("pod-1", "job") as one, known.stream("pod-2", "job") as other:
        one.take(job.burst + 1.0)
        assert other.pause_s() > 0.0  # the job pays, too
        with known.stream("pod-3", "job-2") as stranger:
            assert stranger.pause_s() == 0.0


def test_a_job_may_cost_as_much_more_as_it_has_agents() -> None:
    """After a loss a thousand agents report at once."""
    known = accounts.Accounts(lambda: 0.0)
    with ExitStack() as streams:
        payers = [streams.enter_context(known.stream(f"pod-{n}", "job")) for n in range(1000)]
        for payer in payers:
            payer.take(0.01)
        assert payers[0].pause_s() == 0.0


def test_accounts_that_owe_nothing_are_forgotten() -> None:
    now = [0.0]
    known = accounts.Accounts(lambda: now[0])
    for number in range(1000):
        with known.stream(f"pod-{number}", f"job-{number}"):
            now[0] += 1.0
    assert len(known) < 100


def test_how_many_streams_may_wait() -> None:
    waiting = entrance.Waiting()
    with ExitStack() as flood:
        for _ in range(entrance.MOST_OF_AN_ADDRESS):
            flood.enter_context(waiting.one("ipv4:10.0.0.1"))
        with pytest.raises(entrance.FullError), waiting.one("ipv4:10.0.0.1"):
            pass
        with waiting.one("ipv4:10.0.0.2"):
            assert len(waiting) == entrance.MOST_OF_AN_ADDRESS + 1
    assert len(waiting) == 0


async def test_a_stream_that_waits_for_its_turn_is_refused_when_too_many_do(
    served: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "MOST_OF_AN_ADDRESS", 0)
    served.lead()
    code, text = await refused(served.agent(NAMES[0], token=served.add_pod(NAMES[0])))
    assert (code, "too many streams" in text) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_a_slow_review_is_given_up(served: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer, "_IDENTIFY_S", 0.05)
    served.lead()
    token = served.add_pod(NAMES[0])

    async def never(token: str) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(served.service, "_authenticate", never)
    code, text = await refused(served.agent(NAMES[0], token=token))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "in time" in text
