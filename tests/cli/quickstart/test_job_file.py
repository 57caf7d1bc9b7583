"""The job of the quick start, before it runs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from bamboo_cli.errors import CommandError
from bamboo_cli.estimate.manifest import read_spec
from bamboo_cli.quickstart import job_file, local_cluster, scenario
from bamboo_core.api.spec import Channel

_KIND = "kind: BambooJob\napiVersion: bamboo.dev/v1alpha1"


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("a: [", "cannot be read"),
        ("[]", "contains no BambooJob"),
        ("kind: Pod", "contains no BambooJob"),
        ("kind: BambooJob\n---\nkind: BambooJob", "cannot be read"),
        ("\xe9", "cannot be read: 'utf-8' codec can't decode"),
        ("a: &a [*a]", "cannot be read"),
        ("? [a, b]\n: c", "cannot be read"),
        ("kind: BambooJob", "apiVersion is None; it must be bamboo.dev/v1alpha1"),
        (_KIND, "metadata.name is required; set it"),
        (f"{_KIND}\nmetadata: x", "metadata.name is required; set it"),
        (f"{_KIND}\nmetadata: {{name: 5}}", "metadata.name is required; set it"),
    ],
)
def test_files_without_a_job(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CommandError, match=words) as refused:
        job_file.read_manifest(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipelines": None}, "spec.pipelines: is required; set it"),
        ({"pipelines": {"stages": 4}}, "spec.pipelines.count: is required; set it"),
        ({"pipelines": {"count": 2, "stages": "four"}}, "stages: is 'four'; it must be an integer"),
        (
            {"pipelines": {"count": 0, "stages": 4}},
            "spec.pipelines.count: is 0; .* from 1 to",
        ),
        ({"model": {"factory": "m:b", "args": {5: 1}}}, "'5' is not a Python identifier"),
        ({"worker": {"image": "i", "resources": {"limits": 5}}}, "resources.limits: is 5; it must"),
        ({"pipelins": {}}, "spec.pipelins: is not known; the fields of spec are model, "),
        (
            {"checkpoint": {"uri": "ftp://b", "everySteps": 1}},
            'spec.checkpoint.uri: "ftp://b" is not supported',
        ),
        (None, "spec: is required; set it"),
        ("x", "spec: is 'x'; it must be an object"),
    ],
)
def test_a_job_that_the_operator_would_refuse_starts_nothing(
    tmp_path: Path, console: Console, change: Any, words: str
) -> None:
    manifest = job_file.read_manifest(job_file.EXAMPLE)
    spec = manifest["spec"] | change if isinstance(change, dict) else change
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest | {"spec": spec}))
    with pytest.raises(CommandError, match=words) as refused:
        scenario.run_quickstart(scenario.Options(file=path), console)
    assert str(refused.value).startswith(f"{path}: spec")


def test_null_is_like_a_missing_field(tmp_path: Path) -> None:
    manifest = job_file.read_manifest(job_file.EXAMPLE)
    manifest["spec"] |= {"checkpoint": None, "placement": None}
    manifest["spec"]["pipelines"]["min"] = None
    spec = read_spec(manifest, tmp_path)
    job_file.check_room(spec, local_cluster.ClusterOptions())
    assert spec.pipelines.min == 1
    assert "checkpoint" not in job_file.placed(manifest, tmp_path)["spec"]


def test_the_example_is_placed_in_the_local_cluster(tmp_path: Path) -> None:
    example = job_file.read_manifest(scenario.Options().file)
    placed = job_file.placed(example, tmp_path / "checkpoints", "other")
    assert placed["metadata"]["name"] == "other"
    assert placed["spec"]["checkpoint"]["uri"] == f"file://{tmp_path}/checkpoints"
    assert example["metadata"]["name"] == "quickstart"


def test_another_channel_takes_the_place_of_the_files(tmp_path: Path) -> None:
    example = job_file.read_manifest(job_file.EXAMPLE)
    assert job_file.over_channel(example, None) == example
    changed = job_file.over_channel(example, "ProcessGroup")
    assert read_spec(changed, tmp_path).transport.channel is Channel.PROCESS_GROUP
    assert "transport" not in example["spec"]
    assert job_file.over_channel({"spec": "none"}, "Tcp") == {"spec": "none"}


def test_another_grid_takes_the_place_of_the_files(tmp_path: Path) -> None:
    example = job_file.read_manifest(job_file.EXAMPLE)
    example["spec"]["pipelines"]["min"] = 2
    assert job_file.over_grid(example, None) == example
    spec = read_spec(job_file.over_grid(example, "1x3"), tmp_path)
    assert (spec.pipelines.count, spec.pipelines.stages, spec.pipelines.min) == (1, 3, 1)
    assert example["spec"]["pipelines"]["count"] == 2
    assert job_file.over_grid({"spec": "none"}, "1x1") == {"spec": "none"}
    odd = {"spec": {"pipelines": "many"}}
    assert job_file.over_grid(odd, "1x1")["spec"]["pipelines"] == {"count": 1, "stages": 1}


@pytest.mark.parametrize("grid", ["", "4", "0x1", "1x0", "2x4x1", "2x", "-1x2", "two by four"])
def test_what_is_no_grid(grid: str) -> None:
    with pytest.raises(CommandError, match="is no grid; give the pipelines and the stages"):
        job_file.over_grid(job_file.read_manifest(job_file.EXAMPLE), grid)


def test_another_channel_keeps_the_rest_of_the_transport() -> None:
    given = {"spec": {"transport": {"channel": "Tcp", "encryption": "Off"}}}
    changed = job_file.over_channel(given, "ProcessGroup")
    assert changed["spec"]["transport"] == {"channel": "ProcessGroup", "encryption": "Off"}
    assert given["spec"]["transport"]["channel"] == "Tcp"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipelines": {"count": 2, "stages": 1}}, "spec.pipelines 2 x 1 tolerates no loss.*2"),
        ({"checkpoint": None}, "spec.checkpoint is missing.*Set it, or give --no-losses"),
    ],
)
def test_a_job_that_cannot_show_that_losses_change_nothing(
    change: dict[str, Any], words: str
) -> None:
    path = job_file.EXAMPLE
    example = job_file.read_manifest(path)
    assert len(job_file.faults_for(read_spec(example, path))) == 3
    spec = read_spec(example | {"spec": example["spec"] | change}, path)
    with pytest.raises(CommandError, match=words):
        job_file.faults_for(spec)


@pytest.mark.parametrize(
    ("nodes", "zones", "refused"),
    [(3, 3, "--nodes 3 is too few.*--nodes 4 or more"), (12, 1, "--zones 1 is too few")],
)
def test_a_cluster_that_is_too_small_for_the_job(nodes: int, zones: int, refused: str) -> None:
    path = job_file.EXAMPLE
    example = read_spec(job_file.read_manifest(path), path)
    job_file.check_room(example, local_cluster.ClusterOptions(nodes=4, zones=2))
    with pytest.raises(CommandError, match=refused):
        job_file.check_room(example, local_cluster.ClusterOptions(nodes=nodes, zones=zones))
