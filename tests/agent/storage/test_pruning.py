"""Which checkpoints are deleted when a newer one is sealed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.agent.storage.test_checkpoint import RECORD, write

from bamboo_agent.storage.checkpoint import Checkpoints, Facts
from bamboo_core.protocol.messages import Fork


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(f"file://{tmp_path}", "uid")


def test_only_the_newest_are_kept(checkpoints):
    manifests = [write(checkpoints, step=step)[0] for step in (1, 2, 3, 4)]
    later = write(checkpoints, attempt=1, step=2)[0]
    checkpoints.prune(keep=2, newest=manifests[3], facts=Facts())
    assert checkpoints.scan().good == [*manifests[2:], later]
    assert not Path(manifests[0].path).parent.exists()


def test_a_checkpoint_of_an_old_attempt_stays_until_enough_newer_steps_are_sealed(checkpoints):
    """Attempt 1 began from the start, since the folder was away."""
    old = [write(checkpoints, step=step)[0] for step in (4, 6)]
    young = []
    for step, left in ((2, old), (4, old), (6, old), (7, old[1:]), (8, [])):
        young.append(write(checkpoints, attempt=1, step=step)[0])
        checkpoints.prune(keep=2, newest=young[-1], facts=Facts())
        assert checkpoints.scan().good == [*left, *young[-2:]]


def test_what_a_fork_has_ruled_out_goes_at_once(checkpoints):
    four, six = (write(checkpoints, step=step)[0] for step in (4, 6))
    new = write(checkpoints, attempt=1, step=5)[0]
    checkpoints.prune(keep=2, newest=new, facts=Facts((Fork(1, 4),)))
    assert checkpoints.scan().good == [four, new]
    assert not Path(six.path).exists()


def test_a_wrong_checkpoint_does_not_let_a_good_one_go(checkpoints):
    manifests = [write(checkpoints, step=step)[0] for step in (2, 4, 6)]
    checkpoints.prune(keep=2, newest=manifests[2], facts=Facts(bad=frozenset({(0, 4)})))
    assert checkpoints.scan().good == manifests


def test_a_checkpoint_whose_manifest_is_away_stays_like_one_that_is_there(checkpoints):
    old = write(checkpoints, step=6)[0]
    away = Path(old.path).rename(Path(old.path).with_suffix(".away"))
    checkpoints.prune(keep=2, newest=write(checkpoints, attempt=1, step=2)[0], facts=Facts())
    away.rename(old.path)
    assert old in checkpoints.scan().good


def test_what_older_checkpoints_left_unsealed_is_removed(checkpoints, tmp_path):
    for attempt, step in ((0, 7), (1, 1), (1, 3), (1, 5)):
        checkpoints.write_layer(attempt=attempt, step=step, layer=0, record=RECORD)
    newest = [write(checkpoints, attempt=1, step=step)[0] for step in (2, 4)][-1]
    checkpoints.prune(keep=2, newest=newest, facts=Facts((Fork(1, 0),)))
    found = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("layer-0000*"))
    assert found == [f"uid/attempt-0001/step-0000000{step}" for step in (2, 3, 4, 5)]
