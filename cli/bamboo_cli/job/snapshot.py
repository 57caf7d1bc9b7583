"""A job at one moment, with its pods, its plan, its nodes and its newest events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bamboo_cli.job.pods import Seat
from bamboo_cli.job.state import Job
from bamboo_core.controller.view import Slot
from bamboo_core.placement.plan import Pipeline


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment."""

    job: Job
    seats: Mapping[Slot, Seat] = field(default_factory=dict)  # by the slots in the pods' names
    plan: Sequence[Pipeline] = ()  # in force; empty: none
    pods: Mapping[str, Seat] = field(default_factory=dict)  # by name
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # zone -> (ready, all)
    news: Sequence[str] = ()  # recent events, oldest first
    headlines: Sequence[str] = ()  # the few of them that matter, oldest first
