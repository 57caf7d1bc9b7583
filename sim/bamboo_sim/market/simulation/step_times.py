"""How long the steps of a job take in each state of its grid, as policies ask for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

Hole = tuple[int, int]
"""An empty seat: (pipeline, stage), both from 0."""


class StepTimes(Protocol):
    """The steps of one job in one mode on one network, which :attr:`network` names."""

    @property
    def samples(self) -> int:
        """The samples of a step."""

    @property
    def network(self) -> str:
        """The name of the network that carries tensors. Every figure from these times names it."""

    def whole_ms(self, pipelines: int, stages: int) -> float | None:
        """A step of a grid without empty seats. None: the model does not fit into it."""

    def degraded_ms(self, pipelines: int, stages: int, holes: frozenset[Hole]) -> float | None:
        """A step while seats are empty. None: no copy of some layer is left, or none fits."""


class Pauses(NamedTuple):
    """How long training stands still, beyond what a step takes, in milliseconds: until agents that
    stay go on after a loss, until new ones train, before ones that were told go, and from a
    checkpoint. All with detection."""

    loss_ms: float
    join_ms: float
    drain_ms: float
    restore_ms: float
