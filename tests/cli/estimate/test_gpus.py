"""`bamboo plan` reads from a manifest which GPU its pods get, and so the memory of a device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.cli.profiles import QUICKSTART, profile_of

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate import gpus
from bamboo_cli.estimate.manifest import read_manifest
from bamboo_cli.main import cli

TEMPLATE = "spec.worker.podTemplate.spec"
GKE, TYPE = "cloud.google.com/gke-accelerator", "node.kubernetes.io/instance-type"
PRODUCT = "nvidia.com/gpu.product"
PARTITION = "cloud.google.com/gke-gpu-partition-size"


@pytest.fixture
def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    return found


@pytest.fixture
def asked(tmp_path: Path, manifest: dict[str, Any]) -> Any:
    """The GPU that the manifest asks for: with a template and placement, and other resources."""

    def of(
        template: dict[str, Any] | None = None,
        resources: dict[str, Any] | None = None,
        **placement: Any,
    ) -> gpus.Asked | None:
        worker = manifest["spec"]["worker"]
        worker["podTemplate"] = {"spec": template or {}}
        if resources is not None:
            worker["resources"] = {"limits": resources}
        if placement:
            manifest["spec"]["placement"] = placement
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(manifest))
        return gpus.asked(read_manifest(path)[1])

    return of


def affinity(*terms: dict[str, list[str]]) -> dict[str, Any]:
    """A pod template with these terms, one of which a node must have."""
    return {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": key, "operator": "In", "values": values}
                                for key, values in term.items()
                            ]
                        }
                        for term in terms
                    ]
                }
            }
        }
    }


@pytest.mark.parametrize(
    ("key", "value", "gigabytes"),
    [
        (GKE, "nvidia-l4", 24), (GKE, "nvidia-tesla-t4", 16), (GKE, "nvidia-tesla-a100", 40),
        (GKE, "nvidia-a100-80gb", 80), (GKE, "nvidia-h100-mega-80gb", 80),
        (GKE, "nvidia-h200-141gb", 141), (GKE, "nvidia-b200", 180),
        (TYPE, "g4dn.xlarge", 16), (TYPE, "g5.48xlarge", 24), (TYPE, "g6.2xlarge", 24),
        (TYPE, "g6e.xlarge", 48), (TYPE, "gr6.4xlarge", 24), (TYPE, "p3.2xlarge", 16),
        (TYPE, "p3dn.24xlarge", 32), (TYPE, "p4d.24xlarge", 40), (TYPE, "p4de.24xlarge", 80),
        (TYPE, "p5.48xlarge", 80), (TYPE, "p5e.48xlarge", 141), (TYPE, "p5en.48xlarge", 141),
        (TYPE, "g2-standard-8", 24), (TYPE, "a2-highgpu-1g", 40), (TYPE, "a2-ultragpu-8g", 80),
        (TYPE, "a3-highgpu-8g", 80), (TYPE, "a3-ultragpu-8g", 141), (TYPE, "a4-highgpu-8g", 180),
        (TYPE, "Standard_NC4as_T4_v3", 16), (TYPE, "Standard_NC24rs_v3", 16),
        (TYPE, "Standard_NC24ads_A100_v4", 80), (TYPE, "Standard_ND96asr_v4", 40),
        (TYPE, "Standard_ND96amsr_A100_v4", 80), (TYPE, "Standard_NC40ads_H100_v5", 94),
        (TYPE, "Standard_ND96isr_H200_v5", 141), (TYPE, "Standard_NV36ads_A10_v5", 24),
        ("karpenter.azure.com/sku-name", "Standard_NC6s_v3", 16),
        ("karpenter.k8s.aws/instance-family", "g6e", 48),
        ("karpenter.k8s.aws/instance-gpu-name", "a10g", 24),
        ("karpenter.k8s.aws/instance-gpu-name", "a100", 40),
        ("karpenter.azure.com/sku-gpu-name", "A100", 40),
        ("karpenter.k8s.aws/instance-gpu-memory", "22888", 22888 * 2**20 / 1e9),
        ("nvidia.com/gpu.memory", "46068", 46068 * 2**20 / 1e9),
        (PRODUCT, "NVIDIA-L4", 24), (PRODUCT, "Tesla-T4-SHARED", 16), (PRODUCT, "NVIDIA-L40S", 48),
        (PRODUCT, "NVIDIA-A10G", 24), (PRODUCT, "Tesla-V100-SXM2-32GB", 32),
        (PRODUCT, "NVIDIA-A100-SXM4-40GB", 40), (PRODUCT, "NVIDIA-H100-80GB-HBM3", 80),
        (PRODUCT, "NVIDIA-H200", 141), (PRODUCT, "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", 40),
    ],
)  # fmt: skip
def test_labels_that_name_a_gpu(asked: Any, key: str, value: str, gigabytes: float) -> None:
    found = asked({"nodeSelector": {key: value, "pool": "a"}})
    assert found.gpu.gigabytes == gigabytes
    assert found.gpu.memory_bytes == int(gigabytes * 1e9)
    assert found.field == f"{TEMPLATE}.nodeSelector, {key} {value}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (GKE, "nvidia-unknown"), (TYPE, "m5.large"), (TYPE, "g6f.large"), (TYPE, "g5g.xlarge"),
        (TYPE, "Standard_NV6ads_A10_v5"), (TYPE, "n1-standard-8"), (PRODUCT, "NVIDIA-GeForce-1"),
        ("karpenter.k8s.aws/instance-gpu-name", "gaudi-hl-205"), ("nvidia.com/gpu.memory", "much"),
        ("nvidia.com/gpu.memory", "0"), ("cloud.google.com/gke-nodepool", "nvidia-l4"),
    ],
)  # fmt: skip
def test_labels_that_name_none(asked: Any, key: str, value: str) -> None:
    """Also machines with a part of a GPU."""
    assert asked({"nodeSelector": {key: value}}) is None


def test_every_size_has_a_source() -> None:
    """One page of the vendor or of a cloud for each."""
    known = {
        *gpus._ACCELERATORS.values(), *gpus._FAMILIES.values(), *(gpu for _, gpu in gpus._TYPES),
    }  # fmt: skip
    assert len(known) >= 18
    for gpu in known:
        assert re.fullmatch(r"https://\S+", gpu.source), gpu
        assert 8 <= gpu.gigabytes <= 200, gpu


def test_of_several_types_the_smallest_counts(asked: Any) -> None:
    found = asked(affinity({TYPE: ["g6e.xlarge", "g5.2xlarge"]}))
    assert found.gpu.name == "A10G"
    assert found.field.endswith(f"affinity.nodeAffinity, {TYPE} g6e.xlarge|g5.2xlarge")
    assert asked(affinity({TYPE: ["g6.2xlarge"]}, {TYPE: ["g4dn.xlarge"]})).gpu.name == "T4"
    assert asked(affinity({TYPE: ["g6.2xlarge", "m5.large"]})) is None


def test_labels_of_one_node_belong_together(asked: Any) -> None:
    """A family says less than a type does."""
    both = affinity({TYPE: ["p4de.24xlarge"], "karpenter.k8s.aws/instance-gpu-name": ["a100"]})
    assert asked(both).gpu.name == "A100 80GB"
    selector = {"nodeSelector": {GKE: "nvidia-a100-80gb"}}
    assert asked(selector | affinity({"pool": ["a"]})).gpu.name == "A100 80GB"


def test_pools_of_the_placement(asked: Any) -> None:
    found = asked(
        pools=[
            {"zones": ["a"], "nodeSelector": {GKE: "nvidia-l4"}},
            {"zones": ["b"], "nodeSelector": {GKE: "nvidia-tesla-t4"}},
            {"zones": ["c"], "nodeSelector": {"pool": "c"}},
        ]
    )
    assert found.gpu.name == "T4"
    assert found.field == f"spec.placement.pools[1].nodeSelector, {GKE} nvidia-tesla-t4"


def test_labels_of_a_pool_must_not_differ_from_those_of_the_template(asked: Any) -> None:
    pool = {"zones": ["a", "b"], "nodeSelector": {GKE: "nvidia-l4"}}
    with pytest.raises(CommandError, match=r"is 'nvidia-h100-80gb', but spec\.placement\.pools"):
        asked({"nodeSelector": {GKE: "nvidia-h100-80gb"}}, pools=[pool])
    assert asked({"nodeSelector": {GKE: "nvidia-l4"}}, pools=[pool]).gpu.name == "L4"


def test_nodes_on_demand_count_too(asked: Any) -> None:
    found = asked(
        {"nodeSelector": {GKE: "nvidia-a100-80gb"}},
        onDemand={"nodeSelector": {GKE: "nvidia-tesla-a100"}},
    )
    assert found.gpu.name == "A100 40GB"
    assert found.field.startswith("spec.placement.onDemand.nodeSelector, ")
    template = {"nodeSelector": {GKE: "nvidia-tesla-a100"}}
    assert asked(template, onDemand={"nodeSelector": {"pool": "b"}}).gpu.name == "A100 40GB"


def test_a_part_of_a_gpu_is_as_large_as_its_name_says(asked: Any) -> None:
    found = asked({"nodeSelector": {GKE: "nvidia-a100-80gb"}}, {"nvidia.com/mig-2g.20gb": 1})
    assert (found.gpu.name, found.gpu.gigabytes) == ("MIG 2g.20gb", 20)
    assert found.field == "spec.worker.resources, nvidia.com/mig-2g.20gb"


def test_without_a_gpu_no_label_counts(asked: Any) -> None:
    assert asked({"nodeSelector": {TYPE: "g6.2xlarge"}}, {"cpu": 1}) is None


# ---------------------------------------------------------------- bamboo plan


@pytest.fixture
def plan(tmp_path: Path, manifest: dict[str, Any]) -> Any:
    """Runs the command for a job in a mode on nodes with a label; returns the result."""

    def run(*options: str, mode: str = "Eager", layers: str = "gpt2-medium", **labels: str) -> Any:
        manifest["spec"]["redundancy"] = {"mode": mode}
        manifest["spec"]["training"] |= {"globalBatchSize": 512, "microBatchSize": 8}
        selector = {name: value for name, value in labels.items() if value}
        manifest["spec"]["worker"]["podTemplate"] = {"spec": {"nodeSelector": selector}}
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(manifest))
        shape = ["--shape", layers] if layers else []
        return CliRunner().invoke(cli, ["plan", "-f", str(path), *shape, *options])

    return run


def test_a_mode_that_does_not_fit_is_an_error_that_names_the_field_and_what_helps(
    plan: Any,
) -> None:
    done = plan(**{TYPE: "Standard_NC4as_T4_v3"})
    assert isinstance(done.exception, CommandError)
    said = str(done.exception)
    assert said.startswith("quickstart does not fit: spec.redundancy.mode is Eager, and it needs")
    assert "80% of the device's 15258 MiB can be used: raise spec.pipelines.stages" in said
    shown = " ".join(done.output.split())
    assert f"device: T4 with 16 GB, by {TEMPLATE}.nodeSelector, {TYPE} Standard_NC4as" in shown
    assert "Eager cannot be used: it needs" in shown
    assert "Replica cannot be used: it needs" in shown


def test_on_a_larger_gpu_it_fits(plan: Any) -> None:
    done = plan(**{TYPE: "a3-ultragpu-8g"})
    assert done.exit_code == 0, done.output
    assert "device: H200 with 141 GB" in " ".join(done.output.split())


def test_the_option_counts_more(plan: Any) -> None:
    done = plan("--memory", "141Gi", "--json", **{TYPE: "Standard_NC4as_T4_v3"})
    assert done.exit_code == 0, done.exception
    found = json.loads(done.output)
    assert found["facts"]["memory_bytes"] == 141 * 2**30
    assert found["device"] == "--memory 141Gi"


@pytest.mark.parametrize(
    ("measured", "gigabytes", "device"),
    [
        (80_000_000_000, 16, "T4 with 16 GB, by "),
        (15_000_000_000, 15, "cpu:AVX2, by profile.json"),
        (0, 16, "T4 with 16 GB, by "),
    ],
)
def test_of_the_profiles_device_and_the_manifests_the_smaller_counts(
    plan: Any, tmp_path: Path, measured: int, gigabytes: int, device: str
) -> None:
    """A profile may be measured on another machine, and what torch reports is exact."""
    plan(mode="None", layers="")  # writes the manifest
    _, spec = read_manifest(tmp_path / "job.yaml")
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_of(spec, memoryBytes=measured)))
    done = plan(
        "--profile", str(path), "--json", mode="None", layers="",
        **{TYPE: "Standard_NC4as_T4_v3"},
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    found = json.loads(done.output)
    assert found["facts"]["memory_bytes"] == gigabytes * 10**9
    assert found["device"].startswith(device)


def test_a_gpu_that_nobody_names_is_asked_for(plan: Any, manifest: dict[str, Any]) -> None:
    """Nothing says then whether a mode fits."""
    unknown = "the device's memory is not known, so nothing says whether a mode fits: name the GPU"
    done = plan(pool="a")
    assert done.exit_code == 0, done.output
    assert unknown in " ".join(done.output.split())
    assert f"{TEMPLATE}.nodeSelector, by a label such as {TYPE}, or" in " ".join(
        done.output.split()
    )
    assert unknown not in " ".join(plan("--memory", "80Gi").output.split())
    manifest["spec"]["worker"]["resources"] = {"limits": {"cpu": 1}}
    assert "not known" not in plan().output
    manifest["spec"]["worker"]["resources"] = {"limits": {"amd.com/gpu": 1}}
    said = " ".join(plan().output.split())
    assert "memory is not known, so nothing says whether a mode fits: give --memory" in said


def test_a_part_of_a_gpu_counts_and_not_the_whole(asked: Any) -> None:
    """It was 40 GB, so that a plan seemed to fit that did not."""
    labels = {GKE: "nvidia-tesla-a100", PARTITION: "1g.5gb"}
    found = asked({"nodeSelector": labels})
    assert (found.gpu.name, found.gpu.gigabytes) == ("MIG 1g.5gb", 5)
    assert asked({"nodeSelector": labels | {PARTITION: "a-part"}}) is None
    assert asked({"nodeSelector": {GKE: "nvidia-l4"}}, {"amd.com/gpu": 1}) is None
