"""What docs/benchmarks.md quotes is what the benchmarks have written."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

RESULT = {
    "commit": "abc",
    "command": "python b.py",
    "machine": {"cores": 2, "cpu": "X", "load_1m": 0.5},
    "figures": {"pause_s": 0.25, "latency_0.25_slots": 7},
}
SECTION = "# Page\n\n## `b`\n\nMeasured\n\n| figure | value | goal |\n| `pause_s` | 9 | <= 1 |\n"


@pytest.fixture(scope="module")
def quote(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "benchmarks" / "quote.py"))


def test_the_page_quotes_the_results(quote: dict[str, Any]) -> None:
    page = quote["PAGE"].read_text(encoding="utf-8")
    assert quote["quoted"](page, quote["load"]()) == page, "run python benchmarks/quote.py"


def test_figures_and_machine_are_replaced(quote: dict[str, Any]) -> None:
    page = quote["quoted"](SECTION, {"b": RESULT})
    assert "| `pause_s` | 0.25 | <= 1 |" in page
    assert "Measured at abc on 2 cores of X, load 0.5, by `python b.py`." in page


def test_a_result_without_a_section_gets_one(quote: dict[str, Any]) -> None:
    page = quote["quoted"]("# Page\n", {"b": RESULT})
    assert "## `b`" in page
    assert "| `latency_0.25_slots` | 7 | |" in page
    assert quote["quoted"](page, {"b": RESULT}) == page


def test_a_section_without_a_result_is_refused(quote: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no benchmarks/results/b\.json"):
        quote["quoted"](SECTION, {})


def test_an_unknown_figure_is_refused(quote: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no figure `pause_s`"):
        quote["quoted"](SECTION, {"b": {**RESULT, "figures": {}}})
