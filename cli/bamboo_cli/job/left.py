"""What is left until a job's end, in words. Pure."""

from __future__ import annotations

from bamboo_cli.job.state import Job, Left
from bamboo_core.model.counts import duration

UNKNOWN = "not known yet"


def known(job: Job) -> Left | None:
    """None: the job has ended, does not train, or has told nothing new for long."""
    return None if job.ended is not None or job.silent_s else job.left


def time_text(job: Job) -> str:
    """Such as ``3.5 h``; empty: there is nothing to say."""
    left = known(job)
    if left is None:
        return ""
    return UNKNOWN if left.seconds is None else duration(left.seconds)


def usd_text(job: Job) -> str:
    """Such as ``12.30``, or ``12.30+?`` if some nodes have no price; empty: not known."""
    left = known(job)
    if left is None or left.usd is None:
        return ""
    return f"{left.usd:.2f}{'+?' if left.has_unpriced else ''}"


def sentence(job: Job) -> str:
    """One sentence for `bamboo explain`; empty: there is nothing to say."""
    time, usd = time_text(job), usd_text(job)
    if not time:
        return ""
    if time == UNKNOWN:
        return "When it ends is not known yet: its pace has not been measured."
    cost = f" and costs about {usd} USD more" if usd else ""
    return f"At its present pace, pauses included, it ends in about {time}{cost}."
