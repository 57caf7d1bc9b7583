"""The examples are jobs that the operator accepts, and say what the texts say of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_cli.estimate import gpus
from bamboo_cli.estimate.plan import plan_of
from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.controller import pod_zones
from bamboo_core.protection.hazard import PRIOR
from bamboo_core.validation.reading import from_manifest

CLOUDS = ["gke-spot.yaml", "eks-managed.yaml", "eks-karpenter.yaml", "aks-spot.yaml"]
EXAMPLES = ["quickstart.yaml", *CLOUDS]


def read(root: Path, name: str) -> Any:
    return yaml.safe_load((root / "examples" / name).read_text())


def test_all_examples_are_tested(root: Path) -> None:
    files = [path.name for path in (root / "examples").iterdir() if path.is_file()]
    assert sorted(files) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_accepted(root: Path, name: str) -> None:
    assert isinstance(from_manifest(read(root, name)), JobSpec)


@pytest.mark.parametrize("name", ["gke-spot.yaml", "eks-karpenter.yaml", "aks-spot.yaml"])
def test_from_zero_nodes_all_zones_of_the_pools_are_asked(root: Path, name: str) -> None:
    spec = from_manifest(read(root, name))
    assert isinstance(spec, JobSpec)
    asked = pod_zones.choose(spec, [], [], pod_zones.slots(spec))
    assert len(asked) == spec.pipelines.count * spec.pipelines.stages
    assert len(set(asked.values())) == 3, "the texts speak of three"


def test_the_pools_of_the_gke_example_are_those_that_its_text_makes(root: Path) -> None:
    text = (root / "examples/gke-spot.yaml").read_text()
    zones = re.findall(r"for zone in (.*); do", text)[0].split()
    spec = from_manifest(read(root, "gke-spot.yaml"))
    assert isinstance(spec, JobSpec)
    assert [(pool.zones, pool.node_selector) for pool in spec.placement.pools] == [
        ((zone,), {"cloud.google.com/gke-nodepool": f"spot-{zone[-1]}"}) for zone in zones
    ]


def test_every_cloud_of_the_chart_has_an_example(root: Path) -> None:
    """The comment of its value file names it."""
    for file in (root / "charts/bamboo/values").glob("*.yaml"):
        named = re.findall(r"examples/([\w-]+\.yaml)", file.read_text())
        assert len(named) == (file.name not in ("kind.yaml", "openshift.yaml")), file.name
        assert set(named) <= set(CLOUDS)


def test_quickstart_is_what_the_readme_says(root: Path) -> None:
    pipelines = read(root, "quickstart.yaml")["spec"]["pipelines"]
    assert pipelines == {"count": 2, "stages": 4}
    assert "eight agents" in (root / "README.md").read_text()


def readme_job(root: Path) -> Any:
    (job,) = re.findall(r"```yaml\n(apiVersion.*?)```", (root / "README.md").read_text(), re.S)
    return yaml.safe_load(job)


def test_the_readmes_job_is_accepted(root: Path) -> None:
    assert isinstance(from_manifest(readme_job(root)), JobSpec)


@pytest.mark.parametrize("name", ["README", *CLOUDS])
def test_checkpoints_go_where_agents_can_write(root: Path, name: str) -> None:
    """A folder of a volume, which belongs to the group that the agent's image runs with."""
    spec = from_manifest(readme_job(root) if name == "README" else read(root, name))
    assert isinstance(spec, JobSpec)
    assert spec.checkpoint is not None
    template = spec.worker.pod_template["spec"]
    (agent,) = (c for c in template["containers"] if c["name"] == "agent")
    (mount,) = (
        m for m in agent["volumeMounts"]
        if spec.checkpoint.uri.startswith(f"file://{m['mountPath']}/") and not m.get("readOnly")
    )  # fmt: skip
    assert mount["name"] in [volume["name"] for volume in template["volumes"]]
    (user,) = re.findall(r"^USER \d+:(\d+)$", (root / "Dockerfile.agent").read_text(), re.M)
    assert template["securityContext"]["fsGroup"] == int(user)


def test_the_readmes_commands_exist(root: Path) -> None:
    readme = (root / "README.md").read_text()
    for image in re.findall(r"docker build -f (\S+) ", readme):
        assert (root / image).is_file()
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "pip install '.[cli]'" in readme
    assert "cli" in extras["optional-dependencies"]
    assert "bamboo" in extras["scripts"]


SHAPES = {"quickstart.yaml": None, **dict.fromkeys(["README", *CLOUDS], "gpt2-medium")}
"""For `bamboo plan`: a model that is as large as the example's text says. None: its own model."""
USUAL = {
    "profile": None, "tflops": 50.0, "hazard": PRIOR, "memory": None, "restart_s": 60.0,
    "refill_s": 180.0, "stop_s": 1.0, "step_s": None,
}  # fmt: skip


def disagreement(file: Path, shape: str | None) -> str:
    """Where the planner would take another mode than the manifest has, over any usual network."""
    for gbits in (None, 25.0):
        found = plan_of(file=file, shape=shape, gbits=gbits, **USUAL)  # type: ignore[arg-type]
        mode = found.spec.redundancy.mode
        if mode not in (RedundancyMode.AUTO, found.verdict.mode):
            return f"{mode.value}, but over {gbits} Gb/s {found.verdict.reason}"
        if found.shortage:
            return found.shortage
    return ""


@pytest.mark.parametrize("name", SHAPES)
def test_examples_agree_with_the_planner(root: Path, tmp_path: Path, name: str) -> None:
    """They have the mode that it picks, or leave it to Auto, and fit onto the GPU they name."""
    file = root / "examples" / name
    if name == "README":
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(readme_job(root)))
    assert disagreement(file, SHAPES[name]) == ""


@pytest.mark.parametrize("mode", ["Replica", "Eager"])
@pytest.mark.parametrize("name", CLOUDS)
def test_a_mode_with_copies_would_be_found(
    root: Path, tmp_path: Path, name: str, mode: str
) -> None:
    job = read(root, name)
    job["spec"]["redundancy"] = {"mode": mode}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    assert disagreement(file, SHAPES[name]).startswith(f"{mode}, but over ")


@pytest.mark.parametrize("name", CLOUDS)
def test_the_gpu_of_an_example_is_known_to_the_planner(root: Path, name: str) -> None:
    """And it is the one that the text at its beginning speaks of."""
    spec = from_manifest(read(root, name))
    assert isinstance(spec, JobSpec)
    found = gpus.asked(spec)
    assert found is not None
    text = (root / "examples" / name).read_text()
    head = text[: text.index("apiVersion: bamboo.dev")]
    values = found.field.split()[-1].split("|")
    assert [value for value in values if value not in head] == []
