"""What a loss cost, from the times of the commits around it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .commits import Commit

STEADY = 8
"""Undisturbed steps before each loss that give the time of a normal one."""


@dataclass(frozen=True)
class Kill:
    """Times are of time.monotonic()."""

    at: float
    newcomer_at: float  # infinity: none was started while the job stood still
    full_at: float  # first commit of a step in which all workers took part again


@dataclass(frozen=True)
class Cost:
    """What one loss cost.

    delay_s: longest time between commits of new steps that ends after the loss and before a
    newcomer is started, less a normal step; joining_s: the same from then on; quiet_s: the same
    before the loss; full_s: from the loss to a commit with all workers; redone_steps: committed
    steps that were trained again; discarded_steps: steps that a worker threw away; skipped_samples:
    missing from committed steps.
    """

    step_s: float
    delay_s: float
    joining_s: float | None
    quiet_s: float
    full_s: float
    redone_steps: int
    discarded_steps: int
    skipped_samples: int


def new_steps(commits: Sequence[Commit]) -> list[Commit]:
    """The first commit of each step that is beyond all before, in order of time."""
    found, newest = list[Commit](), -math.inf
    for commit in sorted(commits, key=lambda c: (c.at, c.step)):
        if commit.done and commit.step > newest:
            newest = commit.step
            found.append(commit)
    return found


def cost(commits: Sequence[Commit], kill: Kill, batch: int) -> Cost:
    """The cost of a loss; ``batch``: samples that a step should use.

    ValueError if there are fewer than STEADY steps before the loss, or no new step after it.
    """
    new = new_steps(commits)
    times = [commit.at for commit in new]
    before = [at for at in times if at <= kill.at][-STEADY - 1 :]
    if len(before) <= STEADY:
        raise ValueError(f"{len(before)} commits before the loss; {STEADY + 1} are needed")
    steps = [b - a for a, b in pairwise(before)]
    step_s = statistics.median(steps)
    stalls = [(a, b) for a, b in pairwise(times) if b > kill.at]
    delays = [b - a for a, b in stalls if b <= kill.newcomer_at]
    joins = [b - a for a, b in stalls if b > kill.newcomer_at]
    if not delays:
        raise ValueError("no new step was committed after the loss")
    return Cost(
        step_s=step_s,
        delay_s=max(delays) - step_s,
        joining_s=max(joins) - step_s if joins else None,
        quiet_s=max(steps) - step_s,
        full_s=kill.full_at - kill.at,
        redone_steps=redone(commits, kill.at),
        discarded_steps=discarded(commits, kill.at),
        skipped_samples=sum(batch - c.samples for c in new if kill.at < c.at <= kill.full_at),
    )


def redone(commits: Sequence[Commit], since: float) -> int:
    """Steps that were committed before a time and again, by a later attempt of the job, after."""
    first = {c.attempt for c in commits if c.at <= since}
    before = {c.step for c in commits if c.done and c.attempt in first}
    again = {c.step for c in commits if c.done and c.attempt not in first}
    return len(before & again)


def discarded(commits: Sequence[Commit], since: float) -> int:
    """The most steps after a time that any one worker computed and threw away."""
    thrown = [c.worker for c in commits if not c.done and c.at > since]
    return max(map(thrown.count, thrown), default=0)
