"""The `bamboo` command, also `kubectl bamboo`."""

from __future__ import annotations

import sys
from importlib import import_module
from keyword import iskeyword

import click

from bamboo_cli.errors import CommandError
from bamboo_devcluster.errors import DevclusterError

COMMANDS = {
    "explain": "Say why a job is not running, and what the loss of each zone would do to it now.",
    "export": "Write the weights of a checkpoint, whatever its grid, into one file or folder.",
    "import": "Make the first weights of a job from files of weights, checked against its layers.",
    "init": "Write a project into the new FOLDER: model, data, job.yaml, Dockerfile, and a test.",
    "logs": "Show the agents' logs by time, each line with its agent, and the agent's step and"
    " loss.",
    "plan": "Show a job's grid, cut, memory and schedule, what one loss would cost in each way to"
    " share the work, and what each mode of redundancy would cost.",
    "preempt": "Take agents of a job away, as a preemption would, and say what happened.",
    "profile": "Measure what each layer of a job costs on this machine, for `bamboo plan"
    " --profile`.",
    "quickstart": "Train a small GPT on a real Kubernetes control plane on this machine.",
    "report": "Report what a job did and cost: fleet, losses, pauses, progress, throughput, money.",
    "restore": "Let a job go on from an older checkpoint, or from the start.",
    "sim": "Simulate spot nodes: what training costs on them.",
    "status": "Show a BambooJob: progress, grid, zones, conditions, checkpoint.",
    "top": "Show jobs, or the agents of JOB: progress, speed, loss, zones, pauses, preemptions.",
    "train": "Train a job on this machine: real agents, the planner of a cluster, and no cluster.",
    "version": "Print the version.",
}
"""Command -> the first sentence of its help. Its module is imported when it runs: the list of
commands needs none of them."""


_FOLDERS = dict.fromkeys(("export", "import", "init", "train"), "models.") | {"sim": "market."}


def module_of(command: str) -> str:
    """The path of a command's module; its last part is the name of the function there, too."""
    name = f"{command}_" if iskeyword(command) else command
    return f"bamboo_cli.commands.{_FOLDERS.get(command, '')}{name}"


class Commands(click.Group):
    """The commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(module_of(cmd_name))
        command: click.Command = getattr(module, module.__name__.rpartition(".")[2])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        named = [click.Command(name, help=text) for name, text in COMMANDS.items()]
        click.Group(commands=named).format_commands(ctx, formatter)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Train large models on spot GPUs, and lose no work when nodes are preempted."""


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
