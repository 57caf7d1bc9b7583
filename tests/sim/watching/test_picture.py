"""A board as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bamboo_sim.watching import picture
from bamboo_sim.watching.panels import Board, Panel, Query, Row
from bamboo_sim.watching.server import Series

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
    assert curves == [("a", [(0.0, 1.0), (60.0, 2.0)]), ("b", [(0.0, 2.0), (60.0, 5.0)])]


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
