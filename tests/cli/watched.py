"""A run of 2 x 3 agents that somebody has watched; training begins at second 0."""

from __future__ import annotations

from dataclasses import replace

from bamboo_cli.faults import Fault, FaultLog, Hit
from bamboo_cli.history import Frame
from bamboo_cli.job import Job
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import Slot

from .events import event

VICTIM, NEIGHBOUR, SUCCESSOR = "gpt-p1-s1-i0", "gpt-p1-s0-i0", "gpt-p1-s1-i1"


def frames_of(job: Job) -> list[Frame]:
    """One every second. A fault at 5.5 s, a new agent at 8 s."""
    found = []
    for second in range(-2, 21):
        phase = "Running" if second >= 0 else "Starting"
        step = max(0, second)
        running = {Slot(1, 0): NEIGHBOUR}
        if second <= 6 or second >= 8:
            running[Slot(1, 1)] = VICTIM if second <= 6 else SUCCESSOR
        seen = replace(job, phase=phase, step=step, loss=4.0 - step / 10)
        found.append(Frame(float(second), seen, running))
    return found


LOG = FaultLog(
    hits=[Hit(Fault.SILENT, (VICTIM,), 5, 5.5)],
    events=[
        event(-1.0, EventReason.STOPPED, epoch=1, agents=""),
        event(0.5, EventReason.RESUMED, epoch=1, step=0, pause_s=1.5),
        event(6.5, EventReason.STOPPED, epoch=2, agents=VICTIM),
        event(7.2, EventReason.RESUMED, epoch=2, step=5, pause_s=0.7),
        event(10.5, EventReason.STOPPED, epoch=3, agents=SUCCESSOR),
        event(11.0, EventReason.RESUMED, epoch=3, step=10, pause_s=0.5),
    ],
)
