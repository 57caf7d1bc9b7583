"""Nodes that look alike are counted together, so that a step costs no more in a large cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.controller.builders import JOB, pod, spec

from bamboo_core.controller import pod_zones
from bamboo_core.controller.reconcile import CreatePod, step
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    NodeView,
    NodeViews,
    PodPhase,
    TrainingView,
)

A_NODE = st.builds(
    NodeView,
    name=st.sampled_from(["n1", "n2", "n3"]),
    machine=st.sampled_from(["m1", "m2"]),
    zone=st.sampled_from("ab"),
    ready=st.booleans(),
    agents=st.integers(0, 2),
    avoided_until=st.sampled_from([0.0, 9.0]),
)


def counted(nodes: NodeViews) -> Counter[NodeView]:
    return Counter(replace(node, name="", machine="") for node in nodes)


@given(st.lists(A_NODE, min_size=3, max_size=3, unique_by=lambda n: n.name), st.lists(A_NODE))
def test_changes_are_counted_as_if_all_nodes_were_counted_again(
    nodes: list[NodeView], changes: list[NodeView]
) -> None:
    first = NodeViews(nodes)
    before = first.alike.copy()
    found = first.changed(changes)
    assert found.alike == counted(found)
    assert first.alike == before
    assert [node.name for node in found] == [node.name for node in nodes]
    assert dict(found.by_name) == {n.name: n for n in [*nodes, *changes]}
    assert set(found.avoided) == {node for node in found if node.avoided_until}


class Watched(NodeViews):
    """Counts how often all nodes are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[NodeView]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("size", [10, 1000])
def test_a_step_looks_at_its_own_nodes_and_at_kinds_of_nodes(size: int) -> None:
    """However large the cluster is: each job asks after each change of one of its pods."""
    nodes = Watched(NodeView(f"n{i}", f"m{i}", "abc"[i % 3], agents=i % 2) for i in range(size))
    assert len(nodes.alike) == 6
    nodes.looks = 0
    wanted = spec(count=2, stages=4)
    assert pod_zones.room(wanted, nodes) == dict(Counter("abc"[i % 3] for i in range(1, size, 2)))
    new = step(wanted, ClusterView(nodes), TrainingView(), Memory(), job=JOB, now=1.0)
    assert sum(isinstance(action, CreatePod) for action in new.actions) == 8
    waiting = pod(0, 0, node="", phase=PodPhase.PENDING)
    view = ClusterView(nodes, (waiting, pod(0, 1, zone="b", node="n1")))
    step(wanted, view, TrainingView(), new.memory, job=JOB, now=500.0)
    assert nodes.looks == 0
