"""Old words do not come back: docs/glossary.md has the new ones."""

from __future__ import annotations

import re
from pathlib import Path

OLD = re.compile(
    r"\b(doubt(ed|s)?|lessons?|rushed|unseated|heirs?|happenings?|emission|lineage|ballots?"
    r"|parcels?|postponed|blows?|nurser(y|ies)|nurslings?|sabotage[ds]?|whom|shall)\b",
    flags=re.I,
)


def test_the_docs_use_the_words_of_the_glossary(root: Path) -> None:
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    found = [
        f"{page.relative_to(root)}:{number}: {line.strip()}"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if OLD.search(line)
    ]
    assert found == []
