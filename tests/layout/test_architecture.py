"""docs/ARCHITECTURE.md speaks of the code that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/ARCHITECTURE.md").read_text()


def test_every_module_is_listed_and_no_other(root: Path, page: str, modules: list[Path]) -> None:
    listed: set[str] = set()
    for block in re.split(r"^### ", page, flags=re.M)[1:]:
        folder = block.split("`")[1]
        listed |= {f"{folder}/{name}" for name in re.findall(r"^- `(.+?)`", block, flags=re.M)}
    real = {str(path) for path in modules if path.name != "__init__.py"}
    assert listed == real, "run scripts/gen-docs"


def test_links_lead_somewhere(root: Path) -> None:
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_files_of_the_journey_exist(root: Path, page: str) -> None:
    journey = page[page.index("## A job's journey") : page.index("## Who owns")]
    folders = {"core": "core/bamboo_core"}
    for name in re.findall(r"`(core/[\w/]+\.py)`", journey):
        first, _, rest = name.partition("/")
        assert (root / folders[first] / rest).exists(), name
    for name in re.findall(r"`((?!core/)[\w/]+\.py)`", journey):
        assert (root / "agent/bamboo_agent" / name).exists(), name
