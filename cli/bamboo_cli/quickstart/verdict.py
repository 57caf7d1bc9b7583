"""Whether a quick start has shown what it should. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_cli.job.state import Job, Manifest
from bamboo_cli.quickstart.final_state import Comparison
from bamboo_cli.run.faults import FaultLog, Hit, ScheduledFault
from bamboo_cli.run.recovery import recovery


def is_success(job: Job, log: FaultLog, comparison: Comparison | None) -> bool:
    """Whether the job completed, every fault was injected, and the bits are equal."""
    is_equal = comparison is None or not comparison.differing
    return job.ended == "Complete" and is_equal and not unproven(job, log, comparison)


def unproven(job: Job, log: FaultLog, comparison: Comparison | None) -> list[str]:
    """One sentence for each thing that a completed run should have shown but did not."""
    if job.ended != "Complete":
        return []
    found = [_not_injected(fault, job) for fault in log.left]
    found += [
        f"No event shows how training continued without {', '.join(hit.pods)}: see the job's"
        " events."
        for hit in log.hits
        if not _has_recovered(hit, log.events)
    ]
    if log.hits and comparison is None:
        found.append("The final state was not compared with an undisturbed run's.")
    return found


def _not_injected(fault: ScheduledFault, job: Job) -> str:
    return (
        f'"{fault.fault}" was due at step {fault.progress * job.steps:.0f} of {job.steps} but was'
        " not injected: the job ended before all of its agents were seen running. Give the job"
        " more steps (spec.training.steps) or more --nodes, or inject no faults (--no-losses)."
    )


def _has_recovered(hit: Hit, events: Sequence[Manifest]) -> bool:
    found = recovery(hit.pods, events, lost_at=hit.at_s)
    return found is not None and found.resumed_at is not None
