"""Who is heard: only agents whose pods the operator has made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.core.controller.builders import JOB

from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import AgentReport, Stop, Welcome
from bamboo_operator.kube import api, pod_watch
from bamboo_operator.kube.owners import Owner, owner_of
from bamboo_operator.trust import seals, tls

from ..agent_client import NAMES, refused, review, token_of, until
from ..harness import Harness
from ..memory_api import MemoryApi
from ..objects import SEALS, pod_object

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
    """Neither its pods nor its failures. One that says that the job controls it is deleted with the
    pods whose seal was changed: nobody can tell the two apart."""
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
    assert harness.pods() == pods


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
    assert owner_of(pod_object()) == Owner("job", "uid-1")
    others: dict[str, Any] = {
        "apiVersion": "other.dev/v1alpha1", "kind": "Job", "controller": False,
    }  # fmt: skip
    for key, value in others.items():
        pod = pod_object()
        pod["metadata"]["ownerReferences"][0][key] = value
        assert owner_of(pod) is None
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
    agents = pod_watch.agents(
        add=added.append,
        seen=seen.append,
        deleted=deleted.append,
        is_ours=SEALS.is_ours,
        is_orphan=SEALS.is_orphan,
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
