"""`bamboo export`: from a checkpoint of any grid to one set of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bamboo_cli.commands.options import cluster_options
from bamboo_core.api.local_run import WEIGHT_DTYPES, WeightsFormat

if TYPE_CHECKING:
    from bamboo_cli.local.weights import Source


@click.command()
@click.argument("source", metavar="JOB|FOLDER|URI")
@click.option(
    "--format",
    "kind",
    type=click.Choice([str(x) for x in WeightsFormat]),
    default="safetensors",
    show_default=True,
    help="What to write. huggingface writes a folder.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New file or folder.")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="YAML file with the BambooJob, for huggingface.  [default: of JOB or FOLDER]",
)
@click.option("--step", type=click.IntRange(min=0), help="[default: the newest checkpoint]")
@click.option("--attempt", type=click.IntRange(min=0), help="[default: the newest with the step]")
@click.option("--best", is_flag=True, help="The best checkpoint, by spec.checkpoint.best.")
@click.option("--dtype", type=click.Choice(WEIGHT_DTYPES), help="[default: as stored]")
@click.option("--force", is_flag=True, help="Replace what is there.")
@cluster_options
def export(
    *,
    source: str,
    kind: str,
    out: Path,
    file: Path | None,
    dtype: str | None,
    force: bool,
    **more: Any,
) -> None:
    """Write the weights of a checkpoint, whatever its grid, into one file or folder.

    JOB is a BambooJob of the cluster, FOLDER a run of `bamboo train --local` or a folder with
    checkpoints, URI the address of one. Tensors have the names that layers give them, or begin with
    `layers.I.` if two layers share a name. A Hugging Face folder has the model's own names and
    config, so its factory is imported from the current folder and from PYTHONPATH.

    \b
    Examples:
      bamboo export bamboo-runs/my-training-20260101-120000 --out weights.safetensors
      bamboo export my-model --format huggingface --out my-model --dtype bfloat16
    """
    from bamboo_cli.estimate.manifest import read_manifest
    from bamboo_cli.local.weights import move
    from bamboo_cli.views.terminal.console import make_console
    from bamboo_cli.views.terminal.weights import WeightsView

    step, attempt = more.pop("step"), more.pop("attempt")
    is_best = more.pop("best")
    if is_best and (step is not None or attempt is not None):
        raise click.UsageError("--best names a checkpoint: leave --step and --attempt out.")
    found = _source(source, more)
    if is_best or step is not None or attempt is not None:
        found = replace(found, step=step, attempt=attempt)
    spec = found.spec if file is None else read_manifest(file)[1]
    arguments = ["--source", found.address, "--out", str(out), "--format", kind]
    for name, value in (("dtype", dtype), ("step", found.step), ("attempt", found.attempt)):
        arguments += [] if value is None else [f"--{name}", str(value)]
    arguments += ["--best"] if is_best else []
    with WeightsView(make_console()) as view:
        written = move("export", [*arguments, *(["--force"] if force else [])], spec, view.moved)
    view.written(written)


def _source(source: str, where: dict[str, Any]) -> Source:
    from bamboo_cli.cluster.place import Place
    from bamboo_cli.errors import ClusterError
    from bamboo_cli.local import weights

    if "://" in source:
        return weights.Source(source)
    if "/" in source or Path(source).exists():
        return weights.of_path(Path(source))
    try:
        place = Place(**where)
        job = place.kube.job(place.namespace, source)
    except ClusterError as error:
        raise type(error)(f"There is no folder {source} here. As a job: {error}") from error
    return weights.of_job(job)
