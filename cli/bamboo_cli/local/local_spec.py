"""The spec of a job as one machine runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bamboo_cli.errors import CommandError
from bamboo_core.api.spec import CheckpointSpec, JobSpec, PipelinesSpec, SourceSpec, batch_shape


@dataclass(frozen=True)
class Changes:
    """What the command line changes; None: as the manifest says."""

    pipelines: int | None = None
    stages: int | None = None
    steps: int | None = None
    initial_from: str | None = None


def local_spec(spec: JobSpec, changes: Changes, folder: Path) -> JobSpec:
    """The job with this grid, checkpoints below the folder, and no resources: this machine has what
    it has. CommandError if the batch or the zones do not suffice for the grid."""
    grid = PipelinesSpec(
        count=changes.pipelines or spec.pipelines.count,
        stages=changes.stages or spec.pipelines.stages,
    )
    checkpoint = spec.checkpoint or CheckpointSpec(uri="")
    made = replace(
        spec,
        pipelines=grid,
        model=replace(spec.model, initial_from=changes.initial_from or spec.model.initial_from),
        training=replace(spec.training, steps=changes.steps or spec.training.steps),
        checkpoint=replace(
            checkpoint, uri=(folder / "checkpoints").as_uri(), from_=_source(checkpoint)
        ),
        worker=replace(spec.worker, resources={}),
        suspend=False,
        restore=None,
    )
    _check(made)
    return made


def _source(checkpoint: CheckpointSpec) -> SourceSpec | None:
    """The checkpoint with which the job begins, where it would look for it in a cluster."""
    source = checkpoint.from_
    return source and replace(source, uri=source.address(checkpoint.uri), job=None)


def _check(spec: JobSpec) -> None:
    grid, zones = spec.pipelines, spec.placement.named_zones
    try:
        batch_shape(spec)
    except ValueError as error:
        raise CommandError(
            f"--pipelines {grid.count}: {error}; give fewer, or a larger"
            " spec.training.globalBatchSize."
        ) from error
    if zones and len(zones) < spec.least_zones:
        raise CommandError(
            f"--stages {grid.stages} needs {spec.least_zones} zones, since ring neighbours never"
            f" share one, and spec.placement names {len(zones)}."
        )


def variables(spec: JobSpec) -> dict[str, str]:
    """spec.worker.env, without what only a cluster knows (valueFrom)."""
    return {
        str(entry["name"]): str(entry.get("value", ""))
        for entry in spec.worker.env
        if "valueFrom" not in entry
    }
