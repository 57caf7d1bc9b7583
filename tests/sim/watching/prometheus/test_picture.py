"""A board as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bamboo_sim.watching.definitions.panels import TIMELINE, Board, Panel, Query, Row
from bamboo_sim.watching.prometheus import picture
from bamboo_sim.watching.prometheus.server import Series

PANELS = (
    Panel("Zones", "x.", (Query("a", "{{zone}}"),), is_stacked=True, is_step=True),
    Panel("Share & more", "x.", (Query("b"),), unit="percentunit", kind="stat"),
    Panel("Nothing", "x.", (Query("c"),)),
    Panel("Line", "x.", (Query("d", "d"),)),
)
BOARD = Board("u", "A < B", "", (), (Row("Row", PANELS),))
ANSWERS = {
    "Zones": [
        [
            Series({"zone": "b"}, [(0.0, 1.0), (60.0, 3.0)]),
            Series({"zone": "a"}, [(0.0, 1.0), (60.0, 2.0)]),
        ]
    ],
    "Share & more": [[Series({}, [(0.0, 0.1), (60.0, 0.25)])]],
    "Nothing": [[]],
    "Line": [[Series({}, [(0.0, 0.0), (30.0, float("nan")), (60.0, 0.0)])]],
}


def test_a_board_is_drawn() -> None:
    text = picture.picture(BOARD, ANSWERS, 0.0, 60.0)
    root = ET.fromstring(text)
    words = [e.text for e in root.iter() if e.tag.endswith("text")]
    for expected in ("A < B", "Row", "Zones", "Share & more", "25 %", "no data", "a", "b"):
        assert expected in words
    assert words.count("no data") == 1
    assert "NaN" not in text.replace("no data", "").upper()


def test_stacked_curves_are_summed_from_below() -> None:
    curves = picture._curves(PANELS[0], ANSWERS["Zones"])
    assert curves == [
        ("a", [(0.0, 1.0), (60.0, 2.0)], [(0.0, 0.0), (60.0, 0.0)]),
        ("b", [(0.0, 2.0), (60.0, 5.0)], [(0.0, 1.0), (60.0, 2.0)]),
    ]


def test_the_legend_of_a_stack_has_no_name_that_is_always_zero() -> None:
    found = [[Series({"zone": z}, [(0.0, v), (60.0, v)]) for z, v in (("a", 0.0), ("b", 1.0))]]
    assert [curve.name for curve in picture._curves(PANELS[0], found)] == ["b"]
    assert [curve.name for curve in picture._curves(PANELS[3], found)] == ["d", "d"]
    nothing = [[Series({"zone": "a"}, [(0.0, 0.0)])]]
    assert [curve.name for curve in picture._curves(PANELS[0], nothing)] == ["a"]


def shapes(text: str, tag: str) -> list[dict[str, str]]:
    return [e.attrib for e in ET.fromstring(text).iter() if e.tag.endswith(tag)]


def test_only_stacked_curves_are_filled() -> None:
    """Otherwise the upper one reads as the larger one."""
    text = picture.picture(BOARD, ANSWERS, 0.0, 60.0)
    filled = [e["d"] for e in shapes(text, "path") if e.get("fill", "none") != "none"]
    assert len(filled) == 2
    assert all(d.endswith("Z") for d in filled)


def test_a_step_holds_its_value_until_the_next() -> None:
    points = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 4.0), (4.0, 4.0)]
    assert picture._corners(points, is_step=True) == [
        (0.0, 1.0), (2.0, 1.0), (3.0, 1.0), (3.0, 4.0), (4.0, 4.0)
    ]  # fmt: skip
    assert picture._corners(points, is_step=False) == [
        (0.0, 1.0), (2.0, 1.0), (3.0, 4.0), (4.0, 4.0)
    ]  # fmt: skip


def test_a_timeline_has_a_bar_for_each_time_that_something_is_true() -> None:
    panel = Panel("Conditions", "x.", (Query("e", "{{type}}"),), kind=TIMELINE)
    board = Board("u", "Board", "", (), (Row("Row", (panel,)),))
    ready = [(t, float(t not in (20.0, 30.0))) for t in (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0)]
    found = [Series({"type": "Ready"}, ready), Series({"type": "Failed"}, [(0.0, 0.0)])]
    text = picture.picture(board, {"Conditions": [found]}, 0.0, 60.0)
    words = [e.text for e in ET.fromstring(text).iter() if e.tag.endswith("text")]
    assert {"Ready", "Failed"} <= set(words)
    bars = [float(e["width"]) for e in shapes(text, "rect") if "fill-opacity" in e]
    assert len(bars) == 2
    assert bars[0] == pytest.approx(bars[1], abs=0.2)  # 0 to 20, and 40 to 60


def test_a_collapsed_row_shows_its_heading_only() -> None:
    board = Board("u", "Board", "", (), (Row("Seldom", PANELS, is_collapsed=True),))
    text = picture.picture(board, ANSWERS, 0.0, 60.0)
    words = [e.text for e in ET.fromstring(text).iter() if e.tag.endswith("text")]
    assert "Seldom (4 panels, closed)" in words
    assert "Zones" not in words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "percentunit", "50 %"),
        (9.2, "currencyUSD", "$9.20"),
        (2.5e6, "Bps", "2.5 MB/s"),
        (12.0, "bytes", "12 B"),
        (0.25, "s", "0.25 s"),
        (1500.0, "short", "1.5 K"),
        (7.0, "short", "7"),
    ],
)
def test_units(value: float, unit: str, text: str) -> None:
    assert picture.shown(value, unit) == text


def test_a_legend_says_how_many_names_have_no_room() -> None:
    many = [Series({"zone": f"zone-{n}"}, [(0.0, 1.0), (60.0, 3.0)]) for n in range(9)]
    text = picture.picture(BOARD, ANSWERS | {"Zones": [many]}, 0.0, 60.0)
    words = [e.text or "" for e in ET.fromstring(text).iter() if e.tag.endswith("text")]
    named = sum(word.startswith("zone-") for word in words)
    assert 0 < named < 9
    assert f"and {9 - named} more" in words


def test_a_legend_takes_labels() -> None:
    assert picture.legend("{{a}}/{{b}}", {"a": "x"}) == "x/"
