"""The words of the status: phases, conditions, reasons.

They are part of the API. The reference page is generated from the strings below the members.
"""

from __future__ import annotations

from enum import StrEnum


class JobPhase(StrEnum):
    """One word for the whole job; computed from the conditions, never the other way round."""

    PENDING = "Pending"
    """The job has no running pods yet."""
    STARTING = "Starting"
    """Pods are running; training has not begun."""
    RUNNING = "Running"
    """Training."""
    RECOVERING = "Recovering"
    """Training is interrupted, either for a new plan or because there are too few agents."""
    SUSPENDING = "Suspending"
    """The agents write a checkpoint and leave."""
    SUSPENDED = "Suspended"
    """The job has no agents because spec.suspend is true, or because Kueue has not admitted it."""
    COMPLETE = "Complete"
    """All steps are committed."""
    FAILED = "Failed"
    """The job has failed and stays failed."""


class ConditionType(StrEnum):
    """One condition for each question that a user asks."""

    ACCEPTED = "Accepted"
    """Is the spec usable?"""
    CAPACITY_AVAILABLE = "CapacityAvailable"
    """Does every agent have a node?"""
    ZONE_SPREAD_SATISFIED = "ZoneSpreadSatisfied"
    """Are neighbouring stages in different zones?"""
    RUNNING = "Running"
    """Is a plan in force, so that the job trains?"""
    DEGRADED = "Degraded"
    """Does the job run with less than the spec asks for, or would a loss cost a restore?"""
    RECOVERING = "Recovering"
    """Is training stopped until a new plan is in force?"""
    STALLED = "Stalled"
    """Is something stuck that does not resolve by itself?"""
    CHECKPOINTED = "Checkpointed"
    """Is there a complete checkpoint, and can newer ones be written?"""
    SUSPENDED = "Suspended"
    """Is the job suspended, with no agents left?"""
    COMPLETE = "Complete"
    """Is the job complete? Once true, it stays true, unless spec.training.steps is raised."""
    FAILED = "Failed"
    """Has the job failed? Once true, it stays true."""


class Reason(StrEnum):
    """Why a condition has its status."""

    # Accepted
    SPEC_RESOLVED = "SpecResolved"
    """The spec is usable."""
    SPEC_INVALID = "SpecInvalid"
    """The spec cannot be used; the message names the fields."""
    SPEC_CHANGED = "SpecChanged"
    """Arguments of the model, the data or the optimizer were changed after the start, or
    spec.training.steps cannot be taken; the message says why."""
    POD_REJECTED = "PodRejected"
    """The API server rejects the agents' pods, for example because of a quota or a policy."""
    OPERATOR_FULL = "OperatorFull"
    """The operator has no memory left for the job's plans; the message has the figures."""
    # CapacityAvailable
    ALL_PLACED = "AllPlaced"
    """Every agent has a node."""
    WAITING_FOR_NODES = "WaitingForNodes"
    """Some agents have no node or no pod yet."""
    WAITS_IN_LINE = "WaitsInLine"
    """There is no room for the smallest grid, and another job is ahead, so the job has no pods."""
    NODES_TOO_SMALL = "NodesTooSmall"
    """No node is large enough for an agent."""
    NO_NODE_SUITS = "NoNodeSuits"
    """No node has the labels that the agents need without a taint that they do not tolerate."""
    DEVICE_DIFFERS = "DeviceDiffers"
    """Agents were refused since their processors compute other bits than those of the others, and
    the operator pauses before it makes new ones. The message names both. This is no failure."""
    # ZoneSpreadSatisfied
    NEIGHBOURS_SEPARATED = "NeighboursSeparated"
    """No two neighbouring stages share a zone."""
    NEIGHBOURS_SHARE_ZONE = "NeighboursShareZone"
    """Neighbouring stages share a zone, so losing the zone may cost a restore."""
    NOT_WANTED = "NotWanted"
    """The spec does not ask for separate zones."""
    PLACEMENT_INFEASIBLE = "PlacementInfeasible"
    """No number of nodes in the known zones could satisfy the zone rule."""
    # Running
    TRAINING_STEP = "TrainingStep"
    """A plan is in force."""
    INITIALIZING = "Initializing"
    """All agents are connected; they load their data and model and get the first plan."""
    WAITING_FOR_AGENTS = "WaitingForAgents"
    """Some agents are not connected yet."""
    SUSPENDED_BY_USER = "SuspendedByUser"
    """spec.suspend is true."""
    QUEUED_BY_KUEUE = "QueuedByKueue"
    """Kueue has not admitted the job, or has evicted it; the message says why."""
    TEMPLATE_CHANGED = "TemplateChanged"
    """Agents of an older template hold the job's state. The operator suspends the job until they
    have saved it, and resumes it by itself."""
    NOT_ACCEPTED = "NotAccepted"
    """The spec is not accepted; see the condition Accepted."""
    FINISHED = "Finished"
    """The job has ended."""
    # Degraded
    LAYERS_UNPROTECTED = "LayersUnprotected"
    """Some layers have one live copy, or none, although the spec promises more."""
    FEWER_AGENTS = "FewerAgents"
    """Fewer agents than wanted do all the work."""
    FEWER_PIPELINES = "FewerPipelines"
    """Fewer pipelines than wanted are training."""
    MEMORY_SHORT = "MemoryShort"
    """The smallest device may not suffice for the mode of redundancy; the message says how much."""
    FULLY_PROTECTED = "FullyProtected"
    """Every seat is taken and every layer has at least two live copies."""
    NOT_PROTECTED = "NotProtected"
    """Every seat is taken, but the spec keeps only one copy of each layer."""
    NO_PLAN = "NoPlan"
    """No plan is in force."""
    # Recovering
    REPLANNING = "Replanning"
    """Training is stopped while the agents get a new plan."""
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    """Too few agents are left; they keep the state and wait for others."""
    IDLE = "Idle"
    """No change of plan is under way."""
    # Stalled
    RECONCILE_ERROR = "ReconcileError"
    """The operator cannot reconcile the job; the message has the error."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """An agent's image cannot be pulled."""
    CONTAINER_CANNOT_START = "ContainerCannotStart"
    """A container of an agent's pod cannot be created or started, or does not start for minutes."""
    CONTAINER_FAILED = "ContainerFailed"
    """A container beside an agent has failed. The kubelet does not start it again."""
    OBJECT_MISSING = "ObjectMissing"
    """The agents' pods name a PersistentVolumeClaim, Secret or ConfigMap that does not exist, or
    does not have what they ask for."""
    STARTS_FAIL = "StartsFail"
    """The pods of agents end before the operator has heard the agents, or soon afterwards without
    an order. The message has the last end, how often it has happened, when there will be new pods,
    and what to do."""
    NOT_HEARD = "NotHeard"
    """The containers of agents run, but these agents have never connected to the operator."""
    NO_PROGRESS = "NoProgress"
    """Training stands still: agents wait for each other without end, one computes for far too
    long, or the storage does not answer. The message says which."""
    LAST_WRITE_WAITS = "LastWriteWaits"
    """All is done but the last checkpoint, which cannot be written. One copy of each layer stays on
    agents, which try again. The message says what is missing, what they cost, and for how long."""
    CHECKPOINT_UNREACHABLE = "CheckpointUnreachable"
    """A checkpoint that the job needs cannot be read, so the job waits. The message names the path
    and what to do. The job does not go back to an older one by itself."""
    PROGRESSING = "Progressing"
    """Nothing is stuck."""
    # Checkpointed
    SEALED = "Sealed"
    """The newest checkpoint is complete."""
    WRITE_FAILED = "WriteFailed"
    """Checkpoints cannot be written; the message names the agent and the cause."""
    NONE_YET = "NoneYet"
    """No checkpoint is complete yet, or spec.checkpoint is not set."""
    # Suspended
    USER_REQUESTED = "UserRequested"
    """spec.suspend is true and all agents have left."""
    RESUMED = "Resumed"
    """The job is not suspended."""
    # Complete
    STEPS_REACHED = "StepsReached"
    """All steps are committed."""
    # Complete and Failed, as long as they are not true
    NOT_YET = "NotYet"
    """The job has not ended this way."""
    # Failed
    USER_CODE_FAILED = "UserCodeFailed"
    """The model, data or optimizer code raised an error."""
    FINGERPRINT_MISMATCH = "FingerprintMismatch"
    """The code, args, data, library versions or first results of an agent differ from those of the
    others, so it was refused. This counts as a failure of the agent and does not end the job by
    itself."""
    DATA_TOO_SMALL = "DataTooSmall"
    """The data set has too few samples for the batch."""
    DATA_TOO_LARGE = "DataTooLarge"
    """The validation set has too many micro-batches to be planned."""
    TOO_FEW_LAYERS = "TooFewLayers"
    """The model has fewer layers than spec.pipelines.stages."""
    NOT_FINITE = "NotFinite"
    """More steps in a row changed no layer than spec.training.onNonFinite.skip tolerates, because a
    gradient was not finite or the batch had no targets."""
    PLANNING_FAILED = "PlanningFailed"
    """The planner found no valid plan; this is a defect of Bamboo."""
    CHECKPOINT_FAILED = "CheckpointFailed"
    """A checkpoint that the job needs cannot be written or read."""
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    """Agents failed more often than spec.runPolicy.backoffLimit tolerates, not counting failures
    that are forgiven."""
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    """The job ran for spec.runPolicy.activeDeadlineSeconds."""
    PENDING_DEADLINE_EXCEEDED = "PendingDeadlineExceeded"
    """Training did not begin within spec.runPolicy.pendingDeadlineSeconds."""


class FailureCause(StrEnum):
    """Why an agent failed."""

    WORKER_EXITED = "WorkerExited"
    """The worker's process ended although nobody had asked it to."""
    TASK_FAILED = "TaskFailed"
    """An instruction raised an error, for example out of device memory."""
    SET_UP_FAILED = "SetUpFailed"
    """The agent could not build the model or the data because of its disk, network or device."""
    CORRUPTION = "Corruption"
    """The agent computed something twice and got two results, or has other bits than two others, or
    was for the second time one of those whose copies or gradients of a layer differed, or found a
    checkpoint wrong twice that an agent on another node has read and found right."""
    STALLED = "Stalled"
    """Training stood still because of this agent, and did so again after all agents had been
    stopped and had got a new plan."""
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    """The agent was not ready within spec.runPolicy.startDeadlineSeconds."""
    USER_CODE_FAILED = "UserCodeFailed"
    """The model, data or optimizer code raised an error."""
    DATA_TOO_SMALL = "DataTooSmall"
    """The data set has too few samples for the batch."""
    DATA_TOO_LARGE = "DataTooLarge"
    """The validation set has too many micro-batches to be planned."""
    TOO_FEW_LAYERS = "TooFewLayers"
    """The model has fewer layers than spec.pipelines.stages."""
    CHECKPOINT_FAILED = "CheckpointFailed"
    """A checkpoint that the agent needs cannot be written or read."""
    FINGERPRINT_MISMATCH = "FingerprintMismatch"
    """The agent's code, args, data, library versions or first results differ from those of the
    others."""
    VERSION_DIFFERS = "VersionDiffers"
    """The agent's image has another version of Bamboo than the operator, whose programs it would
    not understand, so it was refused. The operator tries again after a pause."""
    IMPOSSIBLE_REPORT = "ImpossibleReport"
    """The agent reported something that no agent of the job can hold, such as a layer that the
    model does not have. No agent of Bamboo sends that."""
    START_FAILED = "StartFailed"
    """The agent's pod ended, or was deleted, before the operator had heard the agent: for example,
    an init container failed, a probe failed, or the kubelet refused or evicted the pod. Or the
    agent was killed soon after its start, while its node stayed."""
    OOM_KILLED = "OOMKilled"
    """The agent's container used more memory than its limit."""
    AGENT_FAILED = "AgentFailed"
    """Anything else; the message has the agent's last words."""


def failure_cause(text: str) -> FailureCause:
    """The cause that an agent's text begins with; AGENT_FAILED if it begins with another word."""
    said = text.partition(":")[0]
    return next((cause for cause in FailureCause if said == cause), FailureCause.AGENT_FAILED)


_USERS = (
    Reason.USER_CODE_FAILED,
    Reason.DATA_TOO_SMALL,
    Reason.DATA_TOO_LARGE,
    Reason.TOO_FEW_LAYERS,
    Reason.CHECKPOINT_FAILED,
)


def user_reason(text: str) -> Reason:
    """The reason of a failure that a retry cannot mend: the word at the start of an agent's text.
    USER_CODE_FAILED if that is not a reason."""
    said = text.partition(":")[0]
    return next((reason for reason in _USERS if said == reason), Reason.USER_CODE_FAILED)


def is_users(cause: str) -> bool:
    """True for causes of failures that are the fault of the user's code or configuration."""
    return cause in _USERS
