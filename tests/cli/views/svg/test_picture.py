"""What the picture of a run shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from tests.cli.runs import LOG, frames_of

from bamboo_cli.job.state import Job, read_job
from bamboo_cli.run.faults import FaultLog
from bamboo_cli.run.from_watching import from_frames
from bamboo_cli.run.model import Run
from bamboo_cli.views.svg.elements import Axis
from bamboo_cli.views.svg.picture import picture


@pytest.fixture
def job(manifest: dict[str, Any]) -> Job:
    return read_job(manifest)


def drawn(run: Run, verdict: str = "") -> ET.Element:
    return ET.fromstring(picture(run, verdict))


def texts(root: ET.Element) -> list[str]:
    return [text for element in root.iter() if (text := element.text and element.text.strip())]


def count(root: ET.Element, tag: str) -> int:
    return len(root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}"))


def test_the_picture(job: Job) -> None:
    root = drawn(from_frames(frames_of(job), LOG, 32, [(3, 3.7), (9, 3.1)]), "equal, bit < bit")
    shown = texts(root)
    assert shown[0] == "gpt: 2 pipelines x 3 stages, 1 agent lost in 80 steps"
    assert shown[1] == "equal, bit < bit"
    assert {"pipeline 1, stage 2", "1.7", "0.5", "committed steps", "training loss"} <= {*shown}
    assert "the same job, undisturbed" in shown


def test_a_run_without_losses_or_progress_is_drawn_too(job: Job) -> None:
    still = [replace(f, job=replace(f.job, step=0, loss=None)) for f in frames_of(job)[:1]]
    shown = texts(drawn(from_frames(still, FaultLog(), 32)))
    assert shown[0] == "gpt: 2 pipelines x 3 stages, no agents lost in 80 steps"
    assert "training loss" not in shown


def test_a_large_grid_has_no_labels(job: Job) -> None:
    large = [replace(f, job=replace(f.job, pipelines=64, stages=16)) for f in frames_of(job)]
    text = picture(from_frames(large, LOG, 32))
    assert "pipeline 1, stage 1" not in text
    assert len(text) < 100_000


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 32, [0, 5, 10, 15, 20, 25, 30]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (3.21, 5.4, [3.5, 4, 4.5, 5]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(low, high, 0, 100).ticks(7) == pytest.approx(ticks)
