"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

manifest_option = click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML file with the BambooJob.",
)


def cluster_options(command: Command) -> Command:
    """Adds the options that say where the job is."""
    for add in (
        click.option("--context", help="Context in the kubeconfig.  [default: the current one]"),
        click.option(
            "--kubeconfig", type=click.Path(path_type=Path), help="[default: $KUBECONFIG]"
        ),
        click.option("-n", "--namespace", help="Namespace.  [default: the context's]"),
    ):
        command = add(command)
    return command
