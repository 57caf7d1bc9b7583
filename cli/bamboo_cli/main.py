"""The `bamboo` command, also `kubectl bamboo`."""

from __future__ import annotations

import sys

import click

from bamboo_cli.commands.explain import explain
from bamboo_cli.commands.logs import logs
from bamboo_cli.commands.plan import plan
from bamboo_cli.commands.preempt import preempt
from bamboo_cli.commands.profile import profile
from bamboo_cli.commands.quickstart import quickstart
from bamboo_cli.commands.report import report
from bamboo_cli.commands.status import status
from bamboo_cli.commands.top import top
from bamboo_cli.commands.version import version
from bamboo_cli.errors import CommandError
from bamboo_devcluster.errors import DevclusterError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Train large models on spot GPUs, and lose no work when nodes are preempted."""


for each in (explain, logs, plan, preempt, profile, quickstart, report, status, top, version):
    cli.add_command(each)


def main() -> None:
    """Run the command. Errors of the user print one sentence and exit with 1."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (CommandError, DevclusterError) as error:
        click.echo(f"bamboo: {error}", err=True)
        sys.exit(1)
