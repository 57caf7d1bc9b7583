"""``kubectl explain`` has a text for every field. The API server has those of the standard ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

STANDARD = (".apiVersion", ".kind", ".metadata")
ROOT = Path(__file__).resolve().parents[2]


def fields(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of an object, and those below it."""
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(f"{path}.{name}", child)
        yield from fields(f"{path}.{name}[]", child.get("items", {}))


@pytest.fixture(scope="module")
def version() -> Any:
    """The only version of the resource definition."""
    definition = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    (found,) = definition["spec"]["versions"]
    return found


def test_every_field_is_described(version: Any) -> None:
    every = fields("", version["schema"]["openAPIV3Schema"])
    found = {path: node for path, node in every if not path.startswith(STANDARD)}
    assert len(found) > 150
    bare = [path for path, node in found.items() if not node.get("description", "").strip()]
    assert bare == []
    unfinished = [path for path, node in found.items() if not node["description"].endswith(".")]
    assert unfinished == []


def test_every_column_is_described(version: Any) -> None:
    columns = version["additionalPrinterColumns"]
    assert [c["name"] for c in columns if not c.get("description")] == []
