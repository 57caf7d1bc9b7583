"""Boards: their grid, and every query against a real Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bamboo_sim.watching.definitions import boards, panels
from bamboo_sim.watching.definitions.job_alerts import PROGRESS, PROTECTION
from bamboo_sim.watching.definitions.operator_alerts import OPERATOR
from bamboo_sim.watching.prometheus import picture, queries, rehearsal, server
from bamboo_sim.watching.prometheus.rehearsal import Rehearsal
from bamboo_sim.watching.prometheus.server import PrometheusError, Series
from bamboo_sim.watching.prometheus.story import CALM, NEW, SLOW, STORM


@pytest.mark.timeout(300)  # a second where nothing else runs
def test_every_query_returns_data_and_alerts_fire_for_the_job_in_trouble_only() -> None:
    found = rehearsal.rehearse()
    assert len(found.answers) >= 100
    assert found.without_data == []
    expected = {alert.name: {STORM} for alert in (*PROGRESS, *PROTECTION)}
    expected |= {"BambooJobSlow": {SLOW}, "BambooJobNotRunning": {NEW}}
    expected |= {alert.name: {""} for alert in OPERATOR if alert.name not in rehearsal.ABSENCE}
    assert found.fired == expected
    for where, series in found.answers.items():
        if ": " in where:  # a panel
            assert_no_name_comes_twice(where, series)
    missing = found.answers[f"{STORM}, fleet: Agents missing, query 1"]
    now = {s.labels["training_job"]: s.points[-1][1] for s in missing}
    assert now == {CALM: 0.0, STORM: 4.0, NEW: 4.0, SLOW: 0.0}


def assert_no_name_comes_twice(where: str, found: list[Series]) -> None:
    """Two operators have exported the series, one after the other."""
    board, title, number = re.fullmatch(r"\w+, (\w+): (.*), query (\d+)", where).groups()  # type: ignore[union-attr]
    (panel,) = (p for p in boards.every()[board].panels() if p.title == title)
    names = [picture.legend(panel.queries[int(number) - 1].legend, s.labels) for s in found]
    assert len(names) == len(set(names)), where


def test_a_query_without_data_is_found() -> None:
    series = [Series({}, [(1.0, 2.0)])]
    found = Rehearsal({"a": series, "b": []})
    assert found.without_data == ["b"]


@pytest.mark.parametrize("name", boards.every())
def test_panels_do_not_overlap_and_fit(name: str) -> None:
    places = [p for p in panels.placed(boards.every()[name]) if not p.is_hidden]
    cells = [
        (x, y)
        for place in places
        for x in range(place.x, place.x + place.width)
        for y in range(place.y, place.y + place.height)
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < panels.COLUMNS


@pytest.mark.parametrize("name", boards.every())
def test_every_panel_says_what_it_shows(name: str) -> None:
    board = boards.every()[name]
    titles = [panel.title for panel in board.panels()]
    assert len(titles) == len(set(titles))
    for panel in board.panels():
        assert panel.text.endswith("."), panel.title
        assert panel.queries, panel.title
        legends = [query.legend for query in panel.queries]
        assert len(legends) == len(set(legends)), panel.title


@pytest.mark.parametrize("name", boards.every())
def test_grafanas_json(name: str) -> None:
    found = json.loads(panels.text(boards.every()[name]))
    assert found["uid"] == f"bamboo-{name}"
    assert found["templating"]["list"][0]["name"] == "datasource"
    every = [x for panel in found["panels"] for x in (panel, *panel.get("panels", ()))]
    ids = [panel["id"] for panel in every]
    assert len(ids) == len(set(ids)) == len(list(panels.placed(boards.every()[name])))
    for panel in found["panels"]:
        assert panel.get("collapsed", False) == bool(panel.get("panels"))
    for panel in every:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"][0]["refId"] == "A"


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(KeyError, match="zone"):
        queries.filled("x{a='$zone'}", {})


def test_alerts_without_waits() -> None:
    text = rehearsal.without_waits("for: 30m\nexpr: rate(x[1h]) > 3600\nfor: 0m")
    assert text == "for: 0s\nexpr: rate(x[1h]) > 3600\nfor: 0s"


def test_a_story_that_promtool_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "samples", lambda *_: ["{"])
    with pytest.raises(PrometheusError, match="promtool does not take the story"):
        rehearsal.record(tmp_path, 7200.0)


def test_errors_of_prometheus_are_sentences(tmp_path: Path) -> None:
    bad = tmp_path / "rules.yaml"
    bad.write_text("groups: 1")
    with (
        pytest.raises(PrometheusError, match="Prometheus ended with code"),
        server.running(tmp_path, {}, port=rehearsal.free_port(), rules=bad),
    ):
        raise AssertionError("it must not start")
    gone = server.Server(f"http://127.0.0.1:{rehearsal.free_port()}")
    with pytest.raises(PrometheusError, match="query"):
        gone.query("up")
    with pytest.raises(PrometheusError, match=r"the end did not happen within 0 s"):
        gone.until(lambda _: False, 0.0, "the end")
