"""`bamboo profile`: measures a job's layers on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from bamboo_cli.commands.options import manifest_option
from bamboo_core.model.counts import counted


@click.command()
@manifest_option
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("profile.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    help="Seconds after which measuring is given up.",
)
def profile(file: Path, out: Path, timeout_s: float) -> None:
    """Measure what each layer of a job costs on this machine, for `bamboo plan --profile`."""
    from bamboo_cli.estimate.manifest import read_manifest
    from bamboo_cli.estimate.profile import measure

    name, spec = read_manifest(file)
    found = measure(spec, out, timeout_s=timeout_s)
    forward_s = sum(x.forward_s for x in found.layers)
    click.echo(
        f"{name}: {counted(len(found.layers), 'layer')} on {found.device}, {forward_s:.4g} s for"
        f" the forward of a micro-batch -> {out}"
    )
