"""Limits of numbers: those that the core checks are those of the custom resource."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.api.limits import LIMITS
from bamboo_core.api.records import Problem
from bamboo_core.validation.reading import from_manifest

ROOT = Path(__file__).resolve().parents[2]
FRACTIONS = {
    "spec.training.clipNorm",
    "spec.corruption.sample",
    "spec.transport.bandwidthGbps",
    "spec.placement.onDemand.maxShare",
}


def numbers(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Every number below an object of the schema, with its path."""
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}"
        if child.get("type") in ("integer", "number"):
            yield below, child
        yield from numbers(below, child)
        yield from numbers(f"{below}[]", child.get("items", {}))


@functools.cache
def example() -> Any:
    return yaml.safe_load((ROOT / "docs/reference/every-field.yaml").read_text())


def problems(path: str, value: object) -> list[Problem]:
    """Put the value into the field of a job, and return the problems that name field and type."""
    job = copy.deepcopy(example())
    *parents, name = path.split(".")
    node = job
    for parent in parents:
        node = node[parent]
    node[name] = value
    found = from_manifest(job)
    if not isinstance(found, list):
        return []
    return [problem for problem in found if problem.field == path and " from " in problem.message]


def test_the_schema_has_the_same_limits() -> None:
    crd = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    found = {path: (node["minimum"], node["maximum"]) for path, node in numbers("spec", schema)}
    assert found == LIMITS


@pytest.mark.parametrize("path", LIMITS)
def test_a_number_outside_its_limits_is_a_problem(path: str) -> None:
    low, high = LIMITS[path]
    kind = "a number" if path in FRACTIONS else "an integer"
    for value in (low - 1, high + 1, -(2**40), 2**63, -1):
        text = f"is {value!r}; it must be {kind} from {low:,} to {high:,}"
        assert problems(path, value) == [Problem(path, text)]
    for value in (low, high):
        assert problems(path, value) == []


@pytest.mark.parametrize("path", LIMITS)
def test_what_is_no_number_is_a_problem(path: str) -> None:
    low, high = LIMITS[path]
    limits = f"from {low:,} to {high:,}"
    kind = "a number" if path in FRACTIONS else "an integer"
    text = f"is '3'; it must be {kind} {limits}, without quotes"
    assert problems(path, "3") == [Problem(path, text)]
    others: list[object] = [True, [], {}, float("nan"), float("inf")]
    for value in [*others, *([] if path in FRACTIONS else [1.5, 1.0])]:
        assert problems(path, value) == [Problem(path, f"is {value!r}; it must be {kind} {limits}")]
