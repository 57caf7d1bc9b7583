"""A cluster in which the pods of a job fail to start, each kind in its own way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import ConditionType
from bamboo_core.api.spec import JobSpec, RunPolicy
from bamboo_core.controller.reconcile import CreatePod, DeletePod, Step, step
from bamboo_core.controller.turn import Turn
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
)
from bamboo_core.evidence.pod_troubles import PodTrouble
from bamboo_core.model.ids import AgentId

from .builders import JOB, nodes, spec

Change = Callable[[PodView], PodView | None]
"""What becomes of a pod on its node; None: it is deleted."""

PATIENT = spec(run_policy=RunPolicy(backoff_limit=1000, node_failure_limit=0))
"""A job that never gives up, so that only its pauses limit the pods."""


def failed(**beside: object) -> Change:
    """The pod ends without a word of the agent's container."""
    trouble = PodTrouble(**beside)  # type: ignore[arg-type]
    return lambda pod: replace(pod, phase=PodPhase.FAILED, beside=trouble)


def exited(code: int, reason: str = "Error", *, runs_on: bool = False) -> Change:
    """The agent's container ends."""
    phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
    trouble = PodTrouble(runs_on=runs_on)

    def change(pod: PodView) -> PodView:
        found = replace(pod, exit_code=code, exit_reason=reason, beside=trouble)
        return replace(found, phase=PodPhase.RUNNING if runs_on else phase)

    return change


def evicted(message: str, *, by_node: bool = False, said: str = "Error") -> Change:
    """The kubelet evicts the pod, and kills its containers. said: what it says of their ends."""
    trouble = PodTrouble(reason="Evicted", message=message, is_disrupted=by_node)
    return lambda pod: replace(exited(137, said)(pod) or pod, beside=trouble)


def unseen(reason: str) -> Change:
    """The kubelet refuses the pod after it had its containers, whose ends it does not know."""
    trouble = PodTrouble(reason=reason, message="Predicate failed")
    return lambda pod: replace(exited(137, "ContainerStatusUnknown")(pod) or pod, beside=trouble)


KINDS: Mapping[str, Change] = {
    "a command that ends at once": exited(0, "Completed"),
    "a command that fails": exited(1),
    "a command that says that it was fenced": exited(3),
    "a command that is not there": exited(127),
    "a start error": exited(128, "StartError"),
    "an agent that ends beside a live sidecar": exited(127, runs_on=True),
    "too little memory": exited(137, "OOMKilled"),
    "too little memory beside a live sidecar": exited(137, "OOMKilled", runs_on=True),
    "a liveness probe that kills": exited(137),
    "a liveness probe that ends": exited(143),
    "an init container that fails": failed(
        container="fetch", state="Error", exit_code=1, words="no such bucket"
    ),
    "an init container without memory": failed(
        container="fetch", state="OOMKilled", exit_code=137, words=""
    ),
    "an init container that is killed": failed(container="fetch", state="Error", exit_code=137),
    "no healthy device": failed(
        reason="UnexpectedAdmissionError", message="Allocate failed due to no healthy devices"
    ),
    "no processor left": failed(reason="OutOfcpu", message="Node didn't have enough resource"),
    "no device left": failed(reason="OutOfnvidia.com/gpu", message="Node didn't have enough"),
    "labels of another node": failed(reason="NodeAffinity", message="Predicate failed"),
    "an unknown refusal": failed(reason="TopologyAffinityError", message="cannot be aligned"),
    "too much disk of its own": evicted("Pod ephemeral local storage usage exceeds the limit 1Gi"),
    "too much of an empty volume": evicted(
        'Usage of EmptyDir volume "x" exceeds the limit "50Mi".', said="ContainerStatusUnknown"
    ),
    "too little memory on the node": evicted(
        "The node was low on resource: memory", by_node=True, said="ContainerStatusUnknown"
    ),
    "a refusal after a restart of the kubelet": unseen("NodeAffinity"),
    "too little disk on the node": evicted("The node was low on resource: disk", by_node=True),
    "a deadline of the pod": failed(reason="DeadlineExceeded", message="Pod was active too long"),
    "an end without a reason": failed(),
    "somebody deletes it": lambda pod: None,
    "somebody deletes it in peace": lambda pod: replace(pod, deleting_at=1e9),
}
"""Ways in which a pod ends before its agent is heard."""

OF_NODES: Mapping[str, Change] = {
    "the node is shut down": failed(reason="Terminated", message="imminent node shutdown"),
    "the node is lost": failed(reason="NodeLost"),
    "a pod of higher priority": failed(reason="Preempting"),
    "the taint manager": failed(is_disrupted=True),
    "a container that nobody has seen end": exited(255, "Unknown"),
    "a container whose status is lost": exited(137, "ContainerStatusUnknown"),
}
"""Ways in which a pod ends because of its node."""


@dataclass
class Cluster:
    """Two zones, in which pods get nodes at once, and end or are heard a second later."""

    change: Change | None  # None: all agents start
    wanted: JobSpec = field(default_factory=lambda: PATIENT)
    training: TrainingView = field(default_factory=TrainingView)
    memory: Memory = field(default_factory=Memory)
    now: float = 1000.0
    pods: dict[str, PodView] = field(default_factory=dict)
    there: tuple[NodeView, ...] = field(default_factory=lambda: nodes(a=8, b=8))
    made: int = 0
    made_of: Counter[Slot] = field(default_factory=Counter)
    records: int = 0
    turn: Turn | None = None

    def reconcile(self) -> Step:
        """One step, whose actions are performed."""
        view = ClusterView(self.there, tuple(self.pods[name] for name in sorted(self.pods)))
        found = step(
            self.wanted, view, self.training, self.memory, job=JOB, now=self.now, turn=self.turn
        )
        self.memory = found.memory
        self.records += len(found.records)
        for action in found.actions:
            match action:
                case CreatePod():
                    self._make(action)
                case DeletePod():
                    self.pods.pop(action.name, None)
                case _:
                    raise AssertionError(action)
        return found

    def _make(self, action: CreatePod) -> None:
        self.made += 1
        self.made_of[action.slot] += 1
        self.pods[action.name] = PodView(
            action.name, f"uid-{action.name}", action.slot, action.incarnation, PodPhase.PENDING,
            self.now, zone=action.zone, node=f"node-{action.zone}",
        )  # fmt: skip
        self.memory = self.memory.having_made(action.name, action.slot, action.incarnation)

    def live(self, seconds: int) -> None:
        """So many reconciles, one each second."""
        for _ in range(seconds):
            self.reconcile()
            self.now += 1.0
            self._go_on()

    def live_with_new_operators(self, seconds: int) -> None:
        """The same, each time with an operator that knows only what a status keeps."""
        for _ in range(seconds):
            self.live(1)
            known = self.memory
            self.memory = Memory(
                incarnation=known.incarnation, failures=known.failures, settled=known.settled
            )

    def _go_on(self) -> None:
        for name, pod in list(self.pods.items()):
            if not pod.is_alive:
                continue
            if self.change is None:
                self._hear(pod)
                continue
            after = self.change(pod)
            if after is None:
                del self.pods[name]
            else:
                self.pods[name] = after

    def _hear(self, pod: PodView) -> None:
        self.pods[pod.name] = replace(pod, phase=PodPhase.RUNNING)
        known = self.training
        heard: dict[AgentId, str] = {**known.heard, pod.agent: f"machine-{pod.zone}"}
        both = known.connected | {pod.agent}
        self.training = replace(
            known, heard=heard, connected=both, members=both, planned=True, has_state=True
        )

    @property
    def has_failed(self) -> bool:
        """The job has ended."""
        return self.memory.terminal is Outcome.FAILED

    @property
    def heard(self) -> int:
        """Agents that are connected and whose pods are there."""
        return sum(pod.agent in self.training.connected for pod in self.pods.values())


def condition(found: Step, kind: ConditionType) -> Condition:
    return next(c for c in found.status.conditions if c.type == kind)


def after(*pods: PodView, **options: object) -> Step:
    """One step with these pods."""
    given = {"training": TrainingView(), "memory": Memory(), "there": nodes(a=8, b=8)} | options
    view = ClusterView(given["there"], pods)  # type: ignore[arg-type]
    policy = spec(run_policy=RunPolicy(backoff_limit=1, node_failure_limit=1))
    return step(policy, view, given["training"], given["memory"], job=JOB, now=1000.0)  # type: ignore[arg-type]
