"""`bamboo restore`: lets a job go back to an older checkpoint."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from bamboo_cli.cluster.place import Place
from bamboo_cli.commands.options import cluster_options
from bamboo_cli.errors import CommandError, ConflictError
from bamboo_cli.job.state import Job, Manifest, obstacle, read_job
from bamboo_cli.views.terminal.console import make_console
from bamboo_core.model.counts import counted

START = "start"
_STEP = re.compile("[0-9]{1,10}")
_SHOWN = 40
_POLL_S = 0.7


def step_of(text: str) -> int:
    """The step that --from-step names; 0: the start. CommandError."""
    if text == START:
        return 0
    if not _STEP.fullmatch(text) or int(text) == 0:
        given = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise CommandError(
            f'--from-step "{given}": give the step of a checkpoint, such as 400, or {START}.'
        )
    return int(text)


def check(manifest: Manifest, step: int) -> str:
    """Sentences about the consequences. CommandError if there is no such checkpoint."""
    from bamboo_cli.job.what_if import facts  # the planner takes long to import
    from bamboo_core.arbiter_state.durable import eligible, orderable, with_newer

    job, durable = read_job(manifest), facts(manifest)
    if job.ended is not None:
        raise CommandError(f"the job is {job.ended}, which is final; create a new BambooJob.")
    done = max(job.step, durable.committed + 1)
    good = sorted({m.step for m in eligible(with_newer(durable, durable.committed))})
    known = {m.step for m in orderable(durable, durable.committed)}
    if step and step not in known:
        raise CommandError(
            f"--from-step {step}: there is no checkpoint of that step that can be used;"
            f" {_choices(good, sorted(known.difference(good)))}."
        )
    source = f"the checkpoint of step {step}" if step else "the start"
    newer = [str(each) for each in good if each > step]
    text = f"{job.name} goes on from {source}: {_repeated(job, max(0, done - step))}"
    if newer:
        text += f", and newer checkpoints are not used any more: {', '.join(newer)}"
    if step and step not in good:
        text += ". It is marked as wrong; agents read it again, and the mark comes back if it is"
    return f"{text}."


def _choices(good: list[int], wrong: list[int]) -> str:
    steps = [*map(str, good), *(f"{step} (marked as wrong)" for step in wrong)]
    if not steps:
        return f"the job has none yet, so only {START} is possible"
    return f"there are {', '.join(steps)}, and {START}"


def _repeated(job: Job, count: int) -> str:
    return f"{counted(count, 'step')} of {job.steps} {'is' if count == 1 else 'are'} computed again"


@dataclass
class Order:
    """One order of the user. ``now`` is monotonic, in seconds."""

    place: Place
    manifest: Manifest  # of the job, before
    step: int
    console: Console
    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep

    @property
    def name(self) -> str:
        """The job is called so."""
        return str(self.manifest["metadata"]["name"])

    def give(self, *, timeout_s: float) -> None:
        """Write the order into the job's spec, and wait until the operator has answered.
        CommandError if the job is another one now, or the operator refuses or does not answer."""
        order = uuid.uuid4().hex[:12]
        changes = {
            "metadata": {"uid": self.manifest["metadata"]["uid"]},
            "spec": {"restore": {"id": order, "fromStep": self.step}},
        }
        try:
            self.place.kube.patch_job(self.place.namespace, self.name, changes)
        except ConflictError as error:
            raise CommandError(
                f"{self._replaced()}, so nothing is changed; look at `bamboo status {self.name}`"
                " and try again."
            ) from error
        if (self.manifest.get("spec") or {}).get("suspend"):
            self._say("Ordered. The job is suspended; the order counts when it is resumed.")
        else:
            self._wait(order, timeout_s)

    def _wait(self, order: str, timeout_s: float) -> None:
        deadline = self.now() + timeout_s
        while True:
            manifest = self.place.kube.job(self.place.namespace, self.name)
            if manifest["metadata"]["uid"] != self.manifest["metadata"]["uid"]:
                raise CommandError(f"{self._replaced()}; look at `bamboo status {self.name}`.")
            if self._is_answered(manifest, order):
                return
            job = read_job(manifest)
            if job.ended is not None:
                raise CommandError(f"the job is {job.ended} meanwhile, so nothing is restored.")
            if self.now() > deadline:
                raise CommandError(
                    f"the order is written, but the operator has not answered in {timeout_s:g}"
                    f" s{obstacle(job)}; it counts once an operator leads the job:"
                    f" `bamboo explain {self.name}` says more."
                )
            self.pause(_POLL_S)

    def _is_answered(self, manifest: Manifest, order: str) -> bool:
        from bamboo_cli.job.what_if import facts
        from bamboo_core.model.ids import Fence

        durable = facts(manifest)
        answer = next((each for each in durable.restored if each.id == order), None)
        if answer is None:
            return False
        if answer.attempt:
            source = f"the checkpoint of step {self.step}" if self.step else "the start"
            self._say(
                f"Attempt {answer.attempt} begins from {source}. `bamboo status {self.name}` shows"
                " when training goes on."
            )
        elif durable.plan == Fence():
            self._say("The job has computed nothing yet, so nothing changes.")
        else:
            check(manifest, self.step)  # as a rule it says why
            raise CommandError(
                "the operator refuses the order: the checkpoint could not be used when it came;"
                " try again."
            )
        return True

    def _replaced(self) -> str:
        return f"{self.name} has been deleted and created again meanwhile"

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


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
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    help="Seconds to wait until the operator answers.",
)
@cluster_options
def restore(job: str, step: str, yes: bool, timeout_s: float, **where: Any) -> None:
    """Let a job go on from an older checkpoint, or from the start.

    A job waits while its newest checkpoint cannot be read (condition Stalled, reason
    CheckpointUnreachable), and goes on by itself when it can. If the files are gone for good, this
    command lets it go on from an older checkpoint. Later steps are computed again, and newer
    checkpoints are not used any more. It writes spec.restore of the job, and waits until the
    operator has obeyed or refused.

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
    Order(place, manifest, number, console).give(timeout_s=timeout_s)
