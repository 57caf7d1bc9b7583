"""Which checkpoints are deleted when a newer one is sealed."""

from __future__ import annotations

import logging
import select
from pathlib import Path

import pytest
from tests.agent.storage.test_checkpoint import RECORD, write

from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Facts
from bamboo_agent.storage.reader import Read, Reader
from bamboo_agent.storage.saver import Saver
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Fork, Manifest

DEADLINE_S = 60.0


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(f"file://{tmp_path}", "uid")


def test_only_the_newest_are_kept(checkpoints):
    manifests = [write(checkpoints, step=step)[0] for step in (1, 2, 3, 4)]
    checkpoints.prune(keep=2, newest=manifests[3], facts=Facts())
    assert checkpoints.scan().good == manifests[2:]
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


# ---------------------------------------------------------------- a later attempt has begun


def begin_from(checkpoints: Checkpoints, manifest: Manifest, attempt: int) -> None:
    """An agent of the attempt reads the checkpoint."""
    reader = Reader(checkpoints)
    reader.read(manifest, (0, 1), attempt)
    found: list[object] = []
    while not found:
        assert select.select([reader], [], [], DEADLINE_S)[0]
        found = [x for x in reader.poll() if isinstance(x, Read)]
    reader.close()
    (read,) = found
    assert isinstance(read, Read)
    assert read.error is None


@pytest.mark.parametrize("uri", ["file://{}", "memory://{}/later"])
def test_an_agent_that_is_cut_off_deletes_nothing_once_a_later_attempt_has_begun(
    tmp_path, caplog, uri
):
    """It trains on by its old plan. Attempt 1 began from step 4, and has written no file yet."""
    one, other = (Checkpoints(uri.format(tmp_path), "uid") for _ in range(2))
    old = [write(one, step=step)[0] for step in (2, 4)]
    begin_from(other, old[1], attempt=1)
    old += [write(one, step=step)[0] for step in (6, 8)]
    with caplog.at_level(logging.WARNING):
        one.prune(keep=2, newest=old[3], facts=Facts())
    assert one.scan().good == old
    assert "attempt-0001 is of a later attempt" in caplog.text
    new = write(other, attempt=1, step=6)[0]
    other.prune(keep=2, newest=new, facts=Facts((Fork(1, 4),)))
    assert other.scan().good == [*old[:2], new]


def test_an_agent_of_an_old_attempt_deletes_nothing_of_a_later_one(checkpoints):
    old = [write(checkpoints, step=step)[0] for step in (2, 4, 6, 8)]
    new = write(checkpoints, attempt=1, step=2)[0]
    checkpoints.write_layer(attempt=1, step=4, layer=0, record=RECORD)
    checkpoints.prune(keep=2, newest=old[3], facts=Facts((Fork(1, 0),)))
    assert checkpoints.scan().good == [*old, new]
    assert Path(checkpoints.folder(1, 4)).exists()


def test_a_removal_that_was_queued_in_an_old_attempt_is_dropped(checkpoints):
    """The storage was slow meanwhile."""
    manifests = [write(checkpoints, step=step)[0] for step in (2, 4, 6)]
    saver = Saver(checkpoints, AgentId("a"))
    saver.adopt(1)
    saver.prune(keep=2, newest=manifests[2], facts=Facts())
    saver.close()
    assert checkpoints.scan().good == manifests


def test_the_mark_of_an_attempt_makes_no_folder_that_is_away(checkpoints, tmp_path):
    """A mount may be late: what is written in its place hides it."""
    write(checkpoints, step=2)
    away = (tmp_path / "uid").rename(tmp_path / "away")
    assert not checkpoints.claim(1)
    assert not (tmp_path / "uid").exists()
    away.rename(tmp_path / "uid")
    assert checkpoints.claim(1)
    assert (tmp_path / "uid" / "attempt-0001" / "begun").exists()


def test_a_mark_that_cannot_be_written_does_not_keep_a_job_from_its_checkpoint(
    checkpoints, monkeypatch, caplog
):
    manifest = write(checkpoints, step=2)[0]

    def refuse(path: str, data: bytes) -> None:
        raise CheckpointError(f"writing {path} failed: Read-only file system")

    monkeypatch.setattr(checkpoints, "_write", refuse)
    begin_from(checkpoints, manifest, attempt=1)
    assert "may delete what this one begins from" in caplog.text


def test_an_attempt_that_reads_its_own_checkpoint_leaves_no_mark(checkpoints):
    begin_from(checkpoints, write(checkpoints, step=2)[0], attempt=0)
    assert not Path(checkpoints.folder(0, 2)).parent.joinpath("begun").exists()
