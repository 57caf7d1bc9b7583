"""What the plans of all jobs together may hold, in tasks of a step: see core/api/limits.

A job has its share from its start until its end, or until it is suspended and its agents are gone:
for so long the operator keeps the programs of its newest plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bamboo_core.controller.view import JobView


@dataclass(frozen=True)
class TaskLimits:
    """Tasks of all jobs together, and of those of one namespace. Each takes about 0.3 KB."""

    all_jobs: int = 786_432
    namespace: int = 393_216

    @property
    def floor(self) -> int:
        """Tasks that a namespace may have even if those of others have taken all."""
        return self.namespace // 32


class HeldTasks:
    """The shares, by the job's UID."""

    def __init__(self, most: TaskLimits) -> None:
        self._most = most
        self._of: dict[str, tuple[str, int]] = {}  # the namespace, and tasks
        self._taken_over: set[str] = set()  # without a plan of ours yet

    def hold(self, job: JobView, tasks: int, *, is_started: bool = False) -> str:
        """Give the job so many if it has fewer. If there is no room: what is wrong, and the remedy.

        is_started: an earlier operator has given them, so they count in any case.
        """
        if is_started:
            self._taken_over.add(job.uid)
        own = self.of(job.uid)
        if tasks <= own:
            return ""
        here = self._sum(lambda namespace: namespace == job.namespace) - own + tasks
        of_all = self._sum(lambda namespace: True) - own + tasks
        if not is_started:
            if here > self._most.namespace:
                whose = f"the jobs of namespace {job.namespace}"
                return _refusal(tasks, whose, here, self._most.namespace, "mostOfNamespace")
            if of_all > self._most.all_jobs and here > self._most.floor:
                return _refusal(tasks, "all jobs", of_all, self._most.all_jobs, "most")
        self._of[job.uid] = (job.namespace, tasks)
        return ""

    def plan(self, job: JobView, tasks: int) -> str:
        """The same for a plan, whose validation agents tell of. An earlier operator has counted it,
        so the first plan of a job that it has led counts in any case."""
        why = self.hold(job, tasks, is_started=job.uid in self._taken_over)
        self._taken_over.discard(job.uid)
        return why

    def keep(self, uids: Collection[str]) -> None:
        """These jobs are there. Others that an earlier operator has led are gone unseen."""
        for uid in self._taken_over.difference(uids):
            self.release(uid)

    def of(self, uid: str) -> int:
        """The job's share."""
        return self._of.get(uid, ("", 0))[1]

    def release(self, uid: str) -> None:
        """The operator does not lead the job any more."""
        self._of.pop(uid, None)
        self._taken_over.discard(uid)

    def _sum(self, counts: Callable[[str], bool]) -> int:
        return sum(tasks for namespace, tasks in self._of.values() if counts(namespace))


def _refusal(tasks: int, whose: str, sum_: int, most: int, value: str) -> str:
    """An existing job cannot get other micro-batches, since they decide its result."""
    other = ", or in another namespace" if value == "mostOfNamespace" else ""
    return (
        f"a step has {tasks} tasks; {whose} would have {sum_} together, and the operator holds at"
        f" most {most}: wait until another job ends, ask the administrator to raise the chart's"
        f" value tasks.{value} together with the operator's memory, or create a new BambooJob with"
        f" fewer micro-batches or pipelines{other}"
    )
