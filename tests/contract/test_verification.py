"""docs/verification.md lists exactly the faults that are planted."""

from __future__ import annotations

import re
from pathlib import Path

from bamboo_sim.protocol.planted.faults import FAULTS, NOT_SHOWN

PAGE = (Path(__file__).resolve().parents[2] / "docs/verification.md").read_text()


def rows(heading: str) -> list[str]:
    """Rows of the table after a heading, sorted; a first cell may list several, or a range."""
    table = PAGE.split(f"| {heading} |\n")[1].split("\n\n")[0]
    found = list[str]()
    for cell in re.findall(r"^\| ([A-Z]\d.*?) \|", table, re.M):
        names = re.sub(r"\(.*\)", "", cell).strip()
        if span := re.fullmatch(r"([A-Z])(\d+)-[A-Z](\d+)", names):
            found += [f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1)]
        else:
            found += names.split(", ")
    return sorted(found)


def test_planted_faults_are_listed() -> None:
    assert rows("found by") == sorted(fault.row for fault in FAULTS)


def test_rules_that_no_history_shows_are_listed() -> None:
    assert rows("why no history shows it") == sorted(NOT_SHOWN)
