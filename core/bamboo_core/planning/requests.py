"""Requests to the planner, and its results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Program
from bamboo_core.model.ties import Ties
from bamboo_core.placement.plan import Cut, Move, Pipeline, Plan
from bamboo_core.planning.redone import Part
from bamboo_core.protocol.messages import (
    AgentReport,
    Continuation,
    Directive,
    LayerCost,
    Manifest,
    Question,
)
from bamboo_core.scheduling.costs import Durations


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
    """All inputs of a plan."""

    fence: Fence
    spec: JobSpec
    batch: BatchShape
    layers: int  # of the model
    costs: tuple[LayerCost, ...]  # one per layer; empty: not measured
    validation_samples: int
    pipelines: int  # wanted
    # Grid, cuts and target of the plan in force; an empty grid: there is none.
    grid: tuple[Pipeline, ...]
    cut: Cut
    step_cut: Cut
    target: int
    participants: dict[AgentId, Participant]  # all agents that have reported
    reports: dict[AgentId, AgentReport]
    draining: frozenset[AgentId]  # may only help until the target step has ended
    short_notice: frozenset[AgentId]  # may only send
    manifests: tuple[Manifest, ...]  # checkpoints that this attempt may read
    # The newest commit known without any report; -1: none. In a restore, a file holds version
    # ``base + 1``.
    base: int
    has_voter: bool  # a voter of the plan in force has reported, so its commits are known
    is_full: bool  # no seat may stay empty
    is_last: bool  # suspend after the target step
    least: int = 1  # pipelines needed
    rewrites: int = -1  # the step whose checkpoint is all that is left to do; -1: none
    catch_up_above_bytes: float = inf  # see :class:`Timing`
    memory_bytes: int = 0  # of the smallest device; 0: unknown
    # Relative to the typical agent (absent: 1); the faster of two gets more work.
    speeds: Mapping[AgentId, float] = field(default_factory=dict)
    goodput: float = inf  # bytes per second between two agents, as measured; inf: it is not
    ties: Ties = ()  # layers with a parameter in common
    question: Question | None = None  # a dispute that this plan may settle
    move: Move | None = None  # to be made, unless it takes the last copy of a layer

    @property
    def bytes_per_s(self) -> float:
        """The network between two agents: the spec is the upper bound of what is measured."""
        return min(self.spec.transport.bytes_per_s, self.goodput)


@dataclass(frozen=True)
class Decision:
    """A plan with a directive for each member.

    :class:`Continuations` follow unless the plan ends with its target step, then perhaps a
    :class:`Relocation`.
    """

    plan: Plan
    directives: dict[AgentId, Directive]
    committed: int  # newest commit in any report, or the base
    tasks: int  # compute tasks that were missing
    copies: int  # layers that move between agents
    loads: int  # layers that are read from files
    # Why the smallest device does not suffice for the mode of redundancy; empty: it does.
    shortage: str = ""


@dataclass(frozen=True)
class Expected:
    """Computing time of one agent in a steady step, by the measured costs."""

    step_s: float  # of what runs in every step
    # (every, first, seconds) of instructions that run only in some steps
    periodic: tuple[tuple[int, int, float], ...] = ()

    @staticmethod
    def of(program: Program, durations: Durations) -> Expected:
        """The expectation for a steady program. durations: in seconds."""
        step_s, periodic = 0.0, defaultdict[tuple[int, int], float](float)
        for x in program:
            if x[0] in COMPUTE:
                if x.every > 1:
                    periodic[x.every, x.step] += durations.of(x)
                else:
                    step_s += durations.of(x)
        return Expected(step_s, tuple((*key, s) for key, s in sorted(periodic.items())))

    def at(self, step: int) -> float:
        """Seconds in an absolute step."""
        return self.step_s + sum(s for n, first, s in self.periodic if not (first + step) % n)


class Bound(StrEnum):
    """What a length says, in words for its reader."""

    NONE = ""  # it takes so long
    LEAST = "at least"  # it was not run, since its busiest agent alone takes longer than the best
    MOST = "at most"  # it is far from the best, so only split or only fused backwards were tried


class StepTime(NamedTuple):
    """A step in which lost work is shared in one way."""

    way: str
    step_s: float
    bound: Bound = Bound.NONE


@dataclass(frozen=True)
class Comparison:
    """The way that was taken, and what the others would cost, the shortest first."""

    taken: StepTime
    others: tuple[StepTime, ...] = ()


@dataclass(frozen=True)
class Continuations:
    """Programs of the plan's later steps, for each of its members."""

    directives: dict[AgentId, Continuation]
    expected: dict[AgentId, Expected] = field(default_factory=dict)  # empty: costs not measured
    # what agents compute in the target step, and in each later one; known here to save the time of
    # those who wait after the next loss
    told: tuple[frozenset[Part], frozenset[Part]] | None = None
    # How lost work is shared in the later steps; None: none is lost, or nothing was compared.
    sharing: Comparison | None = None


@dataclass(frozen=True)
class Relocation:
    """Later steps are shorter, or safer, if an agent moves to an empty seat of another stage."""

    move: Move
    now: float  # length of a step
    then: float


@dataclass(frozen=True)
class Fatal:
    """These layers have neither a usable holder nor a file of exactly the needed version."""

    layers: tuple[int, ...]
    committed: int


@dataclass(frozen=True)
class Unplaceable:
    """These agents cannot form a grid; more or other agents may help."""

    message: str


@dataclass(frozen=True)
class PlannerFault:
    """The planner has a defect; the job cannot continue. Or only its operator has no room now."""

    message: str
    is_defect: bool = True


PlanResult = Decision | Continuations | Relocation | Fatal | Unplaceable | PlannerFault
