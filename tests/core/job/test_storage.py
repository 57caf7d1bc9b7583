"""A folder that takes no checkpoints: reported at once, once, and no longer than it lasts."""

from __future__ import annotations

from tests.core.controller.builders import spec

from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import CheckpointSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import DesiredState
from bamboo_core.job.storage import Storage
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import BadCheckpoint, Heartbeat, Manifest, Sealed

from .led import MEMBERS, Led, ready

NAME = MEMBERS[0]
FULL = f"agent {NAME}: writing below /c/uid failed: No space left on device"
SEALED = Sealed(Manifest(0, 8, "/c/8", ""))


def failed(step: int, cause: str = FULL) -> BadCheckpoint:
    return BadCheckpoint(0, step, f"the checkpoint of step {step} is not complete", cause)


def test_a_cause_is_news_once_until_a_checkpoint_is_complete() -> None:
    storage = Storage()
    assert [storage.hear(failed(step)) for step in (2, 4, 6)] == [True, False, False]
    assert storage.hear(failed(8, "agent b: Permission denied"))
    assert not storage.hear(SEALED)
    assert storage.trouble == ""
    assert storage.hear(failed(10))


def test_what_says_nothing_about_writing_changes_nothing() -> None:
    storage = Storage(FULL)
    assert not storage.hear(BadCheckpoint(0, 4, "torn"))
    assert not storage.hear(Heartbeat(1, 1, 1))
    assert not storage.hear(ready())
    assert storage.trouble == FULL


def lead(durable: Durable, reported: LastReported = LastReported()) -> Led:  # noqa: B008 - frozen
    led = Led(durable, job_spec=spec(checkpoint=CheckpointSpec("file:///c", 2)), reported=reported)
    led.tell(DesiredState(pipelines=1))
    led.connect(NAME)
    return led


def complaints(led: Led) -> list[str]:
    reasons = (EventReason.CHECKPOINT_BAD, EventReason.STORAGE_FAILED)
    return [record.message for reason in reasons for record in led.records(reason)]


def test_a_job_that_could_never_save_ends_before_its_first_step() -> None:
    """One agent that cannot save may have a bad disk. With two it is the folder."""
    led = lead(Durable())
    led.receive(NAME, ready(FULL))
    assert led.leadership.view().outcome is None
    led.connect(MEMBERS[1])
    led.receive(MEMBERS[1], ready(FULL))
    view = led.leadership.view()
    assert (view.outcome, view.reason) == (Outcome.FAILED, Reason.CHECKPOINT_FAILED)
    assert view.message.startswith(f"spec.checkpoint.uri file:///c cannot be written: {FULL}: ")
    assert "spec.worker.podTemplate" in view.message


def test_a_job_that_has_begun_takes_agents_that_cannot_save() -> None:
    led = lead(Durable(plan=Fence(0, 1, 4)))
    led.receive(NAME, ready(FULL))
    led.receive(NAME, ready(FULL))
    view = led.leadership.view()
    assert (view.outcome, view.checkpoint_error) == (None, FULL)
    (record,) = led.records(EventReason.STORAGE_FAILED)
    assert (record.severity, record.message, record.agents) == (
        Severity.WARNING,
        f"checkpoints cannot be written: {FULL}",
        (NAME,),
    )


def test_an_event_for_each_cause_and_not_for_each_step() -> None:
    led = lead(Durable(plan=Fence(0, 1, 4)))
    led.receive(NAME, ready())
    before = led.woken()
    for step in range(2, 40, 2):
        led.receive(NAME, failed(step))
    assert len(complaints(led)) == 1
    assert (led.leadership.view().checkpoint_error, led.woken()) == (FULL, before + 1)
    assert len(led.leadership.arbiter.durable.bad) < 10
    led.receive(NAME, BadCheckpoint(0, 40, "hash of layer 2 differs"))
    assert "hash of layer 2 differs" in complaints(led)[1]


def test_the_trouble_is_over_with_the_next_checkpoint() -> None:
    durable = Durable(plan=Fence(0, 1, 4), members=(NAME,))
    led = lead(durable, LastReported(checkpoint_error=FULL))
    assert led.leadership.view().checkpoint_error == FULL
    led.receive(NAME, SEALED)
    assert led.leadership.view().checkpoint_error == ""
    led.receive(NAME, ready(FULL))  # a member repeats what it found when it started
    assert led.leadership.view().checkpoint_error == ""


def test_a_known_cause_stays_known_while_it_is_held() -> None:
    led = lead(Durable(plan=Fence(0, 1, 4)))
    led.receive(NAME, ready())
    led.receive(NAME, failed(2))
    led.is_leading = False
    led.receive(NAME, failed(4))
    assert (0, 4) not in led.leadership.arbiter.durable.bad
    led.is_leading = True
    led.tick()
    assert (0, 4) in led.leadership.arbiter.durable.bad
    assert len(complaints(led)) == 1


def test_an_older_checkpoint_that_is_complete_at_last_does_not_end_the_trouble() -> None:
    """A slow storage gives up newer ones meanwhile."""
    storage = Storage()
    assert storage.hear(failed(8))
    storage.hear(Sealed(Manifest(0, 6, "path", "digest")))
    assert storage.trouble == FULL
    storage.hear(Sealed(Manifest(0, 10, "path", "digest")))
    assert storage.trouble == ""


UNSEEN = "/c/4/layer-0001.safetensors is not seen from node b"
REMEDY = ": mount the same volume for spec.checkpoint.uri on every node"


def test_who_has_seen_a_checkpoint_is_remembered_by_its_path() -> None:
    storage = Storage(caveats={"/c/0": "seen from one node only"})
    storage.hear(Sealed(Manifest(0, 4, "/c/4", ""), unseen=UNSEEN))
    storage.hear(Sealed(Manifest(0, 8, "/c/8", ""), is_seen_once=True))
    known = {"/c/0": "seen from one node only", "/c/4": UNSEEN + REMEDY}
    assert storage.caveats == {**known, "/c/8": "seen from one node only"}
    storage.hear(SEALED)  # it is sealed again, and two nodes have seen it
    assert storage.caveats == known
    for n in range(40):
        storage.hear(Sealed(Manifest(0, n, f"/d/{n}", ""), is_seen_once=True))
    assert list(storage.caveats) == [f"/d/{n}" for n in range(24, 40)]


def test_users_see_which_file_which_node_does_not_see() -> None:
    durable = Durable(plan=Fence(0, 1, 4), members=(NAME,))
    led = lead(durable)
    assert led.leadership.view().checkpoint_caveat == ""
    led.receive(NAME, Sealed(Manifest(0, 8, "/c/8", ""), unseen=UNSEEN))
    assert led.leadership.view().checkpoint_caveat == UNSEEN + REMEDY
    (record,) = led.records(EventReason.CHECKPOINT_SEALED)
    assert record.severity is Severity.WARNING
    assert record.message == f"checkpoint of step 8 is complete: /c/8; {UNSEEN}{REMEDY}"


def test_one_node_is_no_warning_and_the_next_leader_knows_it() -> None:
    led = lead(Durable(plan=Fence(0, 1, 4), members=(NAME,)))
    led.receive(NAME, Sealed(Manifest(0, 8, "/c/8", ""), is_seen_once=True))
    (record,) = led.records(EventReason.CHECKPOINT_SEALED)
    assert (record.severity, record.message) == (
        Severity.NORMAL,
        "checkpoint of step 8 is complete: /c/8",
    )
    caveats = {"/c/8": led.leadership.view().checkpoint_caveat}
    durable = led.leadership.arbiter.durable
    after = lead(durable, LastReported(checkpoint_caveats=caveats)).leadership.view()
    assert after.checkpoint_caveat == "seen from one node only"
