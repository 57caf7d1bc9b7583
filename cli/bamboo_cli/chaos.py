"""Breaking nodes while a job trains: a schedule of blows, and whom they hit. The choice is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bamboo_cli.job import Job, Seat
from bamboo_cli.screen import Snapshot
from bamboo_core.view import Slot

NOTICE_LEAD_S = 10.0


class Blow(StrEnum):
    """What happens to nodes."""

    NOTICED = "a node is reclaimed, with notice"
    SILENT = "a node vanishes, without a word"
    NEIGHBOURS = "two neighbours vanish at once"


@dataclass(frozen=True)
class Strike:
    """A blow when ``progress`` (0 to 1) of the steps are done."""

    progress: float
    blow: Blow


@dataclass(frozen=True)
class Hit:
    """A strike that has been carried out: ``at_s`` since the start, during ``step``."""

    blow: Blow
    pods: tuple[str, ...]
    step: int
    at_s: float


SCHEDULE = (Strike(0.15, Blow.NOTICED), Strike(0.4, Blow.SILENT), Strike(0.65, Blow.NEIGHBOURS))


class Machines(Protocol):
    """What breaks nodes: the development cluster."""

    def kill_node(self, name: str) -> None:
        """The instance vanishes."""

    def notice_node(self, name: str, lead_s: float) -> None:
        """The instance is reclaimed in ``lead_s`` seconds."""


class Chaos:
    """Carries the schedule out, each strike as soon as it is due and the grid is whole again."""

    def __init__(
        self, machines: Machines, schedule: Sequence[Strike], clock: Callable[[], float]
    ) -> None:
        self._machines, self._clock = machines, clock
        self._waiting = list(schedule)
        self.hits: list[Hit] = []

    def watch(self, snapshot: Snapshot) -> None:
        """Strike if it is time."""
        if not self._waiting or not is_due(self._waiting[0], snapshot.job):
            return
        seats = victims(self._waiting[0].blow, snapshot)
        if not seats:
            return
        blow = self._waiting.pop(0).blow
        at_s = self._clock()
        for seat in seats:
            if blow is Blow.NOTICED:
                self._machines.notice_node(seat.node, NOTICE_LEAD_S)
            else:
                self._machines.kill_node(seat.node)
        pods = tuple(seat.pod for seat in seats)
        self.hits.append(Hit(blow, pods, snapshot.job.step, at_s))


def is_due(strike: Strike, job: Job) -> bool:
    """Whether the job trains and has come so far."""
    return job.phase == "Running" and job.step >= strike.progress * job.steps


def victims(blow: Blow, snapshot: Snapshot) -> list[Seat]:
    """Whom it hits: in the middle of the newest pipeline; nobody unless every seat is taken."""
    seats, job = snapshot.seats, snapshot.job
    if not is_whole(seats, job):
        return []
    pipeline, stage = job.pipelines - 1, (job.stages - 1) // 2
    slots = [Slot(pipeline, stage)]
    if blow is Blow.NEIGHBOURS and job.stages > 1:
        slots.append(Slot(pipeline, stage + 1))
    return [seats[slot] for slot in slots]


def is_whole(seats: Mapping[Slot, Seat], job: Job) -> bool:
    """Whether every seat of the grid has a running pod."""
    grid = (Slot(d, s) for d in range(job.pipelines) for s in range(job.stages))
    return all(slot in seats and seats[slot].phase == "Running" for slot in grid)
