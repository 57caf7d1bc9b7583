"""Which objects are asked for when an agent's token is read."""

from __future__ import annotations

from bamboo_operator.kube import object_views
from bamboo_operator.trust import authentication

from ..harness import AGENTS, Harness
from ..objects import SEALS, node_object


async def test_a_known_node_is_not_asked_for(harness: Harness) -> None:
    token = harness.add_pod(AGENTS[0])
    known = await authentication.authenticate(harness.kube, SEALS, token, harness.nodes.find)
    assert known == await authentication.authenticate(harness.kube, SEALS, token)
    assert known.machine == object_views.machine(node_object("node-a", "a"))
    harness.kube.requests.clear()
    await authentication.authenticate(harness.kube, SEALS, token, harness.nodes.find)
    assert not [path for _, path in harness.kube.requests if "/nodes" in path]


async def test_a_node_newer_than_the_list_is_asked_for(harness: Harness) -> None:
    await harness.nodes.list()
    harness.kube.put("/api/v1/nodes/node-new", node_object("node-new", "b"))
    token = harness.add_pod(AGENTS[0], zone="new")
    peer = await authentication.authenticate(harness.kube, SEALS, token, harness.nodes.find)
    assert (peer.node, peer.zone) == ("node-new", "b")
