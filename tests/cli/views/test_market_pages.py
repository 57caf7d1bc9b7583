"""Pages of the market simulator: drawings to scale, nothing from outside, no markup of users."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from bamboo_cli.views.market.drawings import ACTIVITIES, of_comparison
from bamboo_cli.views.market.pages import compare_html, compare_markdown
from bamboo_cli.views.svg import plots
from bamboo_cli.views.svg.plots import Point

BINS = 24
SHARES = {"training": 0.5, "repeating": 0.25, "paused": 0.25, "standing": 0.0, "idle": 0.0}


def row(name: str, value: float, rank: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "rank": rank, "samples_per_s": value / 100, "dollars": 2.5, "fatal": 0.0,
        "samples_per_dollar": value, "interval": [value * 0.9, value * 1.1],
        "share": SHARES, **more,
    }  # fmt: skip


def comparison(source: str = "trace.csv") -> dict[str, Any]:
    series = {"samples_per_s": [1.0] * BINS, "samples_per_dollar": [2.0] * BINS}
    rows = [row("bound", 1000.0), row("oobleck", 800.0, 1), row("ours, None", 400.0, 2)]
    return {
        "source": source, "model": "small", "network": "10 Gb/s", "runs": 1, "hours": 2.0,
        "nodes": 4, "removals": 1.0, "stages": 2, "ours": "ours, ", "default": "ours, None",
        "bound": "bound", "best_other": "oobleck", "level": "95%",
        "verdict": ["ours is number 2 of 2."], "notes": ["bound: no pause."],
        "titles": {"common": "All:"}, "tables": {"common": rows},
        "over_time": {
            "bin_hours": 2 / BINS,
            "nodes": {"zone-a": [3.0] * BINS, "zone-b": [1.0] * BINS},
            "dollars_per_h": [4.0] * BINS,
            "systems": {each["name"]: series for each in rows},
        },
        "assumptions": {
            "rules": ["The start is free."],
            "values": ["price of spot = 0.91 [2023-04; a paper]"],
            "parameters": [
                {"system": "oobleck", "name": "x|y", "value": 1, "own": 2, "unit": "ms",
                 "source": "code"},
            ],
        },
    }  # fmt: skip


def record(*sources: str, **more: Any) -> dict[str, Any]:
    return {"comparisons": [comparison(source) for source in sources], "all_fleets": [], **more}


def rects(svg: str) -> list[dict[str, str]]:
    return [x.attrib for x in ElementTree.fromstring(svg).iter() if x.tag.endswith("rect")]


def test_every_drawing_is_there_and_well_formed() -> None:
    drawn = of_comparison(comparison())
    assert [each.title.split(",")[0].split(":")[0] for each in drawn] == [
        *("Fleet", "Samples per dollar", "Throughput over time", "Cost over time"),
        *("Value over time", "Share of time by what the job does"),
    ]
    for each in drawn:
        ElementTree.fromstring(each.svg)
        assert all(colour in each.svg for colour in each.key.values() if each.key is not ACTIVITIES)


def test_bars_are_as_long_as_their_values() -> None:
    bars = rects(of_comparison(comparison())[1].svg)
    widths = [float(bar["width"]) for bar in bars]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 0.8, 0.4], rel=1e-3)
    assert len({bar["fill"] for bar in bars}) == 3  # no system, another one, and ours


def test_shares_fill_their_bars_in_order() -> None:
    bars = rects(of_comparison(comparison())[5].svg)[:3]
    assert [bar["fill"] for bar in bars] == list(ACTIVITIES.values())[:3]
    widths = [float(bar["width"]) for bar in bars]
    assert [width / sum(widths) for width in widths] == pytest.approx([0.5, 0.25, 0.25], rel=1e-3)


def test_zones_stand_one_above_the_other() -> None:
    svg = of_comparison(comparison())[0].svg
    low, high = re.findall(r'<polygon points="([^"]*)"', svg)
    tops = [min(float(pair.split(",")[1]) for pair in points.split()) for points in (low, high)]
    bottoms = [max(float(pair.split(",")[1]) for pair in points.split()) for points in (low, high)]
    assert bottoms[1] == tops[0]  # the second one begins where the first one ends
    assert (bottoms[1] - tops[1]) * 3 == pytest.approx(bottoms[0] - tops[0], rel=1e-3)


def test_names_of_points_do_not_stand_on_each_other() -> None:
    near = [Point(5, 5, "red", "first"), Point(5.01, 5, "red", "second", is_marked=True)]
    svg = plots.points([*near, Point(9, 1, "red", "third")], [(5, 5), (9, 1)], "hours")
    names = [x.text for x in ElementTree.fromstring(svg).iter() if x.tag.endswith("text")]
    assert "first" not in names
    assert {"second", "third", "hours"} <= set(names)
    circles = [x.attrib for x in ElementTree.fromstring(svg).iter() if x.tag.endswith("circle")]
    assert [circle["r"] for circle in circles] == ["3", "3", "6"]  # the marked one above all


def test_the_page_has_what_a_reader_needs_and_nothing_from_outside() -> None:
    html = compare_html(record("trace.csv"))
    for text in ("ours is number 2 of 2.", "price of spot", "2023-04", "The start is free.", "95%"):
        assert text in html
    assert not re.search(r"(src|href)=|url\(|@import|<script", html)
    assert "On all fleets" not in html


def test_names_of_files_are_no_markup() -> None:
    html = compare_html(record("<b>a.csv"))
    assert "<b>a.csv" not in html
    assert "&lt;b&gt;a.csv" in html


def test_several_fleets_have_a_table_of_their_own() -> None:
    both = [{"name": "oobleck", "ratios": [0.8, 0.9], "mean": 0.849, "rank": 1}]
    found = record("a.csv", "b.csv", all_fleets=both)
    assert '<td>oobleck</td><td class="number">0.800</td>' in compare_html(found)
    assert "| oobleck | 0.800 | 0.900 | 0.849 | 1 |" in compare_markdown(found)


def test_tables_in_markdown_are_whole() -> None:
    text = compare_markdown(record("trace.csv"))
    assert "x\\|y" in text
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3
    for block in blocks:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in block}
        assert len(columns) == 1, block[0]
    assert len(blocks[1]) == 2 + 12
    assert blocks[1][-1].startswith("| 2.00 | 4.0 | 4.00 | 1.00 |")
