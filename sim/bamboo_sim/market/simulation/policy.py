"""What a policy sees, what it answers, and what it must not do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from bamboo_sim.market.simulation.events import News, Node


class Pace(NamedTuple):
    """How fast a state trains. ``samples``: that one step adds."""

    step_ms: float
    samples: int


class State(Protocol):
    """The part of a policy's state that the engine reads. States are values: never changed."""

    @property
    def serving(self) -> frozenset[int]:
        """The numbers of the nodes that train. Ready nodes that are not among them stand by."""


@dataclass(slots=True)
class Fleet:
    """The fleet and the run at one instant, for reading. Only the engine changes it."""

    booting: dict[int, Node] = field(default_factory=dict)
    ready: dict[int, Node] = field(default_factory=dict)
    """By number, in the order in which they became ready."""
    resume_ms: int | None = None
    """When the pause ends; None: there is none."""
    samples: float = 0.0
    """That count: repeated ones once."""
    step_part: float = 0.0
    """The part of the step in flight that is done."""


class Change(NamedTuple):
    """What a policy decides."""

    state: Any
    resume_ms: int | None = None
    """When training goes on. None: now, also where a pause holds. A policy that lets a pause go on
    names its end again, ``fleet.resume_ms``, and :func:`extended` adds to it."""
    cause: str = ""
    """Why it pauses. A new end is a new entry among the pauses."""
    lost_samples: float = 0.0
    """To be repeated, beside the step in flight."""
    drops_step: bool = False
    """The step in flight is lost, too."""
    is_fatal: bool = False
    """No copy of some layer was left."""
    looks_at_step_end: bool = False
    """Call again when the step in flight ends. It holds until the next Change."""
    look_ms: int | None = None
    """Call again at this time. It holds until the next Change."""


class Policy(Protocol):
    """How a system answers a market. It is pure: equal arguments give equal answers, and nothing
    that it is given is changed."""

    def start(self) -> Any:
        """The state before the first event; nothing serves in it."""

    def on_change(self, state: Any, fleet: Fleet, news: News) -> Change | None:
        """The change that follows from the news, which ``fleet`` has already. None: nothing."""

    def rate(self, state: Any) -> Pace | None:
        """How fast the state trains when no pause holds it. None: not at all."""


def extended(fleet: Fleet, now_ms: int, pause_ms: int) -> int:
    """The end of a pause that is added to the one that holds."""
    return max(fleet.resume_ms or 0, now_ms) + pause_ms


class InventedWorkError(Exception):
    """A policy trains with nodes that are not ready, faster than its nodes can, or with samples
    that nobody computed."""
