"""Why an agent has ended: by order, with its node, or neither."""

from __future__ import annotations

from bamboo_core.controller.view import ClusterView, Memory, NodeView, PodView, TrainingView
from bamboo_core.evidence import pod_troubles
from bamboo_core.protocol.exit_codes import ExitCode

NODE_STAYS_S = 60.0
"""An agent that somebody has killed is judged so long after its end: if its machine has gone, its
node is not ready by then. Kubernetes says so after 40 to 50 s."""
WARNED_NODE_STAYS_S = 180.0
"""The same for one that was told of its node's end. Amazon says so 120 s before."""
STAYS_S = (NODE_STAYS_S, WARNED_NODE_STAYS_S)
PROVEN_S = 600.0
"""An agent that has run for so long has started well. If one that ends after it is replaced at
once, there are at most as many new pods as after failed starts."""


def is_renewed(pod: PodView, node: NodeView | None, training: TrainingView, memory: Memory) -> bool:
    """Whether its node was started again, or is another machine, since the agent began there."""
    if pod_troubles.is_unseen(pod.exit_reason) and not pod.beside.reason:
        return True
    before = memory.awaited.get(pod.agent)
    first = training.heard.get(pod.agent, "") or (before.machine if before is not None else "")
    return node is not None and first not in ("", node.machine)


def is_excused(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent that was of no use yet has ended by order or because of its node.

    A crash is none of both, even if the pod is deleted or the node about to go.
    """
    node = view.fleet.by_name.get(pod.node)
    is_lost = has_lost_node(pod.node, pod.created_at, view, memory)
    if pod.beside.ends_with_node or (is_lost and (node is None or not node.ready)):
        return True
    is_ordered = pod.deleting_at is not None or pod.agent in training.dismissed
    if is_own_fault(pod):
        return is_ordered and pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)
    return is_ordered or is_lost


def is_judged(pod: PodView, training: TrainingView, now: float) -> bool:
    """Whether its end is known as a whole, and whether its node has gone with it."""
    is_sure = pod.agent not in training.heard or pod.has_failed or not may_be_lost(pod)
    if is_sure or pod.ended_at is None:
        return pod.is_decided(now)
    return now >= pod.ended_at + STAYS_S[pod.agent in training.warned]


def may_be_lost(pod: PodView) -> bool:
    """Whether its end looks like that of an agent whose node, or whose network, has gone."""
    return pod.is_killed or pod.exit_code == ExitCode.FENCED


def is_unordered(pod: PodView, view: ClusterView, training: TrainingView, memory: Memory) -> bool:
    """Whether an agent has ended as if by order, or was killed, though nobody had told it to go and
    its node is as before; or will end, as it says. What it says is no order: only its node can
    confirm that. An agent that only another leader has heard may have had its order."""
    is_leaving = not pod.has_ended and pod.agent in training.departing
    if not (is_leaving or pod.is_killed or pod.exit_code in (ExitCode.RELEASED, ExitCode.FENCED)):
        return False
    if training.unwritten is not None or training.outcome is not None:
        return False
    told = training.dismissed | training.slow
    if pod.deleting_at is not None or pod.agent in told - training.departing:
        return False
    is_lost = has_lost_node(pod.node, pod.created_at, view, memory)
    is_going = pod.beside.ends_with_node or is_lost
    return bool(training.heard[pod.agent]) and not is_going


def ran_s(pod: PodView, now: float) -> float:
    """For how long its agent has run, or had run when it ended."""
    begun = pod.created_at if pod.started_at is None else pod.started_at
    return max(0.0, (now if pod.ended_at is None else pod.ended_at) - begun)


def has_lost_node(name: str, created_at: float, view: ClusterView, memory: Memory) -> bool:
    """Whether the node of a pod that was made then is gone, or began to fail later. A pod that
    tolerates a failing node would come back to it for ever. One without a node has lost none."""
    node = view.fleet.by_name.get(name)
    if node is None:
        return bool(name)
    return memory.failing.get(node.machine, 0.0) > created_at


def is_own_fault(pod: PodView) -> bool:
    """Whether neither the node nor the cluster can be the cause. A code of 0 is a fault, too: the
    agent was never told to end."""
    if pod.beside.reason:
        return pod.beside.is_of_pod
    return not pod.is_killed if pod.exit_code is not None else pod.beside.is_of_container
