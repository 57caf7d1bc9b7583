"""The screen and the plain display, as text."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bamboo_cli.job.listing import job_row
from bamboo_cli.job.pods import Seat
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import read_job
from bamboo_cli.views.terminal.job_screen import (
    checkpoint_line,
    conditions,
    grid,
    job_screen,
    plain_line,
)
from bamboo_cli.views.terminal.live_display import LiveDisplay, PlainDisplay, make_display
from bamboo_core.controller.view import Slot
from bamboo_core.model.ids import AgentId


def text_of(renderable: RenderableType, width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture
def snapshot(manifest: dict[str, Any]) -> Snapshot:
    seat = Seat(pod="gpt-p0-s1-i7", phase="Running", node="a", zone="zone-a", incarnation=7)
    ended = Seat(pod="gpt-p1-s2-i8", phase="Failed", node="b", zone="zone-b", incarnation=8)
    return Snapshot(
        job=read_job(manifest),
        seats={Slot(0, 1): seat, Slot(1, 2): ended},
        nodes={"zone-a": (2, 3), "zone-b": (1, 1)},
        news=["08:00:00 AgentLost: gpt-p0-s1-i3"],
        headlines=["08:00:00 AgentLost: gpt-p0-s1-i3"],
    )


def test_screen_shows_progress_nodes_grid_and_news(snapshot: Snapshot) -> None:
    shown = text_of(job_screen(snapshot))
    for part in (
        "team/gpt", "step 20/80", "loss 2.5000", "validation loss 3.2500", "64.5 samples/s",
        "pipelines 2/2", "plan 3", "lost 2 (1 noticed)", "zone-a 2/3", "zone-b 1/1", "stage 2",
        "pipeline 1", "zone-b Failed", "AgentLost",
    ):  # fmt: skip
        assert part in shown


def test_the_screen_shows_metrics_if_there_are_some(snapshot: Snapshot) -> None:
    assert "top" not in text_of(job_screen(snapshot))
    job = replace(
        snapshot.job, metrics={"top": 0.25, "ease": 1e-7}, validation_metrics={"top": 0.5}
    )
    shown = text_of(job_screen(replace(snapshot, job=job)))
    assert "top 0.25   ease 1e-07   validation top 0.5" in shown


def test_the_screen_of_a_job_whose_status_nobody_writes(snapshot: Snapshot) -> None:
    old = replace(snapshot, job=replace(snapshot.job, silent_s=300.0))
    shown = text_of(job_screen(old))
    assert "Running 5 min ago" in shown
    assert "samples/s" not in shown
    assert plain_line(old).startswith("Running 5 min ago step 20/80 loss 2.5000 samples/s -")


def test_the_grid_shows_the_seats_of_the_plan(snapshot: Snapshot) -> None:
    """As `bamboo explain` does. Agents take over other stages than the names of their pods say."""
    pods = {
        name: Seat(pod=name, phase=phase, node="n", zone=zone, incarnation=0)
        for name, zone, phase in (
            ("gpt-p0-s0-i0", "here", "Running"),
            ("gpt-p1-s1-i0", "there", "Running"),
            *((f"gpt-p1-s2-i{n}", "", "Pending") for n in range(5)),
        )
    }
    plan = ((AgentId("gpt-p1-s1-i0"), AgentId("gpt-p0-s0-i0"), None), (AgentId("gpt-gone"),) * 3)
    said = text_of(grid(replace(snapshot, plan=plan, pods=pods)))
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "pipeline 0 ● there ● here -" in lines
    assert "pipeline 1 - - -" in lines
    assert " ".join(said.split()).endswith(
        "without a seat in the plan: gpt-p1-s2-i0 (Pending), gpt-p1-s2-i1 (Pending),"
        " gpt-p1-s2-i2 (Pending), gpt-p1-s2-i3 (Pending), 1 more"
    )
    tall = tuple((AgentId("gpt-p0-s0-i0"), *(AgentId("gpt-p1-s1-i0"),) * 4) for _ in range(40))
    said = text_of(grid(replace(snapshot, plan=tall[:1], pods=pods)))
    assert "stage 4" in said, "the plan may have more stages than the spec"
    assert "2 pipelines x 3 stages: " in text_of(grid(replace(snapshot, plan=tall, pods=pods)))
    del pods["gpt-p1-s2-i0"]
    seated = {name: seat for name, seat in pods.items() if seat.phase == "Running"}
    assert "without" not in text_of(grid(replace(snapshot, plan=plan, pods=seated)))


def test_a_job_that_has_ended_shows_no_empty_counts(
    snapshot: Snapshot, manifest: dict[str, Any]
) -> None:
    manifest["status"]["conditions"][1]["status"] = "True"
    manifest["status"] |= {"phase": "Complete", "activePipelines": 0, "agentsSummary": "0/0"}
    ended = replace(snapshot, job=read_job(manifest), seats={})
    assert "pipelines 0/2" not in text_of(job_screen(ended))
    assert "agents" not in plain_line(ended)
    assert job_row(manifest, []).ready == "-"


def test_long_names_of_zones_can_be_told_apart(snapshot: Snapshot) -> None:
    zones = [f"northamerica-northeast1-{letter}" for letter in "abc"]
    seats = {
        Slot(0, stage): replace(snapshot.seats[Slot(0, 1)], zone=zone)
        for stage, zone in enumerate(zones)
    }
    said = text_of(grid(replace(snapshot, seats=seats)), width=80)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "northamerica-northeast1-... stage 0 stage 1 stage 2" in lines
    assert "pipeline 0 ● a ● b ● c" in lines
    mixed = seats | {Slot(1, 0): replace(snapshot.seats[Slot(0, 1)], zone="us-east1-b")}
    said = text_of(grid(replace(snapshot, seats=mixed)), width=80)
    assert "…" not in said, "names without a common beginning are folded"
    assert all(said.count(zone[-3:]) >= 1 for zone in zones), said
    one = {slot: replace(seat, zone=zones[0]) for slot, seat in seats.items()}
    assert zones[0] in text_of(grid(replace(snapshot, seats=one)), width=160)


def test_a_wide_grid_is_summarised(snapshot: Snapshot, manifest: dict[str, Any]) -> None:
    manifest["spec"]["pipelines"] = {"count": 64, "stages": 16}
    wide = Snapshot(job=read_job(manifest), seats=snapshot.seats)
    assert "64 pipelines x 16 stages: 1 Failed, 1 Running, 1022 without a pod" in text_of(
        job_screen(wide)
    )


def test_conditions_and_checkpoint(snapshot: Snapshot, manifest: dict[str, Any]) -> None:
    assert "TrainingStep" in text_of(conditions(snapshot.job))
    assert "step 10, file:///tmp/x/10" in text_of(checkpoint_line(snapshot.job))
    del manifest["status"]["lastCheckpoint"]
    assert "no complete checkpoint" in text_of(checkpoint_line(read_job(manifest)))


def test_plain_line(snapshot: Snapshot) -> None:
    assert plain_line(snapshot) == (
        "Running    step 20/80 loss 2.5000 samples/s 64.5 agents 1/6 nodes zone-a=2/3 zone-b=1/1"
    )


def test_the_plain_display_prints_only_changes(snapshot: Snapshot) -> None:
    clock = [0.0]
    out = StringIO()
    display = PlainDisplay(Console(file=out, width=200), every_s=5, now=lambda: clock[0])
    with display:
        display.show(snapshot)
        display.show(snapshot)
        clock[0] = 10
        display.show(snapshot)
    assert out.getvalue().count("step 20/80") == 1
    assert out.getvalue().count("AgentLost") == 1


def test_the_display_fits_the_console(snapshot: Snapshot) -> None:
    assert isinstance(make_display(Console(file=StringIO())), PlainDisplay)
    terminal = Console(file=StringIO(), force_terminal=True, width=100)
    live = make_display(terminal)
    assert isinstance(live, LiveDisplay)
    with live:
        live.show(snapshot)
