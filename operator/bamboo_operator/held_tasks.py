"""What the plans of all jobs together may hold, in tasks of a step: see core/api/limits.

A job has its share from its start until its end, also while it is suspended: the operator keeps the
programs of its newest plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bamboo_core.controller.view import JobView


@dataclass(frozen=True)
class TaskLimits:
    """Tasks of all jobs together, and of those of one namespace. Each takes about 0.3 KB."""

    all_jobs: int = 786_432
    namespace: int = 393_216


class HeldTasks:
    """The shares, by the job's UID."""

    def __init__(self, most: TaskLimits) -> None:
        self._most = most
        self._of: dict[str, tuple[str, int]] = {}  # the namespace, and tasks

    def hold(self, job: JobView, tasks: int, *, is_started: bool = False) -> str:
        """Give the job so many if it has fewer. If there is no room: what is wrong, and the remedy.

        is_started: an earlier operator has given them, so they count in any case.
        """
        own = self._of.get(job.uid, ("", 0))[1]
        if tasks <= own:
            return ""
        here = self._sum(lambda namespace: namespace == job.namespace) - own + tasks
        of_all = self._sum(lambda namespace: True) - own + tasks
        if not is_started:
            if here > self._most.namespace:
                whose = f"the jobs of namespace {job.namespace}"
                return _refusal(tasks, whose, here, self._most.namespace, "mostOfNamespace")
            if of_all > self._most.all_jobs:
                return _refusal(tasks, "all jobs", of_all, self._most.all_jobs, "most")
        self._of[job.uid] = (job.namespace, tasks)
        return ""

    def release(self, uid: str) -> None:
        """The operator does not lead the job any more."""
        self._of.pop(uid, None)

    def _sum(self, counts: Callable[[str], bool]) -> int:
        return sum(tasks for namespace, tasks in self._of.values() if counts(namespace))


def _refusal(tasks: int, whose: str, sum_: int, most: int, value: str) -> str:
    other = "use another namespace, " if value == "mostOfNamespace" else ""
    return (
        f"a step has {tasks} tasks; {whose} would have {sum_} together, and the operator holds at"
        f" most {most} (the chart's value tasks.{value}): use fewer micro-batches or pipelines,"
        f" wait until another job ends, {other}or have the operator's memory and the value raised"
    )
