"""The figures that metrics show of each job: those of the status that was written last."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView
from bamboo_operator.kube.api import Object
from bamboo_operator.kube.timestamps import timestamp
from bamboo_operator.money.prices import Rate
from bamboo_operator.monitoring.job_figures import JobFigures
from bamboo_operator.status import statuses, totals


class ShownJobs:
    """By the job's UID."""

    def __init__(self) -> None:
        self.figures: dict[str, JobFigures] = {}
        self._unended: set[str] = set()  # of these, the jobs that have not ended

    @property
    def unended(self) -> int:
        """Number of jobs that have not ended. These share the writes of progress."""
        return len(self._unended)

    def show(self, found: JobFigures) -> None:
        """Show these figures of the job from now on."""
        uid = found.job.uid
        self.figures[uid] = found.after(self.figures.get(uid))
        (self._unended.discard if found.has_ended else self._unended.add)(uid)

    def show_conditions(self, job: JobView, body: Object) -> None:
        """The spec cannot be used, or not now: only conditions and phase have changed."""
        written = statuses.read(body)
        known = self.figures.get(job.uid)
        if known is None:
            known = JobFigures(job, written, None, checkpoint_at=_checkpoint_at(body["status"]))
        status = replace(known.status, phase=written.phase, conditions=written.conditions)
        self.show(replace(known, status=status))

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self.figures.pop(uid, None)
        self._unended.discard(uid)


def figures(
    job: JobView, spec: JobSpec, status: JobStatus, kept: Object, rate: Rate | None
) -> JobFigures:
    """A job's figures. Its counters are those of ``kept``, the status in the API."""
    written = statuses.read_progress({"status": kept})
    progress = replace(status.progress, skipped=written.progress.skipped)
    return JobFigures(
        job,
        replace(status, progress=progress, totals=written.totals, times=totals.read_times(kept)),
        spec.training.global_batch_size,
        checkpoint_at=_checkpoint_at(kept),
        rate=rate,
        has_checkpoints=spec.checkpoint is not None,
        checkpoint_every=spec.save_every,
    )


def _checkpoint_at(status: Object) -> float | None:
    return timestamp((status.get("lastCheckpoint") or {}).get("time"))
