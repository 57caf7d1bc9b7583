"""The words that users see in status and events: phases, conditions, reasons.

They are constants of the API: docs tables are tested against these enums.
"""

from __future__ import annotations

from enum import StrEnum


class JobPhase(StrEnum):
    """One word for the whole job; computed from the conditions, never the other way round."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """One condition for each question that a user asks."""

    ACCEPTED = "Accepted"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    ZONE_SPREAD_SATISFIED = "ZoneSpreadSatisfied"
    RUNNING = "Running"
    DEGRADED = "Degraded"
    RECOVERING = "Recovering"
    STALLED = "Stalled"
    CHECKPOINTED = "Checkpointed"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Reason(StrEnum):
    """Why a condition has its status."""

    # Accepted
    SPEC_RESOLVED = "SpecResolved"
    SPEC_INVALID = "SpecInvalid"
    SPEC_CHANGED = "SpecChanged"
    POD_REJECTED = "PodRejected"
    # CapacityAvailable
    ALL_PLACED = "AllPlaced"
    WAITING_FOR_NODES = "WaitingForNodes"
    NODES_TOO_SMALL = "NodesTooSmall"
    # ZoneSpreadSatisfied
    NEIGHBOURS_SEPARATED = "NeighboursSeparated"
    NEIGHBOURS_SHARE_ZONE = "NeighboursShareZone"
    NOT_WANTED = "NotWanted"
    PLACEMENT_INFEASIBLE = "PlacementInfeasible"
    # Running
    TRAINING_STEP = "TrainingStep"
    INITIALIZING = "Initializing"
    WAITING_FOR_AGENTS = "WaitingForAgents"
    SUSPENDED_BY_USER = "SuspendedByUser"
    NOT_ACCEPTED = "NotAccepted"
    FINISHED = "Finished"
    # Degraded
    LAYERS_UNPROTECTED = "LayersUnprotected"
    FEWER_AGENTS = "FewerAgents"
    FEWER_PIPELINES = "FewerPipelines"
    FULLY_PROTECTED = "FullyProtected"
    NOT_PROTECTED = "NotProtected"
    NO_PLAN = "NoPlan"
    # Recovering
    REPLANNING = "Replanning"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    IDLE = "Idle"
    # Stalled
    RECONCILE_ERROR = "ReconcileError"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_CANNOT_START = "ContainerCannotStart"
    PROGRESSING = "Progressing"
    # Checkpointed
    SEALED = "Sealed"
    WRITE_FAILED = "WriteFailed"
    NONE_YET = "NoneYet"
    # Suspended
    USER_REQUESTED = "UserRequested"
    RESUMED = "Resumed"
    # Complete
    STEPS_REACHED = "StepsReached"
    # Complete and Failed, as long as they are not true
    NOT_YET = "NotYet"
    # Failed
    USER_CODE_FAILED = "UserCodeFailed"
    FINGERPRINT_MISMATCH = "FingerprintMismatch"
    DATA_TOO_SMALL = "DataTooSmall"
    TOO_FEW_LAYERS = "TooFewLayers"
    PLANNING_FAILED = "PlanningFailed"
    CHECKPOINT_FAILED = "CheckpointFailed"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    PENDING_DEADLINE_EXCEEDED = "PendingDeadlineExceeded"


_USERS = (Reason.USER_CODE_FAILED, Reason.DATA_TOO_SMALL, Reason.CHECKPOINT_FAILED)


def user_reason(text: str) -> Reason:
    """Why a job ends for which trying again cannot help, from the word with which an agent's text
    begins (it may be any text)."""
    said = text.partition(":")[0]
    return next((reason for reason in _USERS if said == reason), Reason.USER_CODE_FAILED)
