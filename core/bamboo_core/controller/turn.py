"""What a job may do about pods while others want the same room, and why, in words.

Jobs of other namespaces are not named: their names are not for everybody who may see this job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bamboo_core.api import quantities
from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import JobView

PATIENCE_S = 600.0
"""So long the first in line asks for nodes that do not exist; then the others go first."""
ASIDE_S = 1800.0
"""For so long, or until there are more nodes."""


class Word(StrEnum):
    """What a job may do now."""

    GROWS = "Grows"  # it has started, and may have all its agents
    KEEPS = "Keeps"  # it has started; a job ahead of it waits, so it may only have its minimum
    STARTS = "Starts"  # there is room for its minimum
    ASKS = "Asks"  # there is no such room, but it is the first in line
    WAITS = "Waits"  # it may have no pods


@dataclass(frozen=True)
class Turn:
    """What a job may do, and why."""

    word: Word
    room: int = 0  # agents that there is room for, of the wanted grid
    minimum: int = 0  # agents that the smallest grid needs
    first: JobView | None = None  # who waits ahead of it; None: nobody
    is_outranked: bool = False  # that job has a higher priority; else it is older
    is_too_big: bool = False  # usable nodes would be too few even if all other jobs had ended

    @property
    def is_barred(self) -> bool:
        """The job may have no pods."""
        return self.word is Word.WAITS


def explain(spec: JobSpec, turn: Turn, job: JobView) -> str:
    """For a job that waits, asks for nodes, or may not grow."""
    ahead = _ahead(turn, job)
    if turn.word is Word.KEEPS:
        return f"agents beyond the smallest grid wait, since {ahead} is first in line"
    grid = f"{spec.pipelines.min} x {spec.pipelines.stages}"
    text = f"{_free(spec, turn.room)} free, the smallest grid ({grid}) needs"
    text += f" {_needed(spec, turn.minimum)}"
    if turn.room >= turn.minimum:
        text += " in zones where ring neighbours can be apart"
    if turn.is_too_big:
        text += (
            "; the nodes that can be used now are too few for it even without other jobs, so after"
            f" {PATIENCE_S / 60:.0f} min without more of them the jobs behind it go first for"
            f" {ASIDE_S / 60:.0f} min"
        )
    return f"{text}; {ahead or 'this job'} is first in line"


def _ahead(turn: Turn, job: JobView) -> str:
    """The job that is first, as someone who may see only this one's namespace may know it."""
    first = turn.first
    if first is None:
        return ""
    name = "a job of another namespace"
    if first.namespace == job.namespace:
        name = f"job {first.namespace}/{first.name}"
    return f"{name} of higher priority" if turn.is_outranked else name


def _devices(spec: JobSpec) -> tuple[str, int]:
    """The device that an agent asks for, and how many of it; 0: none, or not a whole number."""
    for name, amount in sorted(spec.worker.asks.items()):
        if "/" in name:
            try:
                return name, int(quantities.parse(amount))
            except (ValueError, ArithmeticError):
                break
    return "", 0


def _free(spec: JobSpec, agents: int) -> str:
    name, each = _devices(spec)
    return f"{agents * each} {name} are" if each else f"room for {agents} agents is"


def _needed(spec: JobSpec, agents: int) -> str:
    _, each = _devices(spec)
    return f"{agents * each}" if each else f"room for {agents}"
