"""How the shell around a job's arbiter reaches the rest of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record, Timing
from bamboo_core.controller.view import JobView
from bamboo_core.job import orders
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_operator.admission.held_tasks import HeldTasks, TaskLimits
from bamboo_operator.status import durable_facts

RETURN_S = 30.0
"""How long members may take to find a new leader. Without a Service for the operator, its new
address takes a while to reach the nodes."""

RETURNS_PER_S = 20.0
"""Agents that a new leader certainly admits in a second, while it also reads thousands of pods.
In a large fleet members have as much longer than RETURN_S: those that we have not let in yet are
not lost."""


def timing(members: int) -> Timing:
    """For a new leader of jobs with so many members."""
    return Timing(return_s=max(RETURN_S, members / RETURNS_PER_S))


@dataclass(frozen=True)
class Ports:
    """How an actor reaches the rest of the operator."""

    # Writes facts under the rule of bamboo_operator.status.durable_facts.
    persist: Callable[[JobView, Durable, durable_facts.LeaderFacts], Coroutine[Any, Any, None]]
    # Deletes an agent's pod; the last argument is the reason.
    dismiss: Callable[[JobView, AgentId, str], Coroutine[Any, Any, None]]
    record: Callable[[JobView, Record], None]
    wake: Callable[[JobView], None]  # asks for a reconcile
    wake_later: Callable[[JobView], None]  # asks for one in a while, to show progress
    is_leading: Callable[[], bool]  # False: the actor does nothing until it is True again
    # The newest instant, not after the given one, at which everything that had come was read.
    heard_at: Callable[[float], float]
    # For how many seconds the event loop has had no work, since any instant.
    idle_s: Callable[[], float]
    plan: orders.Planner = planner.compute
    timing: Timing = field(default_factory=lambda: timing(0))
    large_plans: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: HeldTasks = field(default_factory=lambda: HeldTasks(TaskLimits()))
