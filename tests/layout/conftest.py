"""The checkout as data: its tracked files and its packages' modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Every file that git knows or would add, relative to the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def modules() -> list[Path]:
    """Modules of the packages that people write (not the generated ones), relative to the root."""
    found = [path for path in ROOT.glob("*/bamboo_*/**/*.py") if "bamboo_proto" not in path.parts]
    return sorted(path.relative_to(ROOT) for path in found)
