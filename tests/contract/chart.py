"""The chart, rendered by helm."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.programs import binaries

CHART = Path(__file__).resolve().parents[2] / "charts/bamboo"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller looks at what came of it."""
    program = binaries.ensure(print, ["helm"])["helm"]
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


def render(*arguments: str) -> list[dict[str, Any]]:
    """The objects that an installation creates."""
    done = helm("template", "bamboo", str(CHART), "--namespace", "bamboo-system", *arguments)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [body for body in objects if body["kind"] == kind]
