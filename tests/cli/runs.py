"""Runs that several tests look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.cli.events import event

from bamboo_cli.job.state import Job, read_job
from bamboo_cli.run.faults import Fault, FaultLog, Hit
from bamboo_cli.run.from_watching import Frame
from bamboo_cli.run.model import Gone, Life, Pause, Run, Span
from bamboo_cli.run.recovery import PlanSummary
from bamboo_core.api.events import EventReason
from bamboo_core.controller.view import Slot

VICTIM, NEIGHBOUR, SUCCESSOR = "gpt-p1-s1-i0", "gpt-p1-s0-i0", "gpt-p1-s1-i1"


def frames_of(job: Job) -> list[Frame]:
    """One every second from the start of training, which is second 0. A fault at 5.5 s, a new agent
    at 8 s."""
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


LOG = FaultLog(  # of the same run
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


def two_zones(training: dict[str, Any]) -> Run:
    """Two zones; one agent of b is lost after 10 of 40 s and replaced after 20 s."""
    return Run(
        read_job(training),
        32,
        Span(1000.0, 1040.0),
        [
            Life("gpt-p0-s0-i0", "a", "", Span(1000.0, 1040.0)),
            Life("gpt-p0-s1-i0", "b", "", Span(1000.0, 1010.0)),
            Life("gpt-p0-s1-i1", "b", "", Span(1020.0, 1040.0)),
        ],
        [Gone(1010.0, "gpt-p0-s1-i0", "b", False)],
        [Pause(1010.0, 1011.5, "Loss", "loss of gpt-p0-s1-i0 in zone b")],
        [(1000.0, 0), (1010.0, 5), (1011.5, 5), (1040.0, 20)],
        [(step, 4.0 - step / 10) for step in range(0, 21, 5)],
        ["Something is <not> known."],
    )


# A loss, and how training recovered from it.
LOST = "gpt-p1-s3-i0"
SIX = ",".join(f"gpt-p{d}-s{s}-i0" for d in range(2) for s in range(3))
SEVEN = f"{SIX},gpt-p0-s3-i0"
RECOVERY = [
    event(42.34, EventReason.RESUMED, epoch=4, step=33, pause_s=0.84),
    event(
        41.9, EventReason.PLANNED,
        epoch=4, step=33, pipelines=2, stages=4, agents=SEVEN, empty_seats=1,
    ),
    event(
        5.0, EventReason.PLANNED,
        epoch=1, step=0, pipelines=2, stages=4, agents=f"{SEVEN},{LOST}",
    ),
    event(4.0, EventReason.STOPPED, epoch=1, agents=""),
    event(41.5, EventReason.STOPPED, epoch=3, agents=LOST),
    event(41.5, EventReason.AGENT_LOST, agents=LOST),
    event(7.0, EventReason.RESUMED, epoch=1, step=0, pause_s=3),
]  # fmt: skip
PLAN = PlanSummary(step=33, pipelines=2, stages=4, agents=7, empty_seats=1)
