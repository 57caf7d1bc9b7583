"""The recorded fleets that stand beside a checkout; the project does not contain them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def recorded() -> Path:
    folders = (folder / "shared" / "traces" for folder in Path(__file__).resolve().parents)
    found = next((folder for folder in folders if (folder / "summary.json").is_file()), None)
    if found is None:
        pytest.skip("no shared/traces with summary.json beside this checkout: nothing to read")
    return found


@pytest.fixture(scope="session")
def summary(recorded: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((recorded / "summary.json").read_text(encoding="utf-8"))
    return read
