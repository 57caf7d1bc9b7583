"""A frozen view of a job: nodes, pods, and the arbiter's status.

The operator's observe module and the simulator make it; reconcile and lifecycle read it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import BestCheckpoint, Network, TrainingProgress, Unwritten
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.api.totals import Times, Totals
from bamboo_core.controller.failures import Failures
from bamboo_core.evidence import pod_troubles
from bamboo_core.evidence.node_notices import NodeNotice
from bamboo_core.evidence.pod_troubles import LACKS, NO_TROUBLE, Missing, PodTrouble
from bamboo_core.model.ids import AgentId
from bamboo_core.model.processors import Kinds
from bamboo_core.placement.plan import Pipeline
from bamboo_core.planning.requests import Comparison
from bamboo_core.protection.choice import Verdict
from bamboo_core.protocol.channels import Route
from bamboo_core.protocol.exit_codes import ExitCode


class Slot(NamedTuple):
    """A place in the job's set of pods: stage ``stage`` of pipeline ``pipeline`` at creation.

    It determines only name and zone. The plan decides which agent computes which stage.
    """

    pipeline: int
    stage: int


_ON_ORDER = (ExitCode.RELEASED, ExitCode.FENCED, ExitCode.DRAINED)
UNREADY_S = 30.0
"""An agent that cannot have any state is replaced after its node has been unready for so long. By
default Kubernetes deletes its pod after 5 minutes, but not while a large part of a zone is unready.
"""
REASON_S = 10.0
"""For so long the reason of a pod's end is awaited after the end of its container."""
_POD_NAME = re.compile(r"p(\d+)-s(\d+)-i(\d+)")


def pod_name(job: str, slot: Slot, incarnation: int) -> str:
    """Name of an agent and its pod, unique within the life of the job."""
    return f"{job}-p{slot.pipeline}-s{slot.stage}-i{incarnation}"


def parse_pod_name(job: str, name: str) -> tuple[Slot, int] | None:
    """Inverse of :func:`pod_name`; None if the name does not belong to an agent of this job."""
    match = _POD_NAME.fullmatch(name.removeprefix(job + "-"))
    if match is None or not name.startswith(job + "-"):
        return None
    return Slot(int(match[1]), int(match[2])), int(match[3])


def place_of(agent: AgentId) -> tuple[Slot, int] | None:
    """Slot and incarnation in the name of an agent; None: there are none."""
    match = _POD_NAME.fullmatch(agent[agent.rfind("-p") + 1 :])
    return match and (Slot(int(match[1]), int(match[2])), int(match[3]))


@dataclass(frozen=True)
class NodeView:
    """A node."""

    name: str
    machine: str  # node UID and boot ID
    zone: str
    ready: bool = True
    unready_since: float = 0.0  # Unix time in seconds; 0: it is ready, or not known
    schedulable: bool = True
    spot: bool = False
    departing: bool = False  # its cloud has announced that it is about to go
    notice: NodeNotice | None = None  # why it is departing, or a hint that it may
    agents: int = 1  # how many of the job's agents fit on it beside the pods of others
    suits: bool = True  # an agent could run there if it were empty
    lacks: str = ""  # what keeps more agents away: a resource, a label or a taint; empty: nothing
    is_held_back: bool = False  # it has room for an agent, and only a taint keeps it away
    instance_type: str = ""  # machines of one type mostly have one kind of processor
    avoided_until: float = 0.0  # new agents must not come before; 0: they may
    is_misfit: bool = False  # avoided since its processor computes other bits, not after failures

    @property
    def is_usable(self) -> bool:
        """New agents can be placed on it."""
        is_up = self.ready and self.schedulable
        return is_up and not self.departing and not self.avoided_until


class NodeViews:
    """All nodes, in order. It never changes; :meth:`changed` makes another one.

    Most questions are about numbers of nodes, and in a large cluster most nodes look like many
    others. So they are asked of ``alike``, which is short. Each reconcile asks several.
    """

    def __init__(self, nodes: Iterable[NodeView] = ()) -> None:
        self.by_name: Mapping[str, NodeView] = {node.name: node for node in nodes}

    @classmethod
    def of(cls, nodes: Iterable[NodeView]) -> NodeViews:
        """The nodes themselves if they are of this class."""
        return nodes if isinstance(nodes, NodeViews) else cls(nodes)

    def __iter__(self) -> Iterator[NodeView]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    @cached_property
    def alike(self) -> Counter[NodeView]:
        """Nodes without what tells one from the other -> how many there are of them."""
        return Counter(map(_nameless, self))

    @cached_property
    def avoided(self) -> tuple[NodeView, ...]:
        """Those that get no new agents, since agents have failed or been refused there."""
        is_any = any(node.avoided_until for node in self.alike)
        return tuple(node for node in self if node.avoided_until) if is_any else ()

    def failing(self, known: Mapping[str, float], now: float) -> dict[str, float]:
        """Machines that are about to go or not ready -> since when. known: the last answer."""
        return {machine: known.get(machine, now) for machine in self._failing}

    @cached_property
    def _failing(self) -> tuple[str, ...]:
        is_any = any(node.departing or not node.ready for node in self.alike)
        if not is_any:
            return ()
        return tuple(node.machine for node in self if node.departing or not node.ready)

    def changed(self, nodes: Iterable[NodeView]) -> NodeViews:
        """With these in place of those of their names, which must be there."""
        known, alike, found = dict(self.by_name), self.alike.copy(), NodeViews()
        for node in nodes:
            old, new = _nameless(known[node.name]), _nameless(node)
            known[node.name] = node
            alike[new] += 1
            alike[old] -= 1
            if not alike[old]:
                del alike[old]
        found.by_name, found.alike = known, alike
        return found


def _nameless(node: NodeView) -> NodeView:
    return replace(node, name="", machine="", unready_since=0.0, notice=None)


class PodPhase(StrEnum):
    """The phases of Kubernetes."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class PodView:
    """An agent's pod. Instants are in seconds since 1970."""

    name: str
    uid: str
    slot: Slot
    incarnation: int
    phase: PodPhase
    created_at: float
    zone: str = ""  # where it must run, or runs; empty: anywhere, and it has no node yet
    node: str = ""
    started_at: float | None = None
    deleting_at: float | None = None
    exit_code: int | None = None  # of its container, once it has ended
    exit_reason: str = ""
    ended_at: float | None = None  # when its container ended, by the clock of its node
    waiting: str = ""  # why its container cannot start, such as ImagePullBackOff
    trouble: str = ""  # the message of the end or of the wait
    untold: str = ""  # which hooks its agent has not told all steps when it ended
    avoids: frozenset[str] = frozenset()  # nodes on which it must not be placed
    avoids_types: frozenset[str] = frozenset()  # instance types of such nodes
    template: str = ""  # short for what it was made from; empty: not known
    is_on_demand: bool = False  # it may run on a node that is not a spot node
    refused_at: float | None = None  # since when the scheduler finds no node for it
    refusal: str = ""  # the scheduler's words
    beside: PodTrouble = NO_TROUBLE  # what its status says beside the agent's container

    @property
    def agent(self) -> AgentId:
        """An agent has the name of its pod."""
        return AgentId(self.name)

    @property
    def is_over(self) -> bool:
        """Nothing of it runs any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def has_ended(self) -> bool:
        """The agent has ended, whatever other containers do."""
        return self.exit_code is not None or self.is_over

    @property
    def has_failed(self) -> bool:
        """It has ended by itself. Lost nodes, preemptions and orders are no failures."""
        if self.has_ended and self.beside.is_of_pod:
            return True
        if not self.has_ended or pod_troubles.is_unseen(self.exit_reason):
            return False
        code = self.exit_code
        return code is not None and code not in _ON_ORDER and not self.is_killed

    @property
    def is_killed(self) -> bool:
        """Somebody else has ended the agent: neither itself nor its memory limit."""
        return pod_troubles.is_killed(self.exit_code, self.exit_reason)

    @property
    def awaits_reason(self) -> bool:
        """The kubelet has killed the agent and may still say why, as of an eviction: it reports the
        ends of a pod's containers a moment before that of the pod."""
        return self.is_killed and not self.is_over and not self.beside.runs_on

    def is_decided(self, now: float) -> bool:
        """Whether its end is known as a whole."""
        if not self.has_ended or not self.awaits_reason or self.ended_at is None:
            return self.has_ended
        return now >= self.ended_at + REASON_S

    @property
    def missing(self) -> Missing | None:
        """The object that it waits for, as far as the scheduler or the kubelet names it. What a
        container says when it ends does not count."""
        if not self.node:
            return pod_troubles.missing(self.refusal)
        said = ((self.waiting, self.trouble), (self.beside.state, self.beside.words))
        found = (pod_troubles.missing(words) for state, words in said if state == LACKS)
        return next((each for each in found if each is not None), None)

    @property
    def is_alive(self) -> bool:
        """It runs or may still start."""
        return not self.has_ended and self.deleting_at is None


@dataclass(frozen=True)
class ClusterView:
    """Nodes of the cluster, and pods that the job owns by UID."""

    nodes: Iterable[NodeView] = ()
    pods: tuple[PodView, ...] = ()

    @cached_property
    def fleet(self) -> NodeViews:
        """The nodes, to be asked for one or for numbers of them."""
        return NodeViews.of(self.nodes)

    def used(self, training: TrainingView) -> set[str]:
        """Names of the nodes for which the job is charged.

        Where a node is gone, nobody ends its pods: the arbiter goes on without their agents, and
        soon the node is not ready.
        """
        known, gone = self.fleet.by_name, training.dismissed
        pods = [p for p in self.pods if not p.is_over and p.agent not in gone]
        return {p.node for p in pods if p.node in known and known[p.node].ready}

    def staying(self, training: TrainingView) -> list[PodView]:
        """Pods that keep their seats. Draining agents keep working, but their replacements are
        created now: with enough notice they take over before the seats are empty."""
        nodes, gone = self.fleet.by_name, training.dismissed | training.departing | training.slow
        found = [pod for pod in self.pods if pod.is_alive and pod.agent not in gone]
        return [pod for pod in found if pod.node not in nodes or not nodes[pod.node].departing]

    def stranded_at(self, training: TrainingView) -> Iterator[tuple[PodView, float]]:
        """Agents on nodes that are not ready, and when they are given up. Only those that never
        ran, or are not heard before the first plan: others may hold the only copy of a layer."""
        nodes, has_plan = self.fleet.by_name, training.epoch > 0
        for pod in self.pods:
            node, never_ran = nodes.get(pod.node), pod.phase is PodPhase.PENDING
            is_empty = (never_ran or not has_plan) and pod.agent not in training.connected
            if node is not None and node.unready_since > 0 and is_empty and pod.is_alive:
                yield pod, max(node.unready_since, pod.created_at) + UNREADY_S

    def located(self) -> ClusterView:
        """With the zones of pods that could go anywhere and have got a node."""
        known = self.fleet.by_name

        def zone(pod: PodView) -> str:
            return pod.zone or (known[pod.node].zone if pod.node in known else "")

        pods = (p if p.zone else replace(p, zone=zone(p)) for p in self.pods)
        return ClusterView(self.fleet, tuple(pods))


@dataclass(frozen=True)
class JobView:
    """A BambooJob without its spec."""

    namespace: str
    name: str
    uid: str
    generation: int
    created_at: float
    deleting: bool = False
    queued: str = ""  # why Kueue keeps it suspended although the spec does not; empty: it does not
    rests: str = ""  # the same for the operator itself
    next_steps: int = 0  # to which it goes on once these steps are committed; 0: to none
    refused_steps: str = ""  # why spec.training.steps is not taken; empty: it is

    @property
    def goes_on(self) -> str:
        """The end of a sentence that says so; empty: the job ends with these steps."""
        text = f"; then it goes on to step {self.next_steps}, with new agents"
        return text if self.next_steps else ""


@dataclass(frozen=True)
class Losses:
    """Members preempted or lost with their node since the job began."""

    total: int = 0
    noticed: int = 0  # with a notice


@dataclass(frozen=True)
class LastWords:
    """The reason of a failed agent, in its own words or in those of the arbiter that refused it."""

    agent: AgentId
    cause: str  # CamelCase, as the agent says it
    message: str  # with the agent's name
    is_user_error: bool = False
    node: str = ""
    machine: str = ""
    is_refused: bool = False


@dataclass(frozen=True)
class TrainingView:
    """The training as the arbiter knows it."""

    epoch: int = 0
    attempt: int = 0
    rollbacks: int = 0  # restores because of wrong bits that were committed
    processors: Kinds = ()  # that have computed the present state, oldest first
    planned: bool = False  # a plan is in force
    recovering: bool = False  # agents are stopped or get a new plan; ``detail`` says why
    detail: str = ""
    pipelines: int = 0
    grid: tuple[Pipeline, ...] = ()  # the seats of the plan in force
    connected: frozenset[AgentId] = frozenset()
    # Agents that have ever connected -> their machine at that time; empty: not known.
    heard: Mapping[AgentId, str] = field(default_factory=dict)
    members: frozenset[AgentId] = frozenset()
    # Agents may hold the job's state: the durable facts name members. Else no pod is worth keeping.
    has_state: bool = False
    dismissed: frozenset[AgentId] = frozenset()  # not needed any more, for ever
    departing: frozenset[AgentId] = frozenset()  # will leave with their nodes: they have said so
    # Of them, those that name who has told them. The others got a signal, and do not know why.
    warned: frozenset[AgentId] = frozenset()
    slow: frozenset[AgentId] = frozenset()  # computes too slowly, and leaves once it is replaced
    at_risk: frozenset[AgentId] = frozenset()  # a hint says that they may have to leave
    copies: tuple[int, ...] = ()  # for each layer: live agents that hold it by plan
    route: Route | None = None  # of items between agents; None: no agent is ready yet
    network: Network = Network()  # noqa: RUF009 - frozen; between agents
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    mode: RedundancyMode | None = None  # that Auto has put in force; None: the spec's own holds
    verdict: Verdict | None = None  # why; None: the present leader has made no plan yet
    sharing: Comparison | None = None  # how lost work is shared; None: as in ArbiterStatus
    shortage: str = ""  # why the smallest device does not suffice for the mode; empty: it does
    stall: str = ""  # who holds up the training, and how; empty: nobody
    unreachable: str = ""  # why a checkpoint that is needed cannot be read, and what to do
    stalls: tuple[tuple[str, int], ...] = ()  # (cause, how many since this operator leads the job)
    undone: int = 0  # steps committed before the newest restore; 0: a commit has followed it
    checkpoint_step: int = -1  # of the newest complete one; -1: none
    checkpoint_path: str = ""
    checkpoint_error: str = ""  # why no newer one can be written, with the agent
    checkpoint_caveat: str = ""  # why one node only may have its files
    best: BestCheckpoint | None = None
    unwritten: Unwritten | None = None  # the last checkpoint, once it is all that is left to do
    losses: Losses = Losses()
    totals: Totals = Totals()  # noqa: RUF009 - frozen
    final_totals: Totals = Totals()  # noqa: RUF009 - frozen; with a pause that is not over
    has_begun: bool = False  # some agent has been ready, so the user's code can run
    failed: tuple[LastWords, ...] = ()  # the newest under this leader, oldest first
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class DryZone:
    """A zone where the scheduler has refused a pod."""

    zone: str
    times: int  # in a row; 0: it has got room or taken a pod since
    since: float  # when it was last found dry; with 0 times: when it got room or took a pod
    until: float  # other zones go first until then
    room: int  # that its nodes seemed to have


@dataclass(frozen=True)
class Shortage:
    """Slots whose agents have had no node since then."""

    since: float
    slots: tuple[Slot, ...]


class Awaited(NamedTuple):
    """The pod of an agent that has not been heard yet, as it was last seen."""

    slot: Slot
    incarnation: int
    node: str = ""  # empty: none yet
    machine: str = ""  # that the node was first
    created_at: float = 0.0  # 0: the pod was not seen with its node
    runs_since: float = 0.0  # when it was first seen to run; 0: it was not
    gone_since: float = 0.0  # when it was first missed; 0: it is there


@dataclass(frozen=True)
class Condition:
    """A condition in the sense of Kubernetes."""

    type: str
    status: bool | None  # None: unknown
    reason: str
    message: str = ""
    since: float = 0.0  # last transition, in seconds since 1970


@dataclass(frozen=True)
class Memory:
    """Memory of reconcile from call to call. Status keeps it across restarts."""

    incarnation: int = -1  # highest number ever given to a pod
    failures: Failures = Failures()  # noqa: RUF009 - frozen
    losses: Losses = Losses()
    # Agents that have ended and were counted, as long as their pods or last words can be seen.
    settled: frozenset[str] = frozenset()
    terminal: Outcome | None = None  # once the job has ended, with reason and message
    started_at: float | None = None  # seconds since 1970
    finished_at: float | None = None
    reason: str = ""
    message: str = ""
    assured: int = 0  # agents that it gets back before other jobs; 0: it has not started
    assured_of: str = ""  # what they ask for: :func:`bamboo_core.controller.turn.wish`
    trained: bool = False  # a plan was in force since the job was started
    not_before: float = 0.0  # no new pods before this instant, since agents have failed
    refused_until: float = 0.0  # nor before this one, since the last ones were refused
    dry: tuple[DryZone, ...] = ()  # zones where the scheduler refuses pods
    short: tuple[Shortage, ...] = ()  # agents without a node, if spot nodes are preferred
    times: Times = Times()  # noqa: RUF009 - frozen
    # Pods that are wanted, of agents that are not heard yet. Not kept in the status.
    awaited: Mapping[AgentId, Awaited] = field(default_factory=dict)
    # Machines that are about to go or not ready -> when they were first seen so. Not kept either.
    failing: Mapping[str, float] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = field(default=())

    @property
    def pauses_until(self) -> float:
        """No new pods before this instant."""
        return max(self.not_before, self.refused_until)

    def having_made(self, pod: str, slot: Slot, incarnation: int) -> Memory:
        """After a pod was made. If it is not there at the next step, somebody has deleted it."""
        seat = {AgentId(pod): Awaited(slot, incarnation)}
        return replace(self, awaited={**self.awaited, **seat})
