"""Kubernetes Events about a job: their reasons, and the facts that each carries as annotations.

The sentence of an event is for people. Programs read the facts: annotation ``bamboo.dev/NAME``.
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
    AGENT_LEFT = "AgentLeft"
    AGENT_LEAVING = "AgentLeaving"
    AGENT_REFUSED = "AgentRefused"
    STOPPED = "Stopped"
    RESUMED = "Resumed"
    PLANNED = "Planned"
    WAITING = "Waiting"
    RESTORING = "Restoring"
    CHECKPOINT_SEALED = "CheckpointSealed"
    CHECKPOINT_BAD = "CheckpointBad"
    WORKER_FAILED = "WorkerFailed"
    LEADERSHIP_LOST = "LeadershipLost"


class EventFact(StrEnum):
    """Names of the facts."""

    AGENTS = "agents"  # names, separated by commas: whom the event is about
    EPOCH = "epoch"  # number of the plan that a stop prepares
    STEP = "step"
    ATTEMPT = "attempt"
    PAUSE_S = "pauseSeconds"  # from the stop to the next committed step
    LEAD_S = "leadSeconds"  # how long an agent will still be there
    PIPELINES = "pipelines"
    STAGES = "stages"
    EMPTY_SEATS = "emptySeats"
    LEAVING = "leaving"  # number of members that hand over what they hold
    LEARNERS = "learners"  # number of newcomers that get copies before they take part
    COPIED_LAYERS = "copiedLayers"
    LOADED_LAYERS = "loadedLayers"
    REPEATED_STEPS = "repeatedSteps"  # committed steps that are computed again


FACTS: Mapping[EventReason, tuple[EventFact, ...]] = {
    EventReason.AGENT_LOST: (EventFact.AGENTS,),
    EventReason.AGENT_LEFT: (EventFact.AGENTS,),
    EventReason.AGENT_LEAVING: (EventFact.AGENTS, EventFact.LEAD_S),
    EventReason.AGENT_REFUSED: (EventFact.AGENTS,),
    EventReason.STOPPED: (EventFact.EPOCH, EventFact.AGENTS),
    EventReason.RESUMED: (EventFact.EPOCH, EventFact.STEP, EventFact.PAUSE_S),
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
    ),
    EventReason.WAITING: (),
    EventReason.RESTORING: (EventFact.ATTEMPT, EventFact.STEP, EventFact.REPEATED_STEPS),
    EventReason.CHECKPOINT_SEALED: (EventFact.STEP,),
    EventReason.CHECKPOINT_BAD: (EventFact.STEP,),
    EventReason.WORKER_FAILED: (EventFact.AGENTS,),
    EventReason.LEADERSHIP_LOST: (),
}
"""The facts of each reason; STOPPED names only agents that caused the stop."""
