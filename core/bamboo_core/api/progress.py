"""How far training has come: one record on its way from the agents' reports to the job's status."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import NamedTuple, TypeVar

from bamboo_core.model.ids import AgentId

MOST_ZONES = 8
"""Zones with a name of their own in what is counted by zone."""
OTHERS = "others"
"""All zones beyond these."""

MOST_METRICS = 16
"""Metrics that a loss may return beside what is minimized."""
METRIC_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,39}")
"""How a metric may be called."""

Metrics = dict[str, float]
"""Name -> value, at most MOST_METRICS."""

MOST_SLOW_PEERS = 2
"""Peers that an agent names in each direction with what it says of its network."""

_Number = TypeVar("_Number", int, float)


def increase(before: _Number, after: _Number) -> _Number:
    """How much a sum has grown. Never negative, and finite, whatever an agent says."""
    return after - before if before < after < inf else type(before)(0)


@dataclass(frozen=True)
class Ahead:
    """The work computed ahead since the start, by one worker or by all workers of a job."""

    slices: int = 0  # a layer of one micro-batch's forward each
    dropped: int = 0  # forwards, for want of room
    host_bytes: int = 0  # most that one agent had in host memory at once
    copied_bytes: int = 0  # to host memory and back
    copied_s: float = 0.0  # time that this took
    left_bytes: int = 0  # found no room in host memory and stayed on the device
    failed: int = 0  # slices that ended in an error, each with the rest of its forward

    def grown(self, before: Ahead, after: Ahead) -> Ahead:
        """The job's figures, when those of one worker have grown."""
        return Ahead(
            self.slices + increase(before.slices, after.slices),
            self.dropped + increase(before.dropped, after.dropped),
            max(self.host_bytes, after.host_bytes),
            self.copied_bytes + increase(before.copied_bytes, after.copied_bytes),
            self.copied_s + increase(before.copied_s, after.copied_s),
            self.left_bytes + increase(before.left_bytes, after.left_bytes),
            self.failed + increase(before.failed, after.failed),
        )


@dataclass(frozen=True)
class Hosted:
    """Weights and optimizer state of replicas in host memory, since the start, as in Ahead."""

    host_bytes: int = 0  # most that one agent had in host memory at once
    left_bytes: int = 0  # most that stayed on the device of one agent for want of room
    copied_bytes: int = 0  # to host memory and back
    copied_s: float = 0.0  # time that this took

    def grown(self, before: Hosted, after: Hosted) -> Hosted:
        """The job's figures, when those of one worker have grown."""
        return Hosted(
            max(self.host_bytes, after.host_bytes),
            max(self.left_bytes, after.left_bytes),
            self.copied_bytes + increase(before.copied_bytes, after.copied_bytes),
            self.copied_s + increase(before.copied_s, after.copied_s),
        )


class Lane(StrEnum):
    """The purpose of bytes that agents send each other."""

    BOUNDARY = "Boundary"
    """Activations and gradients between stages."""
    SUMS = "Sums"
    """Sums of gradients, on their way to the pipelines and to replicas."""
    COPIES = "Copies"
    """Weights and optimizer state for other agents, and what a leaver hands over."""


@dataclass(frozen=True)
class Sent:
    """Bytes of tensors that a worker has sent to the agents of a zone, since its start."""

    zone: str  # of the receivers; empty: not known
    boundary_bytes: int = 0
    sum_bytes: int = 0
    copy_bytes: int = 0
    group_bytes: int = 0  # of all these, what process groups have carried

    def by_lane(self) -> dict[Lane, int]:
        """The bytes of each lane."""
        values = (self.boundary_bytes, self.sum_bytes, self.copy_bytes)
        return dict(zip(Lane, values, strict=True))


@dataclass(frozen=True)
class PeerRate:
    """How fast bytes go to an agent, or come from it."""

    peer: AgentId
    rate: float  # bytes per second


@dataclass(frozen=True)
class Goodput:
    """What one agent's network has passed lately, in bytes per second; 0: not measured.

    Only transfers that are large enough count, and all that run at once count together. So the rate
    of a peer is what passed to all peers while bytes went to it.
    """

    sending: float = 0.0
    receiving: float = 0.0
    slowest_to: tuple[PeerRate, ...] = ()  # slowest first, at most MOST_SLOW_PEERS
    slowest_from: tuple[PeerRate, ...] = ()


class SlowPair(NamedTuple):
    """The pair of agents between which bytes go most slowly, as both ends have measured."""

    sender: AgentId
    receiver: AgentId
    rate: float  # bytes per second


@dataclass(frozen=True)
class Network:
    """What the network of a job gives, in bytes per second."""

    planned: float = 0.0  # with which the next plan counts; 0: not known
    measured: float = 0.0  # by agents; 0: not yet, by this operator
    slowest: SlowPair | None = None  # None: no pair is known from both ends


class Unwritten(NamedTuple):
    """The last checkpoint, which cannot be written though all else is done."""

    step: int
    why: str  # which agent, where, and the error
    left_s: float  # until the job gives up
    dollars_per_hour: float | None = None  # that the agents cost meanwhile; None: no price is known
    unpriced: int = 0  # nodes of these agents that no price is known of
    layers: tuple[int, ...] = ()  # that have no file yet; empty: that is not known
    successors: int = 0  # further agents that are wanted, since all that hold the state will leave
    failing: str = ""  # by which error of the user's code the job ends


class Way(NamedTuple):
    """The purpose of bytes, and the zones from and to which they go."""

    lane: str
    from_zone: str
    to_zone: str


class BestCheckpoint(NamedTuple):
    """The complete checkpoint with the best value of the metric of spec.checkpoint.best."""

    step: int
    attempt: int
    metric: str
    value: float
    path: str  # its folder's manifest


@dataclass(frozen=True)
class TrainingProgress:
    """Informative, never decisive: no step is skipped or repeated because of it."""

    committed: int = -1  # newest committed step; -1: none
    loss: float | None = None  # training loss of that step; None: unknown
    validation_loss: float | None = None  # newest one
    step_s: float = 0.0  # duration of the last step in seconds; 0: unknown
    skipped: int = 0  # steps of this attempt that changed no layer
    metrics: Metrics = field(default_factory=dict, hash=False)  # beside ``loss``
    validation_metrics: Metrics = field(default_factory=dict, hash=False)  # newest

    def trained(self, step: int, loss: float, metrics: Metrics, skipped: int) -> TrainingProgress:
        """After the commit of this step."""
        return replace(self, committed=step, loss=loss, metrics=metrics, skipped=skipped)

    def validated(self, loss: float, metrics: Metrics) -> TrainingProgress:
        """After a validation."""
        return replace(self, validation_loss=loss, validation_metrics=metrics)

    def samples_per_s(self, batch: int) -> float:
        """Speed with ``batch`` samples in a step; 0: unknown."""
        return batch / self.step_s if self.step_s > 0 else 0.0
