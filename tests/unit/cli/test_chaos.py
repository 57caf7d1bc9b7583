"""When nodes are broken, and whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bamboo_cli.chaos import SCHEDULE, Blow, Chaos, Strike, victims
from bamboo_cli.job import Seat, read_job
from bamboo_cli.screen import Snapshot
from bamboo_core.view import Slot


class Machines:
    """Notes what is done to nodes."""

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
    grid = {Slot(d, s): seat(d, s) for d in range(2) for s in range(3)}
    return Snapshot(job=read_job(manifest), seats=grid)


def at(snapshot: Snapshot, step: int, phase: str = "Running") -> Snapshot:
    return replace(snapshot, job=replace(snapshot.job, step=step, phase=phase))


def test_the_whole_schedule(snapshot: Snapshot) -> None:
    machines = Machines()
    chaos = Chaos(machines, SCHEDULE, lambda: 1.0)
    for step in range(81):
        chaos.watch(at(snapshot, step))
    assert machines.done == [("notice", "n11"), ("kill", "n11"), ("kill", "n11"), ("kill", "n12")]
    assert [hit.step for hit in chaos.hits] == [12, 32, 52]
    assert chaos.hits[2].pods == ("gpt-p1-s1-i0", "gpt-p1-s2-i0")


def test_nothing_is_broken_while_it_recovers(snapshot: Snapshot) -> None:
    chaos = Chaos(Machines(), SCHEDULE, lambda: 0.0)
    chaos.watch(at(snapshot, 80, "Recovering"))
    assert not chaos.hits


@pytest.mark.parametrize("phase", ["Pending", "Failed", "Terminating"])
def test_a_grid_with_a_hole_is_spared(snapshot: Snapshot, phase: str) -> None:
    seats = {**snapshot.seats, Slot(0, 0): replace(seat(0, 0), phase=phase)}
    assert victims(Blow.SILENT, replace(snapshot, seats=seats)) == []
    del seats[Slot(0, 0)]
    assert victims(Blow.SILENT, replace(snapshot, seats=seats)) == []


def test_one_stage_has_no_neighbours(snapshot: Snapshot) -> None:
    job = replace(snapshot.job, stages=1, pipelines=1)
    alone = Snapshot(job=job, seats={Slot(0, 0): seat(0, 0)})
    assert [s.node for s in victims(Blow.NEIGHBOURS, alone)] == ["n00"]


def test_a_strike_waits_for_its_step(snapshot: Snapshot) -> None:
    chaos = Chaos(Machines(), [Strike(0.5, Blow.SILENT)], lambda: 0.0)
    chaos.watch(at(snapshot, 39))
    assert not chaos.hits
    chaos.watch(at(snapshot, 40))
    assert len(chaos.hits) == 1
