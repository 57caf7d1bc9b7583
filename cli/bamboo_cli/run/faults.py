"""Faults of a run: those that are scheduled, and those that were injected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from bamboo_cli.job.state import Manifest
from bamboo_core.controller.view import Slot


class Fault(StrEnum):
    """A kind of fault, as the report names it."""

    NOTICED = "node reclaimed with notice"
    SILENT = "node lost without notice"
    NEIGHBOURS = "two neighbours lost at once"


@dataclass(frozen=True)
class ScheduledFault:
    """A fault that is due when a fraction of the steps is done."""

    progress: float  # 0 to 1
    fault: Fault
    slots: tuple[Slot, ...]  # their agents are lost


@dataclass(frozen=True)
class Hit:
    """A fault that was injected."""

    fault: Fault
    pods: tuple[str, ...]
    step: int
    at_s: float  # Unix time in seconds


@dataclass(frozen=True)
class FaultLog:
    """The faults of a run, and the job's events, which tell how it recovered."""

    hits: Sequence[Hit] = ()
    events: Sequence[Manifest] = ()
    left: Sequence[ScheduledFault] = ()  # scheduled, but not injected
