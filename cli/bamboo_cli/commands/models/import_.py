"""`bamboo import`: from files of weights to the first weights of a job."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import")
@click.argument("source", metavar="PATH|URI")
@click.option(
    "--job",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML file with the BambooJob that begins with them.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder.")
@click.option(
    "--ignore",
    "ignored",
    metavar="PATTERN",
    multiple=True,
    help="Tensors to leave out, such as 'lm_head.*'. May be given several times.",
)
@click.option("--cast", "casts", is_flag=True, help="Convert to the dtypes of the layers.")
@click.option("--force", is_flag=True, help="Replace what is there.")
def import_(
    *, source: str, file: Path, out: Path, ignored: tuple[str, ...], casts: bool, force: bool
) -> None:
    """Make the first weights of a job from files of weights, checked against its layers.

    PATH is a safetensors file, a file of torch.save with a state dict, or a folder of a library
    with one of them, whole or in parts. Each tensor that is missing, unexpected, or of another
    shape or dtype is named with its layer; then nothing is written. The job's factory is imported
    from the current folder and from PYTHONPATH. Put the folder where all agents can read it, and
    its address into spec.model.initialFrom.

    \b
    Examples:
      bamboo import ./gpt2 --job job.yaml --out /data/first --ignore '*.attn.bias'
    """
    from bamboo_cli.estimate.manifest import read_manifest
    from bamboo_cli.local.weights import move
    from bamboo_cli.views.terminal.console import make_console
    from bamboo_cli.views.terminal.weights import WeightsView

    _, spec = read_manifest(file)
    given = source if "://" in source else str(Path(source).resolve())
    arguments = ["--source", given, "--out", str(out)]
    for pattern in ignored:
        arguments += ["--ignore", pattern]
    arguments += [*(["--cast"] if casts else []), *(["--force"] if force else [])]
    console = make_console()
    with WeightsView(console) as view:
        written = move("import", arguments, spec, view.moved)
    view.written(written)
    console.print(f"spec.model.initialFrom: {out.resolve()}", soft_wrap=True)
