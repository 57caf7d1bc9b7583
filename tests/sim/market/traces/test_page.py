"""The examples of docs/market.md are files that the readers take."""

from __future__ import annotations

import re
from pathlib import Path

from bamboo_sim.market.markets.fit import fit
from bamboo_sim.market.markets.parameters import UNITS
from bamboo_sim.market.traces import history, shapes

PAGE = Path(__file__).resolve().parents[4] / "docs" / "market.md"


def examples() -> dict[str, str]:
    """Shape -> the file that the page shows after its name."""
    found = re.findall(r"^\*\*(.+?)\*\*: .*?^```text\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return dict(found)


def test_the_page_shows_every_shape() -> None:
    assert list(examples()) == [shape.name for shape in shapes.TRACES]


def test_every_example_is_read_as_what_it_is_called(tmp_path: Path) -> None:
    for name, text in examples().items():
        path = tmp_path / "example"
        path.write_text(text, encoding="utf-8")
        found = shapes.read(path)
        assert found.shape == name
        assert fit(found, 30_000).losses == 1


def test_the_page_names_every_column_and_parameter() -> None:
    rows = [
        re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.M)
    ]
    named = [name for row in rows for name in row]
    assert [name for name in named if name in history.COLUMNS] == [*history.COLUMNS]
    assert [name for name in named if name in UNITS] == [*UNITS]
