"""Breaking nodes while a job trains: a schedule of faults, and whom they hit. The choice is pure.
Breaking nodes while a job trains: a schedule of faults, and whom they hit. The choice is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bamboo_cli.job import Job, Seat
from bamboo_cli.screen import Snapshot
from bamboo_core.controller.view import Slot

NOTICE_LEAD_S = 10.0


class Fault(StrEnum):
    """What happens to nodes."""

    NOTICED = "a node is reclaimed, with notice"
    SILENT = "a node vanishes, without a word"
    NEIGHBOURS = "two neighbours vanish at once"


@dataclass(frozen=True)
class ScheduledFault:
    """A fault to the agents of these slots when ``progress`` (0 to 1) of the steps are done."""

    progress: float
    fault: Fault
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Hit:
    """A fault that has been carried out at ``at_s``, Unix time in seconds, during ``step``."""

    fault: Fault
    pods: tuple[str, ...]
    step: int
    at_s: float


class Machines(Protocol):
    """What breaks nodes: the development cluster."""

    def kill_node(self, name: str) -> None:
        """The instance vanishes."""

    def notice_node(self, name: str, lead_s: float) -> None:
        """The instance is reclaimed in ``lead_s`` seconds."""


def schedule(*, pipelines: int, stages: int) -> tuple[ScheduledFault, ...]:
    """Blows that leave a live copy of every stage in mode Replica, even if no seat is refilled.

    Nobody is hit twice. A grid that is too small for all of them gets those that it can bear.
    """
    last = pipelines - 1
    noticed = ScheduledFault(0.15, Fault.NOTICED, (Slot(last, 1),))
    silent = ScheduledFault(0.35, Fault.SILENT, (Slot(last, stages - 1),))
    neighbours = ScheduledFault(0.6, Fault.NEIGHBOURS, (Slot(0, 1), Slot(0, 2)))
    if stages < 2:
        return ()
    if pipelines < 2:
        return (noticed,)
    return (noticed, silent, neighbours) if stages >= 4 else (noticed, silent)


class Chaos:
    """Carries faults out, one after the other, each as soon as it is due. clock: Unix time."""

    def __init__(
        self, machines: Machines, faults: Sequence[ScheduledFault], clock: Callable[[], float]
    ) -> None:
        self._machines, self._clock = machines, clock
        self.left = list(faults)
        """Those that have not been carried out, in order."""
        self.hits: list[Hit] = []

    def watch(self, snapshot: Snapshot) -> None:
        """ScheduledFault if it is time: never before a step has followed upon the last fault, and
        never anything but all of its slots."""
        job = snapshot.job
        has_gone_on = not self.hits or job.step > self.hits[-1].step
        if not self.left or not has_gone_on or not is_due(self.left[0], job):
            return
        fault = self.left[0]
        victims = seats_of(fault, snapshot.seats)
        if len(victims) < len(fault.slots):
            return
        del self.left[0]
        self.hits.append(Hit(fault.fault, _pods(victims), job.step, self._clock()))
        for seat in victims:
            if fault.fault is Fault.NOTICED:
                self._machines.notice_node(seat.node, NOTICE_LEAD_S)
            else:
                self._machines.kill_node(seat.node)


def is_due(fault: ScheduledFault, job: Job) -> bool:
    """Whether the job trains and has come so far."""
    return job.phase == "Running" and job.step >= fault.progress * job.steps


def seats_of(fault: ScheduledFault, seats: Mapping[Slot, Seat]) -> list[Seat]:
    """Whom it hits: those of its slots that have a running pod."""
    found = (seats.get(slot) for slot in fault.slots)
    return [seat for seat in found if seat is not None and seat.phase == "Running"]


def _pods(seats: Sequence[Seat]) -> tuple[str, ...]:
    return tuple(seat.pod for seat in seats)
