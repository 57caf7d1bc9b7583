"""The examples are jobs that the operator accepts, and say what the texts say of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.spec import JobSpec, from_manifest

EXAMPLES = ["quickstart.yaml", "gke-spot.yaml", "eks-spot.yaml"]


def read(root: Path, name: str) -> Any:
    return yaml.safe_load((root / "examples" / name).read_text())


def test_all_examples_are_tested(root: Path) -> None:
    assert sorted(path.name for path in (root / "examples").iterdir()) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_accepted(root: Path, name: str) -> None:
    assert isinstance(from_manifest(read(root, name)), JobSpec)


def test_quickstart_is_what_the_readme_says(root: Path) -> None:
    pipelines = read(root, "quickstart.yaml")["spec"]["pipelines"]
    assert pipelines == {"count": 2, "stages": 4}
    assert "eight agents" in (root / "README.md").read_text()


def test_the_readmes_job_is_accepted(root: Path) -> None:
    (job,) = re.findall(r"```yaml\n(apiVersion.*?)```", (root / "README.md").read_text(), re.S)
    assert isinstance(from_manifest(yaml.safe_load(job)), JobSpec)
