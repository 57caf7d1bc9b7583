"""The report as a page and as text."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from bamboo_cli.charts import charts
from bamboo_cli.job import read_job
from bamboo_cli.main import cli
from bamboo_cli.page import page
from bamboo_cli.run_figures import facts
from bamboo_cli.run_model import Account, Gone, Life, Run, Span
from bamboo_cli.run_report import text_report
from bamboo_core.api.events import EventReason as Reason

from .events import event
from .fake_api import EVENTS_PATH, JOB_PATH, PODS_PATH, Server

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(training: dict[str, Any]) -> Run:
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
        [Span(1010.0, 1011.5)],
        [(1000.0, 0), (1010.0, 5), (1011.5, 5), (1040.0, 20)],
        [(step, 4.0 - step / 10) for step in range(0, 21, 5)],
        ["Something is <not> known."],
    )


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


def test_the_legend_has_the_marks_and_colours_of_the_charts(run: Run) -> None:
    html = page(run, {})
    assert "&#x25BC;</b> left after a notice" in html  # as it is drawn: on its tip
    colour = re.search(r'background:(#\w+)"></span>training paused', html)
    assert colour is not None
    assert charts(run)[1].svg.count(colour[1]) == 1  # one pause
    calm = page(replace(run, gone=[], pauses=[]), {})
    assert "training paused" not in calm
    assert "lost without notice" not in calm
    never = replace(run.job, paused=())
    assert "<b>0</b>pauses since the start" in page(replace(run, job=never), {})


def test_facts_are_those_of_the_whole_life_though_events_are_gone(run: Run) -> None:
    known = dict(facts(replace(run, pauses=[], gone=[])))
    assert known["pauses since the start"] == "4, 4.2 s in all (3 Loss, 1 Notice)"
    assert known["restores"] == "0, 7 steps repeated"
    once = replace(run, job=replace(run.job, repeated_steps=1))
    assert dict(facts(once))["restores"] == "0, 1 step repeated"
    assert "USD per hour now" not in known
    assert account(run, Account((1.5, 4.0), None)) == ["1.50, on demand 4.00"]
    assert account(run, Account((0.0, 0.0), (12.345, 40.0))) == ["12.35, on demand 40.00"]


def account(run: Run, found: Account) -> list[str]:
    """What the page says of it."""
    return [text for name, text in facts(replace(run, account=found)) if name.startswith("USD")]


def test_nodes_without_a_price_are_not_free(run: Run) -> None:
    missing = "without 2 nodes of no pool in the chart's prices"
    assert account(run, Account((0.0, 0.0), (0.0, 0.0), unpriced=2)) == [
        f"0.00, on demand 0.00, {missing}"
    ] * 2  # fmt: skip
    (text,) = account(run, Account((1.5, 4.0), None, unpriced=1))
    assert text == "1.50, on demand 4.00, without 1 node of no pool in the chart's prices"


def test_long_tables_are_folded(run: Run) -> None:
    assert "<details open><summary>1 agent</summary>" in page(run, {})
    assert "<details><summary>11 agents</summary>" in page(replace(run, gone=run.gone * 11), {})


def test_a_job_that_has_not_run_has_no_empty_tables(run: Run) -> None:
    html = page(replace(run, lives=[], gone=[], pauses=[], progress=[], loss=[]), {})
    assert "Nothing has run yet" in html
    assert "<table" not in html


def test_only_what_is_known_is_drawn(run: Run) -> None:
    assert [chart.title for chart in charts(run)] == [
        "Agents by zone", "Committed steps", "Throughput, samples per second", "Training loss",
    ]  # fmt: skip
    one_loss = replace(run, loss=[(20, 2.5)], lives=[])
    assert [chart.title for chart in charts(one_loss)] == [
        "Committed steps", "Throughput, samples per second",
    ]  # fmt: skip
    assert charts(replace(one_loss, progress=[(1000.0, 0)])) == []


@pytest.mark.parametrize(
    ("seconds", "label"), [(40.0, "10 s"), (1200.0, "5 min"), (20_000.0, "2 h"), (1e6, "2 d")]
)
def test_time_has_a_fitting_unit(run: Run, seconds: float, label: str) -> None:
    longer = replace(run, span=Span(1000.0, 1000.0 + seconds))
    assert f">{label}<" in charts(longer)[0].svg


def test_the_page_stands_alone(run: Run) -> None:
    html = page(run, {"a": 3.6, "b": 7.2}, ["All bits are equal."])
    assert not re.search(r"<script|<link|<img|src=|@import|url\(", html)
    assert not re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", html).count("://")
    assert html.count("<svg") == 4
    assert "Something is &lt;not&gt; known." in html
    assert "All bits are equal." in html
    assert "0.10 USD for 0.02 agent-hours" in html
    assert "1970-01-01 00:16:50 UTC</td><td>gpt-p0-s1-i0" in html


def test_a_name_cannot_smuggle_markup(run: Run) -> None:
    lives = [replace(run.lives[0], zone="<script>x</script>")]
    assert "<script" not in page(replace(run, lives=lives), {})


def test_without_prices_the_page_says_so(run: Run) -> None:
    html = page(run, {})
    assert "No prices given" in html
    assert html.count("not given</td>") == 2


def test_the_page_of_a_quick_start_does_not_speak_of_money(run: Run) -> None:
    """Its machines have no price, and the command no --price."""
    html = page(run, None)
    assert "<h2>Agent-hours</h2>" in html
    assert "<td>a</td>" in html
    assert not re.search(r"USD|price|money", html)


def test_an_empty_run_has_a_page(run: Run) -> None:
    empty = Run(run.job, 32, Span(5.0, 5.0))
    assert "<svg" not in page(empty, {})


def test_the_text_has_the_same_figures(run: Run) -> None:
    out = io.StringIO()
    many = [replace(run.gone[0], at=1000.0 + n) for n in range(12)]
    Console(file=out, width=120).print(text_report(replace(run, gone=many), {"a": 3.6, "b": 7.2}))
    said = out.getvalue()
    for words in (
        "20 of 32", "2 (1 with notice)", "4, 4.2 s in all", "16.0", "0.10 USD", "2 before",
        "Something is <not> known.",
    ):  # fmt: skip
        assert words in said


@pytest.fixture
def invoke(server: Server, kubeconfig: Path, training: dict[str, Any]) -> Callable[..., Any]:
    training["status"]["startTime"] = "1970-01-01T00:00:00Z"
    server.answers[JOB_PATH] = (200, training)
    server.answers[PODS_PATH] = (200, {"items": []})
    events = [
        event(2.0, Reason.PLANNED, epoch=1, agents="gpt-p0-s0-i0"),
        event(11.0, Reason.RESUMED, epoch=2, step=4, pause_s=0.9),
    ]
    known = [one | {"lastTimestamp": one["eventTime"]} for one in events]
    server.answers[EVENTS_PATH] = (200, {"items": known})

    def call(*more: str) -> Any:
        return CliRunner().invoke(cli, ["report", "gpt", *more, "--kubeconfig", str(kubeconfig)])

    return call


def test_the_command_prints(invoke: Callable[..., Any]) -> None:
    result = invoke("--price", "others=2")
    assert result.exit_code == 0, result.exception
    assert "team/gpt" in result.output
    assert "agent-hours" in result.output


def test_the_command_writes_a_page(invoke: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    result = invoke("--html", str(path))
    assert result.output == f"The report is {path}\n"
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_the_command_refuses_bad_input(invoke: Callable[..., Any], tmp_path: Path) -> None:
    missing = invoke("--html", str(tmp_path / "no/run.html"))
    assert "--html" in str(missing.exception)
    assert "does not exist; create it" in str(missing.exception)
    needs = "--html needs the name of a file, such as report.html;"
    for name, said in ((str(tmp_path), str(tmp_path)), ("", ".")):
        assert str(invoke("--html", name).exception) == f"{needs} {said} is a folder."
    (tmp_path / "run.html").symlink_to("run.html")
    looped = str(invoke("--html", str(tmp_path / "run.html")).exception)
    assert looped.endswith(
        "run.html cannot be written (Too many levels of symbolic links); make"
        " room or mend that, or name another file."
    )
    assert "'x' is not POOL=USD" in str(invoke("--price", "x").exception)
