"""How a job begins, and begins again from a checkpoint when no copy of some layer is left; the same
for all systems that need checkpoints for nothing else."""

from __future__ import annotations

from typing import Any

from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.seats import age_ms
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


def restore_ms(job: Job, stages: int) -> int:
    """All processes start again, and each node reads its stage."""
    return job.common.restart_ms + job.copy_ms(stages or job.common.stages)


def begun(job: Job, after: Any, stages: int, fleet: Fleet, now_ms: int) -> Change:
    """A job that stood trains with these seats. The start is free for all; later on, there is only
    a checkpoint. ``after``: a state with ``since_ms``."""
    if not fleet.samples:
        return Change(after._replace(since_ms=now_ms))
    end = now_ms + restore_ms(job, stages)
    return Change(after._replace(since_ms=end), end, "restore")


def restored(
    job: Job,
    pace: Pace | None,
    since_ms: int,
    after: Any,
    fleet: Fleet,
    now_ms: int,
    pause_ms: int,
) -> Change:
    """No copy of some layer is left after a loss: what no checkpoint has is repeated.

    ``pace``: before the loss; ``since_ms``: when training began with a checkpoint; ``after``: a
    state with ``since_ms``, in which nothing serves where too few nodes are left; ``pause_ms``: all
    of it.
    """
    common = job.common
    lost_ms = age_ms(now_ms, since_ms, common.interval_ms, common.persist_ms)
    end = extended(fleet, now_ms, pause_ms)
    return Change(
        after._replace(since_ms=end),
        end if after.serving else None,
        "restore",
        rate(pace) * lost_ms,
        is_fatal=True,
    )
