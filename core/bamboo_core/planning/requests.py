"""What the planner is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.placement.plan import Cut, Pipeline, Plan
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    LayerCost,
    Manifest,
)


@dataclass(frozen=True)
class Participant:
    """A stopped agent that may be in the plan."""

    zone: str
    node: str
    data_address: str
    liveness_address: str
    key: bytes


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan is computed from.

    layers: of the model; costs: one per layer, or empty; pipelines: wanted; least: needed;
    grid, cut, step_cut, target: of the plan in force (grid empty: none); participants: all who have
    reported; draining: may only help until the target step has ended; short_notice: may only send;
    base: newest commit that holds without any report (a restore: version ``base + 1`` is in a file;
    -1: nothing yet); manifests: checkpoints that this attempt may read; has_voter: one of the plan
    in force reports, so that its commits are known; is_full: no seat may stay empty; is_last:
    suspend after the target step; catch_up_above_bytes: see :class:`Timing`; memory_bytes: of the
    smallest device, 0: not known.
    """

    fence: Fence
    spec: JobSpec
    batch: BatchShape
    layers: int
    costs: tuple[LayerCost, ...]
    validation_samples: int
    pipelines: int
    grid: tuple[Pipeline, ...]
    cut: Cut
    step_cut: Cut
    target: int
    participants: dict[AgentId, Participant]
    reports: dict[AgentId, AgentReport]
    draining: frozenset[AgentId]
    short_notice: frozenset[AgentId]
    manifests: tuple[Manifest, ...]
    base: int
    has_voter: bool
    is_full: bool
    is_last: bool
    least: int = 1
    catch_up_above_bytes: float = inf
    memory_bytes: int = 0


@dataclass(frozen=True)
class Decision:
    """A plan with everyone's directive. :class:`Continuations` follow unless it ends with its
    target step."""

    plan: Plan
    directives: dict[AgentId, Directive]
    committed: int  # newest commit in any report, or the base
    tasks: int  # compute tasks that were missing
    copies: int  # layers that move between agents
    loads: int  # layers that are read from files


@dataclass(frozen=True)
class Continuations:
    """Programs of the plan's later steps, for each of its members."""

    directives: dict[AgentId, Continuation]


@dataclass(frozen=True)
class Fatal:
    """These layers have neither a usable holder nor a file of exactly the needed version."""

    layers: tuple[int, ...]
    committed: int


@dataclass(frozen=True)
class Unplaceable:
    """No grid is possible with these agents; more or others may help."""

    message: str


@dataclass(frozen=True)
class PlannerFault:
    """The planner met a defect of its own; the job cannot be led on."""

    message: str


PlanResult = Decision | Continuations | Fatal | Unplaceable | PlannerFault
