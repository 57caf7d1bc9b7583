"""From the cluster to the arbiter: the desired state, and agents that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

from bamboo_core.api.spec import JobSpec, PipelinesSpec, RunPolicy
from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.controller.view import ClusterView
from bamboo_core.evidence.node_notices import NodeNotice
from bamboo_core.model.ids import AgentId


def desired_state(
    spec: JobSpec,
    view: ClusterView,
    dismissed: AbstractSet[AgentId],
    outdated: AbstractSet[AgentId] = frozenset(),
) -> DesiredState:
    """dismissed: agents that the arbiter has no use for; it does not wait for their pods. outdated:
    agents that get no work, since their pods were made from another template."""
    nodes = view.fleet.by_name
    alive = [pod for pod in view.pods if pod.is_alive]
    leaving = frozenset(p.agent for p in alive if p.node in nodes and nodes[p.node].departing)
    return DesiredState(
        pipelines=spec.pipelines.count,
        suspended=spec.suspend,
        drained=leaving | outdated,
        expected=frozenset(pod.agent for pod in alive) - dismissed - outdated,
        least=spec.pipelines.min,
        bandwidth_gbps=spec.transport.bandwidth_gbps,
        last_write_s=spec.run_policy.last_write_deadline_s,
        restore=spec.restore,
    )


def node_notices(view: ClusterView) -> dict[AgentId, NodeNotice]:
    """The notices of the nodes of live agents, hints included."""
    nodes, found = view.fleet.by_name, dict[AgentId, NodeNotice]()
    for pod in view.pods:
        notice = nodes[pod.node].notice if pod.node in nodes else None
        if pod.is_alive and notice is not None:
            found[pod.agent] = notice
    return found


def certain_losses(view: ClusterView) -> Iterator[tuple[AgentId, str]]:
    """Agents whose pod has ended or whose node is gone, with the evidence."""
    nodes = view.fleet.by_name
    for pod in view.pods:
        if pod.has_ended:
            yield pod.agent, f"its pod has ended with exit code {pod.exit_code}"
        elif pod.node and pod.node not in nodes:
            yield pod.agent, f"its node {pod.node} is gone"


def same_for_arbiter(one: JobSpec, other: JobSpec) -> bool:
    """False: the arbiter must start again, since its part of the spec differs.

    Number of pipelines, bandwidth, ``suspend`` and ``restore`` reach it by the desired state. Of
    the limits, only the deadline of an agent's start concerns it.
    """

    def core(spec: JobSpec) -> JobSpec:
        grid = PipelinesSpec(count=1, stages=spec.pipelines.stages, min=1, max=1)
        policy = RunPolicy(start_deadline_s=spec.run_policy.start_deadline_s)
        network = replace(spec.transport, bandwidth_gbps=1.0)
        same = replace(spec, suspend=False, restore=None)
        return replace(same, run_policy=policy, pipelines=grid, transport=network)

    return core(one) == core(other)


def same_but_for_args(one: JobSpec, other: JobSpec) -> bool:
    """Whether no more than the args of model, data and optimizer differ."""
    training = replace(one.training, optimizer=other.training.optimizer)
    return same_for_arbiter(
        replace(one, model=other.model, data=other.data, training=training), other
    )
