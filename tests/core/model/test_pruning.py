"""Which checkpoints may be deleted: for every history of attempts, nothing that may be needed."""

from __future__ import annotations

from random import Random

import pytest

from bamboo_core.arbiter_state.durable import Durable, Fork, eligible
from bamboo_core.model.pruning import removable
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


def gone(durable: Durable, newest: Manifest, attempt: int) -> set[tuple[int, int]]:
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
        found = gone(durable, newest, newest.attempt)
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
            found = gone(durable, newest, newest.attempt)
            count += len(found)
            needed += newest.attempt < durable.attempt and bool(found & good)
    assert count > 100
    assert needed > 10  # an old attempt's agent would delete these: it has to be stopped
