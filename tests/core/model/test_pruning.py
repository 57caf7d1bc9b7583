"""Which checkpoints may be deleted: for every history of attempts, nothing that may be needed."""

from __future__ import annotations

from random import Random

import pytest

from bamboo_core.arbiter_state.durable import Durable, Fork, eligible
from bamboo_core.model.pruning import LEAST_KEPT, Mark, removable
from bamboo_core.protocol.messages import Manifest

KEEP = 2


def history(random: Random) -> Durable:
    """Checkpoints of some attempts, each of which began at a step that was there."""
    manifests: list[Manifest] = []
    forks: list[Fork] = []
    begun, attempts = 0, random.randint(1, 4)
    for attempt in range(attempts):
        if attempt:
            begun = random.choice([0, *(m.step for m in manifests)])
            forks.append(Fork(attempt, begun))
        steps = range(begun + 1, begun + 1 + random.randint(0, 6))
        manifests += [Manifest(attempt, step, f"{attempt}/{step}", "d") for step in steps]
    bad = tuple((m.attempt, m.step) for m in manifests if random.random() < 0.1)
    return Durable(attempt=attempts - 1, manifests=tuple(manifests), forks=tuple(forks), bad=bad)


def gone_by(durable: Durable, newest: Manifest, attempt: int) -> set[tuple[int, int]]:
    """Marks that an agent deletes once it has sealed ``newest``, by the facts of that attempt."""
    marks = [(m.attempt, m.step) for m in durable.manifests]
    forks = [(f.attempt, f.step) for f in durable.forks if f.attempt <= attempt]
    at = (newest.attempt, newest.step)
    found = removable(
        marks, newest=at, keep=KEEP, sealed=set(marks) - set(durable.bad), forks=forks
    )
    return set(found)


@pytest.mark.parametrize("seed", range(200))
def test_no_history_loses_a_checkpoint_that_may_be_needed(seed: int) -> None:
    random = Random(seed)
    durable = history(random)
    good = {(m.attempt, m.step) for m in eligible(durable)}
    for newest in durable.manifests:
        found = gone_by(durable, newest, newest.attempt)
        assert all(attempt <= newest.attempt for attempt, _ in found)
        assert (newest.attempt, newest.step) not in found
        if newest.attempt != durable.attempt:
            continue  # storage tells such an agent that its attempt is over
        sealed = sorted(s for a, s in good if a == newest.attempt and s <= newest.step)
        for _, step in found & good:
            assert len([s for s in sealed if s > step]) >= KEEP


def test_the_histories_have_something_to_delete() -> None:
    count = needed = 0
    for seed in range(200):
        durable = history(Random(seed))
        good = {(m.attempt, m.step) for m in eligible(durable)}
        for newest in durable.manifests:
            found = gone_by(durable, newest, newest.attempt)
            count += len(found)
            needed += newest.attempt < durable.attempt and bool(found & good)
    assert count > 100
    assert needed > 10  # an old attempt's agent would delete these: it has to be stopped


def gone(
    marks: list[Mark], *, newest: Mark, keep: int, bad: tuple[Mark, ...] = (), forks: tuple = ()
) -> list[Mark]:
    return removable(marks, newest=newest, keep=keep, sealed=set(marks) - set(bad), forks=forks)


def test_a_checkpoint_goes_once_enough_of_higher_steps_are_sealed() -> None:
    marks = [(0, 2), (0, 4), (0, 6)]
    assert gone(marks, newest=(0, 6), keep=2) == [(0, 2)]
    assert gone(marks, newest=(0, 6), keep=3) == []


def test_those_of_an_older_attempt_do_not_count_as_kept() -> None:
    """The old attempt has 4 and 5, and the young one has sealed 6 only."""
    marks = [(0, 4), (0, 5), (1, 6)]
    assert gone(marks, newest=(1, 6), keep=2, forks=((1, 5),)) == []


def test_those_of_an_older_attempt_go_once_the_young_one_has_enough() -> None:
    marks = [(0, 4), (0, 5), (1, 6), (1, 7)]
    assert gone(marks, newest=(1, 7), keep=2, forks=((1, 5),)) == [(0, 4), (0, 5)]


def test_a_step_2_of_a_young_attempt_does_not_push_out_a_step_6() -> None:
    marks = [(0, 4), (0, 6), (1, 2)]
    assert gone(marks, newest=(1, 2), keep=1) == []


def test_what_a_fork_has_ruled_out_goes_at_once() -> None:
    marks = [(0, 4), (0, 6), (1, 6)]
    assert gone(marks, newest=(1, 6), keep=LEAST_KEPT, forks=((1, 4),)) == [(0, 6)]


def test_one_that_is_bad_does_not_count() -> None:
    marks = [(0, 2), (0, 4), (0, 6)]
    assert gone(marks, newest=(0, 6), keep=2, bad=((0, 4),)) == []


def test_newer_ones_of_a_later_attempt_are_not_touched() -> None:
    """A writer of an attempt that is over does not know them."""
    marks = [(0, 2), (0, 4), (0, 6), (1, 1)]
    assert gone(marks, newest=(0, 6), keep=2) == [(0, 2)]
