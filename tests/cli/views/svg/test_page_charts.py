"""The charts of a run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest
from tests.cli.runs import two_zones

from bamboo_cli.run.model import Run, Span
from bamboo_cli.views.svg.elements import LINE
from bamboo_cli.views.svg.page_charts import charts

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(training: dict[str, Any]) -> Run:
    return two_zones(training)


def filled(polygon: ET.Element) -> float:
    """Its area."""
    corners = [tuple(map(float, p.split(","))) for p in polygon.attrib["points"].split()]
    pairs = zip(corners, corners[1:] + corners[:1], strict=True)
    return abs(sum(x * v - u * y for (x, y), (u, v) in pairs)) / 2


def test_the_fleet_is_stacked_by_zone(run: Run) -> None:
    fleet = ET.fromstring(charts(run)[0].svg)
    first, second = fleet.iter(f"{SVG}polygon")  # each in one piece: blocks would show seams
    one = (210 - 26 - 18) / 2
    assert filled(first) == pytest.approx(one * (900 - 64 - 16))
    assert filled(second) == pytest.approx(one * 0.75 * (900 - 64 - 16))
    assert first.attrib["fill"] != second.attrib["fill"]
    assert len(list(fleet.iter(f"{SVG}path"))) == 1  # the loss


def labels(svg: str) -> list[tuple[str, float, str]]:
    """Text, place and anchor of each."""
    found = ET.fromstring(svg).iter(f"{SVG}text")
    return [(x.text or "", float(x.attrib["x"]), x.attrib["text-anchor"]) for x in found]


def test_the_last_label_stays_inside_and_agents_are_whole(run: Run) -> None:
    drawn = {chart.title: labels(chart.svg) for chart in charts(run)}
    for title, last in (("Training loss", "step 20"), ("Agents by zone", "40 s")):
        assert (last, 898.0, "end") in drawn[title]
    assert [said for said, _, anchor in drawn["Agents by zone"][:3]] == ["0", "1", "2"]


def test_only_what_is_known_is_drawn(run: Run) -> None:
    assert [chart.title for chart in charts(run)] == [
        "Agents by zone", "Committed steps", "Throughput, samples per second", "Training loss",
    ]  # fmt: skip
    one_loss = replace(run, loss=[(20, 2.5)], lives=[])
    assert [chart.title for chart in charts(one_loss)] == [
        "Committed steps", "Throughput, samples per second",
    ]  # fmt: skip
    assert charts(replace(one_loss, progress=[(1000.0, 0)])) == []


def heights(run: Run) -> list[float]:
    """The line of committed steps, from the upper edge of the drawing."""
    (line,) = [
        x
        for x in ET.fromstring(charts(run)[1].svg).iter(f"{SVG}polyline")
        if x.attrib["stroke"] == LINE
    ]
    return [float(point.split(",")[1]) for point in line.attrib["points"].split()]


@pytest.mark.parametrize(("first", "steps"), [(0, 32), (0, 1_000_000), (400_000, 1_000_000)])
def test_steps_are_drawn_against_what_the_run_has_reached(run: Run, first: int, steps: int) -> None:
    """The line does not lie on the axis, however long the job is."""
    shown = [(at, first + step) for at, step in run.progress]
    job = replace(run.job, step=first + 20, steps=steps)
    assert heights(replace(run, job=job, progress=shown)) == [184.0, 142.5, 142.5, 18.0]


def test_a_run_without_progress_has_a_line_at_the_bottom(run: Run) -> None:
    assert heights(replace(run, progress=[(1000.0, 7), (1040.0, 7)])) == [184.0, 184.0]


def test_a_validation_loss_is_drawn_only_if_there_is_one(run: Run) -> None:
    assert charts(replace(run, validation=[(4, 3.0)]))[-1].title == "Training loss"
    drawn = charts(replace(run, validation=[(4, 3.0), (8, 2.5)]))[-1]
    assert drawn.title == "Validation loss"
    assert drawn.svg.count("<circle") == 2


@pytest.mark.parametrize(
    ("seconds", "label"), [(40.0, "10 s"), (1200.0, "5 min"), (20_000.0, "2 h"), (1e6, "2 d")]
)
def test_time_has_a_fitting_unit(run: Run, seconds: float, label: str) -> None:
    longer = replace(run, span=Span(1000.0, 1000.0 + seconds))
    assert f">{label}<" in charts(longer)[0].svg
