"""What a user can do about the reason of a condition, one sentence each.

docs/troubleshooting.md says more. A reason without an entry needs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.api.reasons import Reason

_NEW_JOB = "then create a new job, since a failed one stays failed"

_CHANGE = (
    "correct spec.worker with `kubectl edit` or `kubectl apply`; if the answer is that agents have"
    " a plan, set spec.suspend to true, wait with `kubectl wait --for=condition=Suspended`, then"
    " correct spec.worker and set spec.suspend to false in one `kubectl edit`"
)

_GO_ON = (
    "with spec.checkpoint.from it goes on from the newest checkpoint, and accept: [Code, Data]"
    " there, or one of them, takes what you have repaired"
)
_SAID = "spec.checkpoint.from begins a job"  # in the message: how to go on
_OTHER_SOURCE = f"change the job as the message says, {_NEW_JOB}"


def remedy_of(reason: str, message: str, *, has_checkpoint: bool) -> str:
    """Say what to do about a condition; empty: nothing. message: of the condition; has_checkpoint:
    the job has one, from which another job can go on."""
    if reason == Reason.CHECKPOINT_FAILED and "spec.checkpoint.from: " in message:
        return _OTHER_SOURCE
    if reason == Reason.USER_CODE_FAILED and has_checkpoint and _SAID not in message:
        return f"{REMEDIES[Reason.USER_CODE_FAILED]}; {_GO_ON}"
    return REMEDIES.get(reason, "")


REMEDIES: Mapping[str, str] = {
    Reason.SPEC_INVALID: "change the fields that the message names, and apply the job again",
    Reason.SPEC_CHANGED: "change the arguments back, or create a new job",
    Reason.POD_REJECTED: "change the quota or the policy, create what is missing, or change"
    " spec.worker as the message says; the operator tries again every"
    " 10 s",
    Reason.OPERATOR_FULL: "wait until another job ends, ask the administrator to raise the chart's"
    " value `tasks`, or create a new job with fewer micro-batches or pipelines; the operator tries"
    " again every 10 s",
    Reason.RECONCILE_ERROR: "read the operator's log; if a request is forbidden, install the chart"
    " again",
    Reason.WAITING_FOR_NODES: "wait for the autoscaler, add nodes, or lower spec.pipelines.count",
    Reason.WAITS_IN_LINE: "wait for the job ahead, add nodes, lower spec.pipelines.min, or name"
    " a higher priority class in spec.worker.podTemplate; if it has begun to train, suspend it and"
    " wait for its condition Suspended first",
    Reason.NODES_TOO_SMALL: "lower spec.worker.resources, or add a pool of larger nodes",
    Reason.NO_NODE_SUITS: "add nodes with the labels that spec.worker and spec.placement name, or"
    " tolerate the taints that the message names in spec.worker.podTemplate",
    Reason.DEVICE_DIFFERS: "use a node pool of one kind of processor, or name one by a nodeSelector"
    " in spec.worker.podTemplate",
    Reason.NEIGHBOURS_SHARE_ZONE: "add nodes in other zones, or wait for new agents",
    Reason.PLACEMENT_INFEASIBLE: "add a zone, use an even number of stages, or set"
    " spec.placement.adjacency to Cluster",
    Reason.INITIALIZING: "wait; if it lasts, read `bamboo logs`",
    Reason.WAITING_FOR_AGENTS: "see the pods below; if all of them run, read `bamboo logs`",
    Reason.SUSPENDED_BY_USER: "set spec.suspend to false to continue",
    Reason.USER_REQUESTED: "set spec.suspend to false to continue",
    Reason.QUEUED_BY_KUEUE: "see the job's Workload and its queue: `kubectl get workloads`",
    Reason.TEMPLATE_CHANGED: "wait; the operator resumes the job by itself",
    Reason.NOT_ACCEPTED: "see Accepted",
    Reason.LAYERS_UNPROTECTED: "wait for new agents; if none come, see CapacityAvailable",
    Reason.FEWER_AGENTS: "wait for new agents; if none come, see CapacityAvailable",
    Reason.FEWER_PIPELINES: "wait for new agents; if none come, see CapacityAvailable",
    Reason.MEMORY_SHORT: "raise spec.redundancy.hostMemory, use larger devices, or set"
    " spec.redundancy.mode to None",
    Reason.REPLANNING: "wait some seconds; if it lasts over a minute, read the operator's log",
    Reason.WAITING_FOR_CAPACITY: "add nodes or lower spec.pipelines.min; do not delete pods that"
    " run, since they may hold the training state",
    Reason.IMAGE_PULL_FAILED: "if the registry or its Secret is at fault, repair that, and the pods"
    f" start by themselves; if spec.worker names a wrong image or Secret, {_CHANGE}",
    Reason.CONTAINER_CANNOT_START: "create what is missing (`kubectl describe pod` names it), and"
    f" the pods start by themselves; if spec.worker is wrong, {_CHANGE}",
    Reason.CONTAINER_FAILED: "read its log with `kubectl logs POD -c CONTAINER`; if the agent needs"
    f" it, delete the pod, and a new one is made; if spec.worker is wrong, {_CHANGE}",
    Reason.OBJECT_MISSING: "create or repair the object that the message names; the pods go on by"
    " themselves",
    Reason.STARTS_FAIL: "do what the message says; a change of spec.worker also ends the pause, and"
    " needs spec.suspend: true and the condition Suspended first only if agents have had a plan"
    " since the start",
    Reason.NOT_HEARD: "read `bamboo logs`; the command in spec.worker.podTemplate must start the"
    " agent, and network policies must let it reach the operator",
    Reason.NO_PROGRESS: "wait for the new plan that the operator makes; if it happens on one node"
    " again and again, replace the node",
    Reason.LAST_WRITE_WAITS: "make room, or repair the storage at spec.checkpoint.uri and its"
    " permissions; to have more time, raise spec.runPolicy.lastWriteDeadlineSeconds",
    Reason.CHECKPOINT_UNREACHABLE: "make the path in the message reachable on every node, and the"
    " job goes on by itself; or go back on purpose with `bamboo restore`",
    Reason.WRITE_FAILED: "free space, or repair the storage at spec.checkpoint.uri and its"
    " permissions",
    Reason.USER_CODE_FAILED: f"repair the code or the data that the message names, {_NEW_JOB}",
    Reason.DATA_TOO_SMALL: f"use more data or smaller batches, {_NEW_JOB}",
    Reason.DATA_TOO_LARGE: f"use fewer validation samples or larger micro-batches, {_NEW_JOB}",
    Reason.TOO_FEW_LAYERS: f"lower spec.pipelines.stages, or split the model, {_NEW_JOB}",
    Reason.NOT_FINITE: f"lower the learning rate or set clipNorm, {_NEW_JOB}",
    Reason.PLANNING_FAILED: "report a defect with the message and the operator's log",
    Reason.CHECKPOINT_FAILED: "do what the message says; if nothing could be written, make"
    f" spec.checkpoint.uri writable for all agents, {_NEW_JOB}",
    Reason.BACKOFF_LIMIT_EXCEEDED: f"repair what the last failure in the message says, {_NEW_JOB}",
    Reason.ACTIVE_DEADLINE_EXCEEDED: "create a new job with a longer"
    " spec.runPolicy.activeDeadlineSeconds",
    Reason.PENDING_DEADLINE_EXCEEDED: "add what was missing, or raise"
    " spec.runPolicy.pendingDeadlineSeconds, and create a new job",
}
