"""One development cluster for all tests that need a control plane and nothing installed on it, and
the sample of slow tests that a run takes."""

import subprocess
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

from bamboo_devcluster.testing import devcluster, devcluster_api, devcluster_namespace

# An example may take as long as a busy machine lets it.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

__all__ = ["devcluster", "devcluster_api", "devcluster_namespace"]


@pytest.fixture(scope="session")
def devcluster_images() -> dict[str, Any]:
    """For the cases of the development cluster; the others' pods run no container."""
    shout = {
        "image": "*/shout:*",
        "command": ["python", "-c", "import os,sys; print(os.environ['WORD'], *sys.argv[1:])"],
        "args": ["quietly"],
        "env": {"WORD": "hello"},
    }
    return {"images": [shout]}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="also run what rotates from commit to commit"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run one in ``share`` of the tests marked ``rotating(share)``; the commit's hash chooses."""
    if config.getoption("--all") or any("::" in arg for arg in config.args):
        return
    left_out = rotated_out(items, _commit(config))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def rotated_out(items: list[pytest.Item], commit: str) -> set[pytest.Item]:
    """The tests that this commit leaves out. At least one of each file and share stays."""
    groups: dict[tuple[Path, int], list[pytest.Item]] = {}
    for item in items:
        if (marker := item.get_closest_marker("rotating")) is not None:
            groups.setdefault((item.path, marker.args[0]), []).append(item)
    out: set[pytest.Item] = set()
    for (_, share), group in groups.items():
        group.sort(key=lambda item: crc32(f"{commit} {item.nodeid}".encode()))
        out.update(group[-(-len(group) // share) :])
    return out


def _commit(config: pytest.Config) -> str:
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(
        command, cwd=config.rootpath, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()
