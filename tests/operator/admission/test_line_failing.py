"""A job whose new pods end soon goes behind the others, and takes nothing from them."""

from __future__ import annotations

import pytest

from bamboo_operator.kube import api

from ..harness import Harness
from .test_line import bind, look, pods, put

MANY = {"runPolicy": {"backoffLimit": 1000, "nodeFailureLimit": 0}}
ZONE = "topology.kubernetes.io/zone"


def end(harness: Harness, name: str) -> None:
    """The agents of all its pods end at once, before they are heard."""
    for pod in pods(harness, name):
        if "status" not in pod or pod["status"].get("phase") != "Failed":
            bind(harness, pod, f"node-{pod['spec']['nodeSelector'][ZONE]}")
            ended = {"exitCode": 143, "reason": "Error", "containerID": "containerd://1"}
            one = {"name": "agent", "ready": False, "restartCount": 0}
            status = {
                "phase": "Failed",
                "containerStatuses": [one | {"state": {"terminated": ended}}],
            }
            meta = pod["metadata"]
            stored = harness.kube.put(api.pod("ns", meta["name"]), pod | {"status": status})
            harness.usage.put(stored)


def alive(harness: Harness, name: str) -> list[str]:
    found = pods(harness, name)
    return [
        pod["metadata"]["name"]
        for pod in found
        if (pod.get("status") or {}).get("phase") != "Failed"
    ]


@pytest.fixture
async def leaving(harness: Harness) -> Harness:
    """The older job starts, the younger one waits, and the older one's starts fail."""
    put(harness, "leave", second=1, **MANY)
    put(harness, "new", second=2)
    for name in ("leave", "new"):
        await look(harness, name)
    assert [len(alive(harness, name)) for name in ("leave", "new")] == [2, 0]
    end(harness, "leave")
    return harness


async def test_a_job_in_the_pause_of_failing_starts_is_not_first(leaving: Harness) -> None:
    leaving.line_woken.clear()
    await look(leaving, "leave")
    assert alive(leaving, "leave") == []
    assert ("ns", "new") in leaving.line_woken or ("ns", "leave") in leaving.line_woken
    await look(leaving, "leave")
    await look(leaving, "new")
    assert len(alive(leaving, "new")) == 2


async def test_it_does_not_take_what_others_have_begun_after_its_pauses(leaving: Harness) -> None:
    for name in ("leave", "leave", "new"):
        await look(leaving, name)
    begun = alive(leaving, "new")
    for seconds in (1, 5, 20, 60, 300):
        leaving.now += seconds
        for name in ("leave", "new"):
            await look(leaving, name)
        assert alive(leaving, "new") == begun
        assert alive(leaving, "leave") == []
    found = await look(leaving, "leave")
    assert found["message"].endswith("job ns/new is first in line")
    assert found["reason"] == "WaitsInLine"


async def test_a_new_operator_knows_it(leaving: Harness) -> None:
    for _ in range(2):
        await look(leaving, "leave")
    leaving.line = leaving.make_line()
    await leaving.line.load(("ns",), leaving.jobs.held)
    assert leaving.line._entries["ns", "leave"].is_refused
    assert not leaving.line._entries["ns", "new"].is_refused


async def test_it_goes_on_when_the_others_have_their_agents(leaving: Harness) -> None:
    for name in ("leave", "leave", "new"):
        await look(leaving, name)
    leaving.line.leave("ns", "new")
    del leaving.kube.objects[api.job("ns", "new")]
    await leaving.reconciler.reconcile("ns", "new")
    leaving.now += 300
    await look(leaving, "leave")
    assert len(alive(leaving, "leave")) == 2
