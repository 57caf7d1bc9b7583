"""When faults are injected, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bamboo_cli.job.pods import Seat
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import read_job
from bamboo_cli.quickstart.injection import Injector, schedule, seats_of
from bamboo_cli.run.faults import Fault, ScheduledFault
from bamboo_core.controller.view import Slot


class Machines:
    """Records the faults."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def kill_node(self, name: str) -> None:
        self.done.append(("kill", name))

    def notice_node(self, name: str, lead_s: float) -> None:
        assert lead_s > 0
        self.done.append(("notice", name))


def seat(pipeline: int, stage: int) -> Seat:
    name = f"gpt-p{pipeline}-s{stage}-i0"
    return Seat(pod=name, phase="Running", node=f"n{pipeline}{stage}", zone="z", incarnation=0)


@pytest.fixture
def snapshot(manifest: dict[str, Any]) -> Snapshot:
    grid = {Slot(d, s): seat(d, s) for d in range(2) for s in range(4)}
    return Snapshot(job=read_job(manifest), seats=grid)


def at(snapshot: Snapshot, step: int, phase: str = "Running") -> Snapshot:
    return replace(snapshot, job=replace(snapshot.job, step=step, phase=phase))


def test_the_whole_schedule(snapshot: Snapshot) -> None:
    machines = Machines()
    injector = Injector(machines, schedule(pipelines=2, stages=4), lambda: 1.0)
    for step in range(81):
        injector.watch(at(snapshot, step))
    assert machines.done == [("notice", "n10"), ("kill", "n11"), ("kill", "n12"), ("kill", "n13")]
    assert [hit.step for hit in injector.hits] == [12, 28, 48]
    assert injector.hits[2].pods == ("gpt-p1-s2-i0", "gpt-p1-s3-i0")
    assert not injector.left


@pytest.mark.parametrize(
    ("pipelines", "stages", "count"), [(2, 4, 3), (3, 8, 3), (2, 3, 2), (1, 4, 1), (2, 1, 0)]
)
def test_small_grids_get_the_faults_that_they_tolerate(
    pipelines: int, stages: int, count: int
) -> None:
    faults = schedule(pipelines=pipelines, stages=stages)
    assert len(faults) == count
    hit = [slot for fault in faults for slot in fault.slots]
    assert len(set(hit)) == len(hit)
    assert all(slot.pipeline < pipelines and slot.stage < stages for slot in hit)


@pytest.mark.parametrize(("pipelines", "stages"), [(2, 4), (2, 5), (3, 4), (4, 8), (2, 2), (2, 3)])
def test_a_copy_of_every_stage_stays(pipelines: int, stages: int) -> None:
    """Even if nobody holds another stage than its own, and nobody is replaced."""
    faults = schedule(pipelines=pipelines, stages=stages)
    hit = {slot for fault in faults for slot in fault.slots}
    for stage in range(stages):
        assert {Slot(d, stage) for d in range(pipelines)} - hit


def test_no_fault_is_injected_during_a_recovery(snapshot: Snapshot) -> None:
    injector = Injector(Machines(), schedule(pipelines=2, stages=4), lambda: 0.0)
    injector.watch(at(snapshot, 80, "Recovering"))
    assert not injector.hits


def test_a_step_is_committed_between_two_faults(snapshot: Snapshot) -> None:
    injector = Injector(Machines(), schedule(pipelines=2, stages=4), lambda: 0.0)
    for _ in range(3):
        injector.watch(at(snapshot, 79))
    assert len(injector.hits) == 1


def test_neighbours_are_lost_together_or_not_at_all(snapshot: Snapshot) -> None:
    machines = Machines()
    neighbours = ScheduledFault(0.1, Fault.NEIGHBOURS, (Slot(0, 1), Slot(0, 2)))
    injector = Injector(machines, [neighbours], lambda: 7.0)
    seats = {**snapshot.seats, Slot(0, 1): replace(seat(0, 1), phase="Pending")}
    injector.watch(replace(snapshot, seats=seats))
    assert (machines.done, injector.hits, injector.left) == ([], [], [neighbours])
    injector.watch(snapshot)
    assert machines.done == [("kill", "n01"), ("kill", "n02")]
    assert (injector.hits[0].at_s, injector.left) == (7.0, [])


def test_a_seat_without_a_running_pod_is_spared(snapshot: Snapshot) -> None:
    fault = ScheduledFault(0.0, Fault.NEIGHBOURS, (Slot(0, 1), Slot(0, 2), Slot(7, 7)))
    seats = {**snapshot.seats, Slot(0, 1): replace(seat(0, 1), phase="Pending")}
    assert [s.node for s in seats_of(fault, seats)] == ["n02"]
