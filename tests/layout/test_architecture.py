"""docs/ARCHITECTURE.md describes the code that exists, and links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/ARCHITECTURE.md").read_text()


def tour(page: str, package: str) -> dict[str, str]:
    """The text of the page about each folder of a package."""
    (section,) = re.findall(rf"^### `{package}`.*?(?=^##|\Z)", page, flags=re.M | re.S)
    entries = re.split(r"^- \*\*`(\w+)/`\*\*", section, flags=re.M)
    return dict(zip(entries[1::2], entries[2::2], strict=True))


PACKAGES = [
    *("core/bamboo_core", "operator/bamboo_operator", "cli/bamboo_cli"),
    *("devcluster/bamboo_devcluster", "agent/bamboo_agent", "sim/bamboo_sim"),
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tour_visits_every_folder(root: Path, page: str, package: str) -> None:
    entries = tour(page, package)
    real = {path.parent.name for path in (root / package).glob("*/__init__.py")}
    assert entries.keys() == real
    for folder, text in entries.items():
        for name in re.findall(r"`([\w/]+\.py)`", text):
            assert (root / package / folder / name).is_file(), f"{package}/{folder}/{name}"


def test_the_order_of_the_cores_folders_is_the_enforced_one(root: Path, page: str) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in settings["contracts"] if c.get("containers") == ["bamboo_core"])
    assert ", ".join(f"`{layer}`" for layer in contract["layers"]) in page


@pytest.mark.parametrize("package", PACKAGES)
def test_the_tour_names_files_that_exist(root: Path, page: str, package: str) -> None:
    (section,) = re.findall(rf"^### `{package}`.*?(?=^- \*\*)", page, flags=re.M | re.S)
    for name in re.findall(r"`([\w/]+\.py)`", section):
        assert (root / package / name).is_file(), f"{package}/{name}"


def prose(file: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^ *```.*?^ *```", "", file.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda m: re.sub(r"[][()]", "", m[0]), text)


def anchors(file: Path) -> set[str]:
    """The names under which a page's headings can be linked."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_links_lead_somewhere(root: Path) -> None:
    broken = []
    for page in (*root.glob("*.md"), *(root / "docs").rglob("*.md")):
        for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose(page)):
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(root)}: {name}#{anchor}")
    assert not broken


def test_paths_in_sentences_exist(root: Path) -> None:
    """A path may leave out the package: `core/api/spec.py`."""
    folders = "core|operator|agent|sim|cli|tests|docs|scripts|crds|charts|benchmarks|examples"
    missing = []
    for page in (*root.glob("*.md"), *(root / "docs").rglob("*.md")):
        for name in re.findall(r"\bbamboo_\w+/[\w/]+\.py\b", page.read_text()):
            if not any(root.glob(f"*/{name}")):
                missing.append(f"{page.relative_to(root)}: {name}")
        for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text()):
            short = name.replace("core/", "core/bamboo_core/", 1)
            if "NAME" not in name and not any((root / p).exists() for p in (name, short)):
                missing.append(f"{page.relative_to(root)}: {name}")
    assert missing == []


def test_files_of_the_journey_exist(root: Path, page: str) -> None:
    journey = page[page.index("## A job's journey") : page.index("## Who owns")]
    folders = {"core": "core/bamboo_core"}
    for name in re.findall(r"`(core/[\w/]+\.py)`", journey):
        first, _, rest = name.partition("/")
        assert (root / folders[first] / rest).exists(), name
    for name in re.findall(r"`((?!core/)[\w/]+\.py)`", journey):
        assert (root / "agent/bamboo_agent" / name).exists(), name
