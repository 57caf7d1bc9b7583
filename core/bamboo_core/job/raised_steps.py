"""Which of the numbers in ``spec.training.steps`` holds now: users may raise it at any time.

The number is fixed from the first reconcile with pods on, so that all agents of a run end at the
same step. A greater one holds once nothing of the run is left: the job is complete or suspended,
or has not begun, and it has no pods. Then it goes on from its last checkpoint, with new agents.

Two facts fix the number, each by its writer: ``status.progress.steps``, written before pods are
made, and the arbiter's durable facts. Both only grow, and the greater one counts, so whoever leads
next finds it whatever was written last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import FactorySpec, JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.controller.view import Memory, PodView

_ENDING_SCHEDULES = ("bamboo_agent.schedules:linear", "bamboo_agent.schedules:cosine")
_FIELD = "spec.training.steps"


@dataclass(frozen=True)
class Raised:
    """steps: at which training ends now. next: at which it ends once the job has come to rest; 0:
    at the same. refused: why the number that the user asks for is not taken; empty: it is."""

    steps: int
    next: int = 0
    refused: str = ""
    begins: bool = False  # the job was complete, and goes on from here


def decide(
    spec: JobSpec,
    durable: Durable,
    memory: Memory,
    pods: Iterable[PodView],
    *,
    shown: int,
    is_accepted: bool = True,
) -> Raised:
    """Decide about the user's number. shown: ``status.progress.steps``; 0: there is none.
    is_accepted: nothing else in the spec is refused.

    An earlier version has written no number into the facts; then the status alone has it.
    """
    asked, held = spec.training.steps, max(shown, durable.steps)
    is_done, has_begun = durable.outcome is Outcome.COMPLETE, durable.batch is not None
    is_complete = memory.terminal is Outcome.COMPLETE
    if is_complete and not is_done and shown < durable.steps:
        return Raised(held, begins=True)  # the arbiter's facts were written, the status was not
    if not held or asked == held:
        return Raised(asked)
    if not is_accepted:
        return Raised(held)
    if asked < held:
        text = f"{_FIELD} {asked} is less than {held}, with which the job has begun: set {held}"
        return Raised(held, refused=f"{text} or more")
    if has_begun and (why := _obstacle(spec, memory, held)):
        return Raised(held, refused=f"{_FIELD} {asked} is not taken, {held} holds: {why}")
    is_in_use = any(is_done or not pod.has_ended for pod in pods)
    is_over = is_done or durable.outcome is Outcome.SUSPENDED
    if is_in_use or (has_begun and not is_over):
        return Raised(held, next=asked)
    return Raised(asked, begins=is_complete)


def renewed(memory: Memory) -> Memory:
    """The memory of a complete job that goes on. Its counters go on, too."""
    return replace(
        memory, terminal=None, finished_at=None, reason="", message="", trained=False, awaited={}
    )


def held(spec: JobSpec, steps: int) -> JobSpec:
    """The spec with this number of steps."""
    return replace(spec, training=replace(spec.training, steps=steps))


def _obstacle(spec: JobSpec, memory: Memory, held: int) -> str:
    """Why a job cannot go on after so many steps; empty: it can."""
    if memory.terminal is Outcome.FAILED:
        return "the job has failed: create a new BambooJob"
    if spec.checkpoint is None:
        return "without spec.checkpoint nothing is left to go on from: create a new BambooJob"
    schedule = spec.training.optimizer.schedule
    if schedule is not None and (end := _end_of(schedule)) and end <= held:
        return (
            f"spec.training.optimizer.schedule {schedule.factory} makes all rates 0 from"
            f" args.total_steps {end} on, so no later step would change a weight: create a new"
            " BambooJob with a longer schedule"
        )
    return ""


def _end_of(schedule: FactorySpec) -> int:
    """From which step on a schedule of ours is 0; 0: from none, or it is the user's own."""
    total, final = schedule.args.get("total_steps"), schedule.args.get("final", 0.0)
    if schedule.factory not in _ENDING_SCHEDULES or final != 0 or not isinstance(total, int):
        return 0
    return total
