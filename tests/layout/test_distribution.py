"""pyproject.toml and the lock: what is exported, which extra carries what, no index addresses."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

COMMANDS = {"bamboo", "kubectl-bamboo", "bamboo-operator", "bamboo-agent", "bamboo-devcluster"}


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in requirements}


def test_commands(project: dict[str, Any]) -> None:
    assert set(project["scripts"]) == COMMANDS


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_commands_can_be_loaded(command: str) -> None:
    (entry,) = entry_points(group="console_scripts", name=command)
    assert callable(entry.load())


def test_heavy_packages_stand_in_one_extra(project: dict[str, Any]) -> None:
    extras = {name: names(listed) for name, listed in project["optional-dependencies"].items()}
    carriers = {
        package: sorted(name for name, listed in extras.items() if package in listed)
        for package in ("torch", "kopf", "kubernetes")
    }
    assert carriers == {
        "torch": ["agent"],
        "kopf": ["operator"],
        "kubernetes": ["cli", "dev", "operator"],
    }
    assert not names(project["dependencies"]) & {"torch", "kopf", "kubernetes"}


@pytest.mark.parametrize("lock", ["requirements/dev.txt", "requirements/uv.txt"])
def test_lock_pins_with_hashes_and_names_no_index(root: Path, lock: str) -> None:
    text = (root / lock).read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z])", text.strip())
    assert all(re.match(r"[a-z0-9._-]+==\S+ ", entry) for entry in entries)
    assert all("--hash=sha256:" in entry for entry in entries)


def test_lock_holds_what_the_project_asks_for(root: Path, project: dict[str, Any]) -> None:
    locked = set(
        re.findall(r"^([a-z0-9._-]+)==", (root / "requirements/dev.txt").read_text(), re.M)
    )
    asked = names(project["dependencies"])
    for listed in project["optional-dependencies"].values():
        asked |= names(listed)
    assert {name.lower() for name in asked} <= locked
