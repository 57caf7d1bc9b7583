"""A checkpoint that is sealed stays so, though a later plan fails to write it again."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state import events as a
from bamboo_core.protocol.messages import BadCheckpoint, Manifest, Sealed

from .fleet import Fleet, committed, running

FULL = "agent a0: writing below /c/uid failed: No space left on device"


def not_written(step: int) -> BadCheckpoint:
    return BadCheckpoint(0, step, "not complete", FULL)


def last_sealed() -> Fleet:
    """The last step is committed, and its checkpoint is sealed."""
    fleet = running(1, 2, steps=4, every=0)
    fleet.until(lambda: committed(fleet, 3))
    fleet.receive("a0", Sealed(Manifest(0, 4, "0/4", "")))
    return fleet


@pytest.mark.parametrize("suspended", [False, True])
def test_the_job_ends_although_the_last_checkpoint_is_not_written_again(suspended: bool) -> None:
    fleet = last_sealed()
    fleet.full = FULL
    fleet.tell(a.DesiredState(1, suspended=suspended))
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert fleet.arbiter.durable.last_write is None
    assert [m.step for m in fleet.arbiter.durable.manifests] == [4]
    assert not [r for r in fleet.records if r.reason is EventReason.CHECKPOINT_BAD]


def test_the_wait_ends_when_a_known_checkpoint_is_sealed_again() -> None:
    """Facts of an earlier version may name both the checkpoint and the wait for it."""
    fleet = running(1, 2, steps=4, every=0)
    fleet.until(lambda: committed(fleet, 3))
    fleet.receive("a0", not_written(4))
    assert fleet.arbiter.durable.last_write is not None
    manifest = Manifest(0, 4, "0/4", "")
    fleet.arbiter.state.out.save(manifests=(manifest,))
    fleet.receive("a0", Sealed(manifest))
    assert fleet.arbiter.durable.last_write is None


def test_a_checkpoint_in_mid_run_that_is_not_written_again_can_be_used() -> None:
    fleet = running(1, 2, steps=40, every=0)
    fleet.until(lambda: committed(fleet, 5))
    fleet.receive("a0", Sealed(Manifest(0, 4, "0/4", "")))
    fleet.receive("a0", not_written(4))
    assert fleet.arbiter.durable.bad == ()
    fleet.receive("a0", not_written(6))
    assert fleet.arbiter.durable.bad == ((0, 6),)
