"""`bamboo restore`: lets a job go back to an older checkpoint."""

from __future__ import annotations

import uuid
from typing import Any

import click
from rich.console import Console

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.errors import CommandError, ConflictError
from bamboo_cli.job.state import Job, Manifest, read_job
from bamboo_cli.views.terminal.console import make_console
from bamboo_core.model.counts import counted

START = "start"


def step_of(text: str) -> int:
    """The step that --from-step names; 0: the start. CommandError."""
    if text == START:
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise CommandError(
            f'--from-step "{text}": give the step of a checkpoint, such as 400, or {START}.'
        )
    return int(text)


def check(manifest: Manifest, step: int) -> str:
    """A sentence about the consequences. CommandError if there is no such checkpoint."""
    from bamboo_cli.job.what_if import facts  # the planner takes long to import
    from bamboo_core.arbiter_state.durable import eligible, with_newer

    job, durable = read_job(manifest), facts(manifest)
    if job.ended is not None:
        raise CommandError(f"the job is {job.ended}, which is final; create a new BambooJob.")
    done = max(job.step, durable.committed + 1)
    good = eligible(with_newer(durable, durable.committed))
    steps = sorted({m.step for m in good})
    if step and step not in steps:
        raise CommandError(
            f"--from-step {step}: there is no checkpoint of that step that can be used;"
            f" {_choices(steps)}."
        )
    source = f"the checkpoint of step {step}" if step else "the start"
    newer = [str(each) for each in steps if each > step]
    text = f"{job.name} goes on from {source}: {_repeated(job, max(0, done - step))}"
    if newer:
        text += f", and newer checkpoints are not used any more: {', '.join(newer)}"
    return f"{text}."


def _choices(steps: list[int]) -> str:
    if not steps:
        return f"the job has none yet, so only {START} is possible"
    return f"there are {', '.join(map(str, steps))}, and {START}"


def _repeated(job: Job, count: int) -> str:
    return f"{counted(count, 'step')} of {job.steps} {'is' if count == 1 else 'are'} computed again"


def order(place: Place, manifest: Manifest, step: int, console: Console) -> None:
    """Write the order into the job's spec. CommandError if the job is another one now."""
    name, uid = manifest["metadata"]["name"], manifest["metadata"]["uid"]
    changes = {
        "metadata": {"uid": uid},
        "spec": {"restore": {"id": uuid.uuid4().hex[:12], "fromStep": step}},
    }
    try:
        place.kube.patch_job(place.namespace, name, changes)
    except ConflictError as error:
        raise CommandError(
            f"{name} has been deleted and created again meanwhile, so nothing is changed; look at"
            f" `bamboo status {name}` and try again."
        ) from error
    text = f"Ordered. `bamboo status {name}` shows when training goes on."
    if (manifest.get("spec") or {}).get("suspend"):
        text = "Ordered. The job is suspended; the order counts when it is resumed."
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@click.command()
@click.argument("job")
@click.option(
    "--from-step",
    "step",
    required=True,
    metavar=f"N|{START}",
    help="Step of a complete checkpoint, or `start`.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@cluster_options
def restore(job: str, step: str, yes: bool, **where: Any) -> None:
    """Let a job go on from an older checkpoint, or from the start.

    A job waits while its newest checkpoint cannot be read (condition Stalled, reason
    CheckpointUnreachable), and goes on by itself when it can. If the files are gone for good, this
    command lets it go on from an older checkpoint. Later steps are computed again, and newer
    checkpoints are not used any more. It writes spec.restore of the job.

    \b
    Examples:
      bamboo restore my-model --from-step 400
      bamboo restore my-model --from-step start --yes
    """
    number, place, console = step_of(step), Place(**where), make_console()
    manifest = place.kube.job(place.namespace, job)
    console.print(check(manifest, number), markup=False, highlight=False, soft_wrap=True)
    if not yes:
        try:
            is_sure = click.confirm("Go back to it?")
        except click.Abort as error:
            raise CommandError(
                "no answer, so nothing is changed; give --yes where nobody can answer."
            ) from error
        if not is_sure:
            raise click.Abort
    order(place, manifest, number, console)
