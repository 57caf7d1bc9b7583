"""Kubernetes Events about a job: their reasons, and the facts that each carries as annotations.

The sentence of an event is for people; it stands where the fact is decided. Programs read the
facts: annotation ``bamboo.dev/NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

ANNOTATION_PREFIX = "bamboo.dev/"


class Severity(StrEnum):
    """The type of a Kubernetes Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


class EventReason(StrEnum):
    """What has happened."""

    AGENT_LOST = "AgentLost"
    """An agent is lost."""
    AGENT_LEFT = "AgentLeft"
    """An agent left in order, after it was drained, noticed or not needed."""
    AGENT_LEAVING = "AgentLeaving"
    """An agent announced that it will leave, for example after a preemption notice; or its node is
    about to go."""
    AGENT_AT_RISK = "AgentAtRisk"
    """A hint says that an agent may lose its node. It stays; of agents without a part it is the
    first to go."""
    AGENT_REFUSED = "AgentRefused"
    """An agent was not admitted because it does not fit the job."""
    PROCESSOR_CHANGED = "ProcessorChanged"
    """The job goes on, mostly from a checkpoint, on agents with another kind of processor than
    before. From that step on its bits are not those of a run on one kind."""
    STOPPED = "Stopped"
    """Training was stopped for a new plan."""
    RESUMED = "Resumed"
    """The first step under the new plan is committed."""
    PLANNED = "Planned"
    """A new plan is in force."""
    STALLED = "Stalled"
    """Agents live, but training does not go on; the message says which agents wait for which."""
    STEP_SKIPPED = "StepSkipped"
    """A gradient is not finite, or the batch has no targets, so the step changed no layer. Recorded
    for the 1st, 2nd, 4th, 8th and so on such step in a row."""
    AGENT_SLOW = "AgentSlow"
    """An agent computes at less than half the usual speed; it leaves when there is another."""
    WAITING = "Waiting"
    """No plan is possible yet: there are too few agents, none of those that know the newest
    committed step has reported, or no member holds some layer."""
    MEMORY_SHORT = "MemoryShort"
    """The smallest device of the new plan may not suffice for the mode of redundancy. The job goes
    on; in mode Eager nothing is computed ahead."""
    RESTORING = "Restoring"
    """A new attempt starts from a checkpoint or from the beginning."""
    RESTORE_REFUSED = "RestoreRefused"
    """spec.restore names a step of which there is no checkpoint that can be used; the message names
    the steps."""
    CHECKPOINT_SEALED = "CheckpointSealed"
    """A checkpoint is complete."""
    CHECKPOINT_FOUND = "CheckpointFound"
    """A new attempt starts from a newer checkpoint than was known when it was decided on."""
    CHECKPOINT_BAD = "CheckpointBad"
    """A checkpoint could not be written, or was read and is wrong."""
    SUSPENDED = "Suspended"
    """The job is suspended, and all its agents may go."""
    AGENTS_RELEASED = "AgentsReleased"
    """All is done but the last checkpoint, which cannot be written: agents that are not needed for
    it have ended."""
    STORAGE_FAILED = "StorageFailed"
    """An agent cannot write checkpoints."""
    CORRUPTION = "Corruption"
    """Two agents got different bits from the same forward, or vote with different gradients or
    losses, and the step is computed again. Or their copies of a layer differ, and a verified
    checkpoint is restored."""
    HOOK_FAILED = "HookFailed"
    """A hook of spec.hooks raised, hung or ended. Training goes on. Recorded once for each hook."""
    WORKER_FAILED = "WorkerFailed"
    """An agent's worker process failed."""
    POD_CHANGED = "PodChanged"
    """Somebody has changed the seal of an agent's pod, or its label of the job. The operator cannot
    use the pod any more, and deletes it."""
    START_FAILED = "StartFailed"
    """The pods of agents ended before the operator had heard the agents. Recorded once for each
    round of pods."""
    LEADERSHIP_LOST = "LeadershipLost"
    """Another operator leads the job."""


class EventFact(StrEnum):
    """Names of the facts."""

    AGENTS = "agents"
    """Names of the agents that the event is about, separated by commas."""
    EPOCH = "epoch"
    """Number of the plan that a stop prepares."""
    STEP = "step"
    """Number of a step."""
    ATTEMPT = "attempt"
    """Number of the attempt."""
    LAYER = "layer"
    """Number of a layer; -1: none."""
    MICROBATCH = "microbatch"
    """Number of a micro-batch within the step; -1: the copies of a layer differ; -2: gradients
    or losses do."""
    PAUSE_S = "pauseSeconds"
    """Seconds from the stop to the next committed step."""
    LEAD_S = "leadSeconds"
    """Seconds until the agent leaves; 0: unknown."""
    PIPELINES = "pipelines"
    """Number of pipelines."""
    STAGES = "stages"
    """Number of stages in a pipeline."""
    EMPTY_SEATS = "emptySeats"
    """Number of seats without an agent."""
    LEAVING = "leaving"
    """Number of members that hand over their state and leave."""
    LEARNERS = "learners"
    """Number of newcomers that get copies before they take part."""
    COPIED_LAYERS = "copiedLayers"
    """Number of layers copied from agent to agent."""
    LOADED_LAYERS = "loadedLayers"
    """Number of layers loaded from a checkpoint, or built before the first step."""
    REPEATED_STEPS = "repeatedSteps"
    """Number of committed steps that are computed again."""
    UNDONE_STEPS = "undoneSteps"
    """Number of committed steps that are computed again because a restore has undone them."""
    REDONE_TASKS = "redoneTasks"
    """Least number of forwards and backwards of the interrupted step that are computed again."""
    NETWORK_GBPS = "networkGbps"
    """Network between two agents with which the plan counts: the lower of the field
    spec.transport.bandwidthGbps and of what agents have measured for a while."""
    PROCESSOR = "processor"
    """Kind of processor that computes from the step on."""
    PROCESSOR_BEFORE = "processorBefore"
    """Kind of processor that computed until then."""
    SOURCE = "source"
    """Who has heard the notice: Gce, AwsSpot, AwsRebalance or Azure for a metadata server, Node for
    the node's taints and conditions, and nothing for SIGTERM."""
    CAUSE = "cause"
    """Why an attempt begins: LayerLost, NoVoter (none of the agents that know the newest committed
    step has reported in time), Corruption, Resumed or UserRequested (by spec.restore). Why an agent
    failed: its own word, such as WorkerExited. Why training stands still: InstructionOverdue,
    WaitCycle, ItemNotSent, LinkTooSlow, SeveralOverdue, StorageSlow or DataSlow. Why training had
    stopped that goes on: as in status.totals.pauses, and nothing at the first start."""


class RestoreCause(StrEnum):
    """Why a new attempt begins."""

    LAYER_LOST = "LayerLost"
    """A layer has no live copy."""
    NO_VOTER = "NoVoter"
    """None of the agents that know the newest committed step has reported in time."""
    CORRUPTION = "Corruption"
    """Two agents computed different bits, again and again, and nobody knows which are right; or
    wrong bits were found after their step was committed."""
    RESUMED = "Resumed"
    """The user resumed a suspended job, or raised spec.training.steps of a complete one."""
    USER_REQUESTED = "UserRequested"
    """The user asked for it by spec.restore."""


class StallCause(StrEnum):
    """Why training stands still although all agents live."""

    OVERDUE = "InstructionOverdue"
    """An instruction takes far longer than ever before."""
    CYCLE = "WaitCycle"
    """Agents wait for each other."""
    NOT_SENT = "ItemNotSent"
    """Agents wait for one that has nothing to do."""
    STORAGE = "StorageSlow"
    """Agents wait for storage."""
    DATA = "DataSlow"
    """An agent waits for a sample of the user's data."""
    COMMON = "SeveralOverdue"
    """Instructions of several agents take far longer than ever before."""
    TRICKLE = "LinkTooSlow"
    """A link passes hardly anything of what is awaited."""


FACTS: Mapping[EventReason, tuple[EventFact, ...]] = {
    EventReason.AGENT_LOST: (EventFact.AGENTS,),
    EventReason.AGENT_LEFT: (EventFact.AGENTS,),
    EventReason.AGENT_LEAVING: (EventFact.AGENTS, EventFact.LEAD_S, EventFact.SOURCE),
    EventReason.AGENT_AT_RISK: (EventFact.AGENTS, EventFact.SOURCE),
    EventReason.AGENT_REFUSED: (EventFact.AGENTS, EventFact.CAUSE),
    EventReason.PROCESSOR_CHANGED: (
        EventFact.ATTEMPT,
        EventFact.STEP,
        EventFact.PROCESSOR,
        EventFact.PROCESSOR_BEFORE,
    ),
    EventReason.STOPPED: (EventFact.EPOCH, EventFact.AGENTS),
    EventReason.RESUMED: (
        EventFact.EPOCH,
        EventFact.STEP,
        EventFact.PAUSE_S,
        EventFact.UNDONE_STEPS,
        EventFact.CAUSE,
    ),
    EventReason.PLANNED: (
        EventFact.EPOCH,
        EventFact.STEP,
        EventFact.PIPELINES,
        EventFact.STAGES,
        EventFact.AGENTS,
        EventFact.EMPTY_SEATS,
        EventFact.LEAVING,
        EventFact.LEARNERS,
        EventFact.COPIED_LAYERS,
        EventFact.LOADED_LAYERS,
        EventFact.REPEATED_STEPS,
        EventFact.REDONE_TASKS,
        EventFact.NETWORK_GBPS,
    ),
    EventReason.STALLED: (EventFact.CAUSE, EventFact.AGENTS),
    EventReason.STEP_SKIPPED: (EventFact.STEP, EventFact.LAYER),
    EventReason.AGENT_SLOW: (EventFact.AGENTS,),
    EventReason.WAITING: (),
    EventReason.MEMORY_SHORT: (),
    EventReason.RESTORING: (
        EventFact.CAUSE,
        EventFact.ATTEMPT,
        EventFact.STEP,
        EventFact.REPEATED_STEPS,
    ),
    EventReason.RESTORE_REFUSED: (),
    EventReason.CHECKPOINT_SEALED: (EventFact.STEP,),
    EventReason.CHECKPOINT_FOUND: (EventFact.ATTEMPT, EventFact.STEP),
    EventReason.CHECKPOINT_BAD: (EventFact.AGENTS, EventFact.STEP),
    EventReason.SUSPENDED: (),
    EventReason.AGENTS_RELEASED: (EventFact.AGENTS, EventFact.STEP),
    EventReason.STORAGE_FAILED: (EventFact.AGENTS,),
    EventReason.CORRUPTION: (
        EventFact.AGENTS,
        EventFact.STEP,
        EventFact.LAYER,
        EventFact.MICROBATCH,
    ),
    EventReason.HOOK_FAILED: (EventFact.AGENTS,),
    EventReason.WORKER_FAILED: (EventFact.AGENTS, EventFact.CAUSE),
    EventReason.POD_CHANGED: (EventFact.AGENTS,),
    EventReason.START_FAILED: (EventFact.AGENTS, EventFact.CAUSE),
    EventReason.LEADERSHIP_LOST: (),
}
"""The facts of each reason; STOPPED names only agents that caused the stop."""
