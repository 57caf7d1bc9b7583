"""The jobs of docs/library-models.md as a new user has them: weights of a library in, memory-mapped
data, `bamboo train --local` through a kill, `bamboo export`, and the library again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from .page_jobs import LIBRARIES, bamboo

pytestmark = [pytest.mark.timeout(600), pytest.mark.rotating(3)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_job_of_the_page_trains_and_its_weights_load_into_the_library(
    name: str, tmp_path: Path
) -> None:
    library = LIBRARIES[name]
    spec, load = library.spec(tmp_path)
    spec["training"] |= {"steps": 4, "globalBatchSize": 8, "microBatchSize": 2}
    spec["worker"] = {"image": "bamboo-agent:none"}
    job = {"apiVersion": "bamboo.dev/v1alpha1", "kind": "BambooJob", "spec": spec}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "metadata": {"name": "first"}}))
    train = ("train", "-f", "job.yaml", "--local")
    grid = ("--pipelines", "2", "--stages", "2", "--check", "--kill", "1")
    shown = bamboo(tmp_path, *train, *grid, "--out", "several")
    assert "equal, bit for bit, to 4 steps of a plain loop" in shown
    alone = bamboo(tmp_path, *train, "--pipelines", "1", "--stages", "1", "--out", "one")
    assert re.findall("final state: .*", alone) == re.findall("final state: .*", shown)
    found = []
    for run in ("several", "one"):
        bamboo(tmp_path, "export", run, "--format", library.kind, "--out", f"{run}-weights")
        found.append(load(tmp_path / f"{run}-weights"))
    several, one = found
    assert several.keys() == one.keys()
    assert all(torch.equal(several[name], one[name]) for name in one)
