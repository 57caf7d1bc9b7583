"""Faults injected while a job trains: which, when, and on which nodes. The choice is pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bamboo_cli.job.pods import Seat
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Job
from bamboo_cli.run.faults import Fault, Hit, ScheduledFault
from bamboo_core.controller.view import Slot

NOTICE_LEAD_S = 10.0


class Machines(Protocol):
    """Nodes that can be made to fail: the development cluster."""

    def kill_node(self, name: str) -> None:
        """The instance vanishes."""

    def notice_node(self, name: str, lead_s: float) -> None:
        """The instance will be reclaimed in ``lead_s`` seconds."""


def schedule(*, pipelines: int, stages: int) -> tuple[ScheduledFault, ...]:
    """Faults that leave a live copy of every stage in any mode, even if no seat is refilled: on a
    fast machine the job ends before new agents are there. So all are in one pipeline.

    No slot fails twice. A grid that is too small for all faults gets those that it tolerates.
    """
    last = pipelines - 1
    noticed = ScheduledFault(0.15, Fault.NOTICED, (Slot(last, 0),))
    silent = ScheduledFault(0.35, Fault.SILENT, (Slot(last, 1),))
    neighbours = ScheduledFault(0.6, Fault.NEIGHBOURS, (Slot(last, 2), Slot(last, 3)))
    if stages < 2:
        return ()
    if pipelines < 2:
        return (noticed,)
    return (noticed, silent, neighbours) if stages >= 4 else (noticed, silent)


class Injector:
    """Injects faults one after the other, each as soon as it is due."""

    def __init__(
        self, machines: Machines, faults: Sequence[ScheduledFault], clock: Callable[[], float]
    ) -> None:
        self._machines, self._clock = machines, clock  # the clock gives Unix time
        self.left = list(faults)  # not injected yet, in order
        self.hits: list[Hit] = []

    def watch(self, snapshot: Snapshot) -> None:
        """Inject the next fault if it is due.

        At least one step is committed between two faults, and a fault hits all its slots or none.
        """
        job = snapshot.job
        has_advanced = not self.hits or job.step > self.hits[-1].step
        if not self.left or not has_advanced or not is_due(self.left[0], job):
            return
        fault = self.left[0]
        victims = seats_of(fault, snapshot.seats)
        if len(victims) < len(fault.slots):
            return
        del self.left[0]
        pods = tuple(seat.pod for seat in victims)
        self.hits.append(Hit(fault.fault, pods, job.step, self._clock()))
        for seat in victims:
            if fault.fault is Fault.NOTICED:
                self._machines.notice_node(seat.node, NOTICE_LEAD_S)
            else:
                self._machines.kill_node(seat.node)


def is_due(fault: ScheduledFault, job: Job) -> bool:
    return job.phase == "Running" and job.step >= fault.progress * job.steps


def seats_of(fault: ScheduledFault, seats: Mapping[Slot, Seat]) -> list[Seat]:
    """The seats that the fault hits: its slots with a running pod."""
    found = (seats.get(slot) for slot in fault.slots)
    return [seat for seat in found if seat is not None and seat.phase == "Running"]
