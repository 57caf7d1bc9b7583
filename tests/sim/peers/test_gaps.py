"""What a loss cost, computed from times of commits."""

from __future__ import annotations

import math

import pytest
from benchmarks.peers.commits import Commit
from benchmarks.peers.gaps import STEADY, Kill, cost, new_steps

BATCH = 32


def commit(at: float, step: int, *, attempt: int = 0, samples: int = BATCH) -> Commit:
    return Commit(at, step, "a", samples, attempt)


def undisturbed(steps: int = STEADY + 1) -> list[Commit]:
    """Steps of one second; the last one is committed at 0."""
    return [commit(float(step - steps + 1), step) for step in range(steps)]


def test_the_longest_time_between_new_steps_counts_less_a_normal_step() -> None:
    after = [commit(1, 9), commit(4.5, 10), commit(5.5, 11), commit(6.5, 12)]
    found = cost([*undisturbed(), *after], Kill(0.5, math.inf, 4.5), BATCH)
    assert (found.step_s, found.delay_s, found.full_s) == (1.0, 2.5, 4.0)
    assert (found.joining_s, found.quiet_s, found.skipped_samples) == (None, 0.0, 0)


def test_a_step_that_several_workers_report_is_committed_at_the_first_report() -> None:
    commits = [Commit(2.0, 1, "b"), Commit(1.0, 1, "a"), Commit(1.5, 0, "b"), Commit(0.5, 0, "a")]
    assert [(c.at, c.step) for c in new_steps(commits)] == [(0.5, 0), (1.0, 1)]


def test_a_pause_for_a_newcomer_is_not_part_of_the_delay() -> None:
    after = [commit(1, 9), commit(3, 10), commit(4, 11), commit(9, 12), commit(10, 13)]
    found = cost([*undisturbed(), *after], Kill(0.5, 4.0, 9.0), BATCH)
    assert (found.delay_s, found.joining_s) == (1.0, 4.0)


def test_a_stall_before_the_loss_is_noise() -> None:
    before = [commit(c.at - 3 * (c.step < 4), c.step) for c in undisturbed()]
    found = cost([*before, commit(1, 9), commit(2, 10)], Kill(0.5, math.inf, 1.0), BATCH)
    assert (found.step_s, found.quiet_s, found.delay_s) == (1.0, 3.0, 0.0)


def test_steps_after_a_restart_are_redone_until_a_new_one() -> None:
    again = [commit(5 + n / 2, 6 + n, attempt=1) for n in range(5)]  # 6, 7, 8 were there before
    found = cost([*undisturbed(), *again], Kill(0.5, math.inf, 5.0), BATCH)
    assert (found.redone_steps, found.delay_s) == (3, 5.5)  # step 9 comes at 6.5, 8 came at 0


def test_missing_samples_count_until_full_strength() -> None:
    after = [commit(1, 9), commit(3, 10, samples=28), commit(4, 11, samples=28), commit(5, 12)]
    late = commit(6, 13, samples=28)
    found = cost([*undisturbed(), *after, late], Kill(0.5, math.inf, 5.0), BATCH)
    assert found.skipped_samples == 8


def test_steps_thrown_away_are_no_commits() -> None:
    thrown = [Commit(1.0, 9, worker, 28, done=False) for worker in ("a", "b", "a")]
    early = Commit(-0.5, 8, "b", 28, done=False)
    found = cost([*undisturbed(), early, *thrown, commit(3, 9)], Kill(0.5, 9.0, 3.0), BATCH)
    assert (found.discarded_steps, found.delay_s) == (2, 2.0)


def test_too_few_steps_before_the_loss_are_refused() -> None:
    with pytest.raises(ValueError, match="8 commits before the loss; 9 are needed"):
        cost(undisturbed(STEADY), Kill(0.5, math.inf, 1.0), BATCH)


def test_a_job_that_never_goes_on_is_refused() -> None:
    redone = commit(3, 8, attempt=1)
    with pytest.raises(ValueError, match="no new step was committed"):
        cost([*undisturbed(), redone], Kill(0.5, math.inf, 3.0), BATCH)
