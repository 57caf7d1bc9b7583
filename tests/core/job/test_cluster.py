"""What the cluster means for the arbiter."""

from __future__ import annotations

from dataclasses import replace

from tests.core.controller.builders import nodes, pod, spec

from bamboo_core.api.spec import Channel, RunPolicy, TransportSpec
from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.controller.view import ClusterView, PodPhase
from bamboo_core.job.cluster import certain_losses, desired_state, same_for_arbiter


def test_agents_on_departing_nodes_are_drained() -> None:
    (node,) = nodes(a=1)
    leaving = pod(0, 0)
    view = ClusterView((replace(node, departing=True),), (leaving,))
    wanted = frozenset({leaving.agent})
    found = desired_state(spec(), view, set())
    assert (found.pipelines, found.drained, found.expected) == (1, wanted, wanted)


def test_only_agents_of_use_with_a_live_pod_are_expected() -> None:
    ended = replace(pod(0, 1), phase=PodPhase.FAILED)
    useless, wanted = pod(1, 0), pod(1, 1)
    view = ClusterView(nodes(a=1), (ended, useless, wanted))
    found = desired_state(spec(count=2, suspend=True), view, {useless.agent})
    expected = frozenset({wanted.agent})
    assert found == DesiredState(2, suspended=True, expected=expected, bandwidth_gbps=10.0)


def test_the_bandwidth_of_the_newest_spec_reaches_the_arbiter() -> None:
    fast = spec(transport=TransportSpec(bandwidth_gbps=100.0))
    assert desired_state(fast, ClusterView((), ()), set()).bandwidth_gbps == 100.0


def test_an_ended_pod_or_a_missing_node_is_a_certain_loss() -> None:
    ended = pod(0, 0, phase=PodPhase.FAILED, exit_code=137)
    homeless, waiting = pod(0, 1, zone="z"), replace(pod(1, 0), node="")
    beside = pod(1, 1, exit_code=137)  # a sidecar of it runs on
    view = ClusterView(nodes(a=1), (ended, homeless, waiting, beside))
    assert list(certain_losses(view)) == [
        (ended.agent, "its pod has ended with exit code 137"),
        (homeless.agent, "its node node-z is gone"),
        (beside.agent, "its pod has ended with exit code 137"),
    ]


def test_most_limits_suspension_and_the_number_of_pipelines_do_not_concern_the_arbiter() -> None:
    limits = RunPolicy(backoff_limit=9)
    assert same_for_arbiter(spec(), spec(count=3, suspend=True, run_policy=limits))
    assert same_for_arbiter(spec(), spec(transport=TransportSpec(bandwidth_gbps=100.0)))
    assert not same_for_arbiter(spec(), spec(transport=TransportSpec(Channel.TCP)))
    assert not same_for_arbiter(spec(), spec(stages=3))
    assert not same_for_arbiter(spec(), spec(run_policy=RunPolicy(start_deadline_s=9)))
