"""The commands about a job that the docs show, run against a real API server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.layout.commands import commands

from bamboo_devcluster.cluster import Cluster
from bamboo_devcluster.programs import binaries

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
ABOUT_JOBS = re.compile(
    r"kubectl (apply|get|describe|wait|patch|logs|delete) |bamboo (status|explain) "
)
FAILURES = {  # exit code 1 is right here: no operator runs
    "kubectl wait": "timed out waiting for the condition",
}


def lines() -> list[str]:
    """All such commands but those about the operator, which does not run here, and the resource
    definition or all namespaces, which other tests use; where the docs watch or wait for long, we
    do not."""
    known = (c.text for c in commands(ROOT) if ABOUT_JOBS.match(c.text))
    others = re.compile(r"bamboo-system|\bcrds?\b|--all-namespaces")
    found = dict.fromkeys(text for text in known if not others.search(text))
    shorter = {" --watch": "", "--timeout=24h": "--timeout=1s"}
    texts = []
    for text in found:
        for old, new in shorter.items():
            text = text.replace(old, new)
        texts.append(text)
    return sorted(texts, key=lambda text: text.startswith("kubectl delete"))


@pytest.fixture
def folder(tmp_path: Path, devcluster: Cluster) -> Path:
    """Where the commands are typed: the README's job, the examples, and a namespace of its own."""
    (job,) = re.findall(r"```yaml\n(apiVersion.*?)```", (ROOT / "README.md").read_text(), re.S)
    (tmp_path / "job.yaml").write_text(job)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(devcluster.kubeconfig, tmp_path / "kubeconfig")
    return tmp_path


def test_commands_about_a_job(
    definition: dict[str, Any], folder: Path, devcluster_namespace: str
) -> None:
    kubectl = binaries.ensure(print)["kubectl"]
    paths = [str(Path(sys.executable).parent), str(kubectl.parent), os.environ["PATH"]]
    environment = {
        **os.environ, "KUBECONFIG": str(folder / "kubeconfig"), "PATH": ":".join(paths),
    }  # fmt: skip

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ceu", line], cwd=folder, env=environment, timeout=60,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    run(f"kubectl config set-context --current --namespace {devcluster_namespace}")
    for name in ("job.yaml", "examples/quickstart.yaml"):
        done = run(f"kubectl apply --filename {name}")
        assert done.returncode == 0, done.stderr
    for line in lines():
        done = run(line)
        expected = next((words for start, words in FAILURES.items() if line.startswith(start)), "")
        assert done.returncode == bool(expected), f"{line}\n{done.stderr}"
        assert expected in done.stderr, line
