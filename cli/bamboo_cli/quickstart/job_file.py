"""The job that the quick start runs: from its file, checked, and placed on the local cluster."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.cluster.kube import GROUP, VERSION
from bamboo_cli.errors import CommandError
from bamboo_cli.quickstart.injection import schedule
from bamboo_cli.quickstart.local_cluster import CHECKOUT, ClusterOptions
from bamboo_cli.run.faults import ScheduledFault
from bamboo_core.api.spec import Adjacency, JobSpec

EXAMPLE = CHECKOUT / "examples/quickstart.yaml"
Manifest = dict[str, Any]


def faults_for(spec: JobSpec) -> tuple[ScheduledFault, ...]:
    """The faults to inject. CommandError if the job cannot show that they change nothing."""
    count, stages = spec.pipelines.count, spec.pipelines.stages
    faults = schedule(pipelines=count, stages=stages)
    if not faults:
        raise CommandError(
            f"spec.pipelines {count} x {stages} tolerates no loss; choose 2 stages or more, or give"
            " --no-losses."
        )
    if spec.checkpoint is None:
        raise CommandError(
            "spec.checkpoint is missing; the last checkpoint is needed to compare the final states."
            " Set it, or give --no-losses."
        )
    return faults


def read_manifest(path: Path) -> Manifest:
    """The BambooJob in a file. CommandError if the file does not contain exactly one."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = json.loads(json.dumps(found, default=str))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise CommandError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or found.get("kind") != "BambooJob":
        raise CommandError(f"{path} contains no BambooJob; give a file with exactly one.")
    if found.get("apiVersion") != f"{GROUP}/{VERSION}":
        problem = f"apiVersion is {found.get('apiVersion')!r}; it must be {GROUP}/{VERSION}."
        raise CommandError(f"{path}: {problem}")
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not (name and isinstance(name, str)):
        raise CommandError(f"{path}: metadata.name is required; set it.")
    return found


def over_channel(manifest: Manifest, channel: str | None) -> Manifest:
    """The job with another channel; None: as it is."""
    spec = manifest.get("spec")
    if channel is None or not isinstance(spec, dict):
        return manifest
    given = spec.get("transport")
    transport = (given if isinstance(given, dict) else {}) | {"channel": channel}
    return manifest | {"spec": spec | {"transport": transport}}


def over_grid(manifest: Manifest, grid: str | None) -> Manifest:
    """The job on another grid, such as ``1x4``: one pipeline of four stages; None: as it is.

    CommandError if the grid cannot be read.
    """
    spec = manifest.get("spec")
    if grid is None or not isinstance(spec, dict):
        return manifest
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", grid)
    if found is None:
        raise CommandError(
            f"--grid {grid} is no grid; give the pipelines and the stages of each, such as 2x4."
        )
    count, stages = map(int, found.groups())
    given = spec.get("pipelines")
    pipelines = dict(given) if isinstance(given, dict) else {}
    pipelines.pop("min", None)  # of another number of pipelines
    return manifest | {"spec": spec | {"pipelines": pipelines | {"count": count, "stages": stages}}}


def check_room(spec: JobSpec, local: ClusterOptions) -> None:
    """CommandError if the job cannot start on these nodes, which have one GPU each."""
    stages = spec.pipelines.stages
    least = spec.pipelines.min * stages
    if "nvidia.com/gpu" in spec.worker.asks and local.nodes < least:
        raise CommandError(
            f"--nodes {local.nodes} is too few: the job needs at least {least} agents, one on each"
            f" node; give --nodes {least} or more."
        )
    is_spread = spec.placement.adjacency is Adjacency.ALTERNATE
    if is_spread and stages > 1 and min(local.zones, local.nodes) < 2:
        raise CommandError(
            "--zones 1 is too few: neighbouring stages must be in different zones; give --zones 2"
            " or more, or set spec.placement.adjacency to Cluster."
        )


def placed(manifest: Manifest, checkpoints: Path, name: str | None = None) -> Manifest:
    """The job with its checkpoints in a folder, and renamed if a name is given."""
    found = copy.deepcopy(manifest)
    found["metadata"]["name"] = name or manifest["metadata"]["name"]
    if found["spec"].get("checkpoint") is None:
        found["spec"].pop("checkpoint", None)  # the API server rejects null
    else:
        found["spec"]["checkpoint"]["uri"] = f"file://{checkpoints}"
    return found
