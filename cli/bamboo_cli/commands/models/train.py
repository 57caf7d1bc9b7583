"""`bamboo train --local`: trains a job on this machine, without a cluster."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import click

from bamboo_cli.commands.options import manifest_option
from bamboo_cli.errors import CommandError
from bamboo_cli.views.terminal.console import make_console


@click.command()
@manifest_option
@click.option("--local", "is_local", is_flag=True, help="On this machine, without a cluster.")
@click.option("--pipelines", type=click.IntRange(min=1), help="[default: the job's]")
@click.option("--stages", type=click.IntRange(min=1), help="[default: the job's]")
@click.option("--steps", type=click.IntRange(min=1), help="[default: the job's]")
@click.option(
    "--initial-from",
    help="File, folder or address with the first weights.  [default: spec.model.initialFrom]",
)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Compare with a plain loop of the same layers, bit for bit.",
)
@click.option(
    "--kill",
    "kills",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Agents to take away while it trains; others replace them.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder for logs and checkpoints.  [default: bamboo-runs/NAME-TIME]",
)
def train(
    *,
    file: Path,
    is_local: bool,
    out: Path | None,
    checks: bool,
    kills: int,
    initial_from: str | None,
    **grid: Any,
) -> None:
    """Train a job on this machine: real agents, the planner of a cluster, and no cluster.

    The weights are those that a cluster would give, bit for bit, on any grid: try --pipelines 1
    --stages 1. Factories are imported from the current folder and from PYTHONPATH. Ctrl-C ends the
    run with a checkpoint.
    """
    from bamboo_cli.estimate.manifest import read_manifest
    from bamboo_cli.estimate.profile import remedy_of_name
    from bamboo_cli.local.local_spec import Changes, local_spec
    from bamboo_cli.local.program import Program
    from bamboo_cli.local.weights import JOB_FILE
    from bamboo_cli.views.terminal.local_run import LocalRunView
    from bamboo_core.api import local_run
    from bamboo_core.api.outcome import Outcome
    from bamboo_core.api.spec import to_json

    if not is_local:
        raise CommandError(
            f"give --local to train on this machine; on a cluster, use kubectl apply -f {file}."
        )
    name, given = read_manifest(file)
    folder = _new_folder(out or _unused(name))
    first = None if initial_from is None else _absolute(initial_from)
    spec = local_spec(given, Changes(**grid, initial_from=first), folder)
    (folder / JOB_FILE).write_text(to_json(spec), encoding="utf-8")
    program = Program(f"local/{name}", spec, folder, kills=kills, checks=checks)
    view = LocalRunView(
        make_console(), steps=spec.training.steps, batch=spec.training.global_batch_size
    )
    failed = ""
    with view:
        for told in program.told():
            view.show(told)
            if isinstance(told, local_run.Ended) and told.outcome is Outcome.FAILED:
                failed = told.message + remedy_of_name(told.message, spec)
    if failed:
        raise CommandError(failed if failed.endswith(".") else f"{failed}.")
    sys.exit(program.code)


def _absolute(initial_from: str) -> str:
    """An address as it is, and a path from the root."""
    return initial_from if "://" in initial_from else str(Path(initial_from).resolve())


def _unused(name: str) -> Path:
    """A folder that does not exist, also for several runs in one second."""
    first = Path("bamboo-runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (first.with_name(f"{first.name}-{n}") for n in itertools.count(2))
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())


def _new_folder(folder: Path) -> Path:
    """Made now. CommandError if something is there, or it cannot be made."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise CommandError(f"--out {folder} exists; give a new folder.") from error
    except OSError as error:
        raise CommandError(f"--out {folder} cannot be made: {error.strerror}.") from error
    return folder.resolve()
