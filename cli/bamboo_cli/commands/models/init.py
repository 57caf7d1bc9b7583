"""`bamboo init`: a new project that trains."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a project into the new FOLDER: model, data, job.yaml, Dockerfile, and a test.

    It trains at once: see its README.md. The job has the folder's name.
    """
    from bamboo_cli.local.new_project import write_project

    for path in write_project(folder):
        click.echo(folder / path)
    click.echo(f"\ncd {folder} && bamboo train -f job.yaml --local --check")
