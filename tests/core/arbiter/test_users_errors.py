"""The user's code fails in mid-job: one machine's fault, or everybody's. No step is lost."""

from __future__ import annotations

import re

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter import last_write
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import Failure, Halted, Notice

from .fleet import Fleet, committed, plan, running

TEXT = "sample 7, of micro-batch 3 of step 9: KeyError: 'text'"
STEP = 9
NONE, REPLICA = RedundancyMode.NONE, RedundancyMode.REPLICA


def bad_sample(agent: AgentId, instruction: Instruction) -> str:
    """The error of whoever computes the first forward of this micro-batch."""
    is_it = instruction.op is Op.F and (instruction.step, instruction.lo) == (STEP, 0)
    return TEXT if is_it and instruction.index == 3 else ""


def failing(pipelines: int, stages: int, **options: object) -> Fleet:
    fleet = running(pipelines, stages, **{"steps": 40, "every": 0, **options})
    fleet.raises = bad_sample
    return fleet


def ended(fleet: Fleet) -> a.Over:
    fleet.run()
    assert fleet.over is not None, fleet.arbiter.status()
    return fleet.over


def lost(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.AGENT_LOST]


def restores(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.RESTORING]


@pytest.mark.parametrize("every", [0, 4])
@pytest.mark.parametrize(
    ("pipelines", "stages", "mode", "gone"),
    [(1, 2, NONE, 0), (1, 1, NONE, 0), (1, 3, REPLICA, 1), (2, 2, NONE, 1), (2, 3, REPLICA, 1)],
)
def test_everybody_s_error_ends_the_job_and_its_state_is_written(
    pipelines: int, stages: int, mode: RedundancyMode, gone: int, every: int
) -> None:
    fleet = failing(pipelines, stages, mode=mode, every=every)
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert over.message.endswith(
        f": UserCodeFailed: {TEXT}; {STEP} committed steps in the checkpoint of step {STEP}:"
        " spec.checkpoint.from begins a job with it, and accept: [Code, Data] there, or one of"
        " them, takes what you have repaired"
    )
    assert fleet.sealed[-1].step == STEP
    assert len(lost(fleet)) == gone, "a job that can spare an agent tries another one"
    assert not restores(fleet)


@pytest.mark.parametrize("op", [Op.B, Op.VOTE])
def test_an_error_after_the_forwards_loses_no_step_either(op: Op) -> None:
    fleet = failing(1, 2, mode=NONE)
    fleet.raises = lambda agent, x: TEXT if (x.op, x.step) == (op, STEP) else ""
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert f"{STEP} committed steps in the checkpoint of step {STEP}" in over.message
    assert fleet.sealed[-1].step == STEP
    assert (lost(fleet), restores(fleet)) == ([], [])


def test_one_machine_s_error_costs_an_agent_that_can_be_spared() -> None:
    fleet = failing(2, 2, mode=NONE)
    broken = fleet.arbiter.durable.pipelines[1][0]
    fleet.raises = lambda agent, x: bad_sample(agent, x) if agent == broken else ""
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert lost(fleet) == [f"{broken}: the user's code has failed on it"]
    assert not restores(fleet)


def test_an_error_that_does_not_come_again_costs_nothing() -> None:
    """A storage that has failed once. Nobody else holds the layers."""
    fleet = failing(1, 2, mode=NONE)
    met = list[str]()

    def once(agent: AgentId, instruction: Instruction) -> str:
        text = bad_sample(agent, instruction) if not met else ""
        met.extend([text] if text else [])
        return text

    fleet.raises = once
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert met == [TEXT]
    assert (lost(fleet), restores(fleet)) == ([], [])
    (record,) = [r for r in fleet.records if r.reason is EventReason.WORKER_FAILED]
    assert record.message.endswith(f"UserCodeFailed: {TEXT}")


def test_two_errors_with_different_texts_end_no_job() -> None:
    fleet = failing(1, 2, mode=NONE)
    texts = ["one", "another"]
    fleet.raises = lambda agent, x: texts.pop() if texts and bad_sample(agent, x) else ""
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert not texts


def test_an_error_that_is_heard_twice_counts_once() -> None:
    """A supervisor repeats it in every session."""
    fleet = failing(1, 2, mode=NONE)
    fleet.raises = lambda agent, x: ""
    fleet.until(lambda: committed(fleet, 3))
    agent, fence = next(iter(fleet.agents)), fleet.arbiter.fence
    for _ in range(3):
        fleet.receive(agent, Halted(fence, TEXT))
    assert not fleet.arbiter.durable.failing
    assert fleet.arbiter.fence.epoch == fence.epoch + 1


def test_a_job_without_checkpoints_ends_at_once() -> None:
    fleet = failing(1, 2, mode=NONE, checkpoint=False)
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert over.message.endswith(f"UserCodeFailed: {TEXT}")


def test_a_job_that_has_committed_nothing_ends_without_a_checkpoint() -> None:
    fleet = failing(1, 2, mode=NONE)
    fleet.raises = lambda agent, x: TEXT if x.op is Op.F and x.lo == 0 else ""
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert over.message.endswith(f"UserCodeFailed: {TEXT}; no step was committed")
    assert not fleet.sealed


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_new_leader_ends_the_job_as_well(at: str) -> None:
    """before: it is known that everybody fails."""
    fleet = failing(1, 2, mode=NONE)
    fleet.until(
        lambda: bool(fleet.arbiter.durable.failing) if at == "after" else committed(fleet, STEP - 1)
    )
    fleet.run_wire()
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert TEXT in over.message
    assert fleet.sealed[-1].step == STEP


def test_a_job_whose_last_state_cannot_be_written_says_what_is_repeated() -> None:
    fleet = failing(1, 2, mode=NONE)
    fleet.full = "agent a0: No space left on device"
    fleet.run()
    status = fleet.arbiter.status()
    assert status.unwritten is not None
    assert (status.unwritten.step, status.unwritten.failing) == (
        STEP,
        fleet.arbiter.durable.failing,
    )
    fleet.tell(a.DesiredState(1, last_write_s=60.0))
    fleet.wait(70.0)
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert TEXT in over.message
    assert "could not be written for 60 s" in over.message
    assert over.message.endswith(f"; {STEP} committed steps since the start are lost")


def test_a_lost_layer_ends_a_failing_job_too() -> None:
    """Nothing is restored: it would only meet the error again."""
    fleet = failing(1, 3, mode=NONE)
    fleet.full = "agent a0: No space left on device"
    fleet.run()
    fleet.kill(sorted(fleet.agents)[0])
    fleet.wait(400.0, step_s=5.0)
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert over.message.endswith(
        f"{STEP} committed steps since the start are lost ("
        "spec.checkpoint.everySteps writes checkpoints while training goes on)"
    )
    assert not restores(fleet)


def test_a_lost_layer_ends_a_failing_job_whose_other_agents_will_leave() -> None:
    """It waited for them to go, since none of them could have a seat."""
    fleet = failing(1, 3, mode=NONE)
    fleet.full = "agent a0: No space left on device"
    fleet.run()
    fleet.receive(AgentId("a2"), Notice(3.0, "spot"))
    for agent in ("a0", "a1"):
        fleet.kill(agent)
    fleet.wait(100.0)
    assert ended(fleet).message.endswith("training goes on)")
    assert not restores(fleet)


def test_a_suspended_job_that_goes_on_forgets_the_error() -> None:
    fleet = failing(1, 2, mode=NONE)
    fleet.full = "agent a0: No space left on device"
    fleet.run()
    fleet.tell(a.DesiredState(1, suspended=True))
    fleet.full = ""
    fleet.wait(40.0)
    assert ended(fleet).outcome is Outcome.FAILED


# ---------------------------------------------------------------- code that ends the process

PLACE = "F[0:1] m3 @9"


def crash(fleet: Fleet, agent: str, place: str = PLACE, text: str = "crashed") -> None:
    """The agent's process ends itself in an instruction."""
    fleet.until(lambda: agent in fleet.arbiter.status().members)
    fleet.receive(AgentId(agent), Failure("WorkerExited", text, False, 139, place))
    fleet.agents.pop(AgentId(agent))


def test_a_crash_that_another_agent_has_at_the_same_place_ends_the_job() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    crash(fleet, "a0")
    assert fleet.over is None
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    crash(fleet, "a2", f"{PLACE}, layer 0 (Block)", text="crashed in thread 7")
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    runs = f"it runs spec.model.factory {fleet.job.spec.model.factory}, layer 0"
    assert over.message.startswith(f"a2: UserCodeFailed: crashed in thread 7; {runs} (Block); ")
    told = [r.message for r in fleet.records if r.reason is EventReason.WORKER_FAILED]
    assert told[0] == f"a0: WorkerExited: crashed; {runs}"


def trains(fleet: Fleet) -> bool:
    return fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING and not (
        fleet.arbiter.durable.saving
    )


@pytest.mark.parametrize("every", [0, 4])
def test_before_code_that_has_ended_a_process_is_tried_again_the_state_is_written(
    every: int,
) -> None:
    """Both copies of the layers went with two processes, and the steps since a checkpoint."""
    fleet = running(2, 2, steps=40, every=every, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    crash(fleet, "a0")
    assert fleet.arbiter.durable.saving.startswith("the user's code has ended a0: crashed; it")
    fleet.until(lambda: trains(fleet))
    step = fleet.sealed[-1].step
    assert step >= 7
    crash(fleet, "a2")
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert f"; {step} committed steps in the checkpoint of step {step}: " in over.message
    assert not restores(fleet)


def test_a_crash_that_does_not_come_again_costs_one_checkpoint() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    crash(fleet, "a0")
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert len(fleet.sealed) == 2
    assert (restores(fleet), fleet.arbiter.durable.saving) == ([], "")


def test_state_that_cannot_be_written_first_does_not_hold_the_job_up() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    fleet.full = "agent a2: No space left on device"
    crash(fleet, "a0")
    fleet.until(lambda: committed(fleet, 10))
    assert not fleet.sealed
    fleet.full = ""
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert len(fleet.sealed) == 1


def test_a_write_that_takes_too_long_does_not_hold_the_job_up() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    fleet.hold_files = True
    crash(fleet, "a0")
    fleet.run()
    assert fleet.arbiter.status().detail.startswith("the state is written first: the user's code")
    fleet.wait(last_write.SUSPENDED_S + 10)
    fleet.until(lambda: committed(fleet, 10))
    assert not fleet.sealed


def test_an_agent_with_notice_hands_over_while_the_state_is_written() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=NONE)
    fleet.until(lambda: committed(fleet, 6))
    fleet.hold_files = True
    crash(fleet, "a0")
    fleet.run()
    fleet.receive(AgentId("a2"), Notice(20.0, "preempted"))
    fleet.wait(17.0)  # without other agents it stays as long as it can
    assert "a2" not in plan(fleet).live
    assert fleet.arbiter.durable.saving
    fleet.wait(last_write.SUSPENDED_S + 10)
    fleet.until(lambda: committed(fleet, 10))
    assert not restores(fleet)


def test_a_crash_in_the_last_validation_saves_all_steps_and_validates_again() -> None:
    fleet = running(2, 2, steps=8, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 7))
    crash(fleet, "a0", "V[0:1] m3 @8")
    over = ended(fleet)
    assert over.outcome is Outcome.COMPLETE
    assert {m.step for m in fleet.sealed} == {8}
    assert len(fleet.sealed) == 2


def test_a_new_leader_knows_that_the_state_is_written_first() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    crash(fleet, "a0")
    fleet.run_wire()
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.reconnect()
    fleet.wait(40.0)
    assert ended(fleet).outcome is Outcome.COMPLETE
    assert len(fleet.sealed) == 2


def test_a_job_that_is_to_be_suspended_has_all_steps_after_a_crash() -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    fleet.until(lambda: committed(fleet, 6))
    crash(fleet, "a0")
    fleet.tell(a.DesiredState(2, suspended=True))
    over = ended(fleet)
    assert over.outcome is Outcome.SUSPENDED
    assert re.match(r"suspended after (\d+) of 40 steps", over.message)
    assert fleet.sealed[-1].step == int(re.findall(r"after (\d+)", over.message)[0])


def test_an_update_that_raises_on_two_agents_ends_the_job_with_the_optimizer_s_factory() -> None:
    """Each names a layer of its own, so a job of one pipeline was restored to raise once more."""
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    optimizer = fleet.job.spec.training.optimizer.factory
    for layer, agent in enumerate(("a0", "a3")):
        fleet.until(lambda name=agent: name in fleet.arbiter.status().members)
        text = f"the update of step 9 by Opt for layer {layer}, Block: KeyError: 'm'"
        place = f"UPDATE[{layer}:{layer + 1}] 0:4 0:1 @9"
        failure = Failure("UserCodeFailed", text, True, 2, place)
        fleet.receive(AgentId(agent), failure)
        fleet.agents.pop(AgentId(agent))
        if not layer:
            assert fleet.over is None
            fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert over.message.startswith(
        f"a3: UserCodeFailed: {text}; it runs spec.training.optimizer.factory {optimizer}; repair"
    )


def test_a_crash_in_a_sample_is_the_same_for_a_reader_with_other_layers() -> None:
    """A job of one pipeline was restored once more, since its stages were cut otherwise."""
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    crash(fleet, "a0", "F[0:1] m3 @9 reads sample 7 of spec.data")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    crash(fleet, "a2", "F[0:2] m3 @9 reads sample 7 of spec.data")
    over = ended(fleet)
    assert (over.outcome, over.reason) == (Outcome.FAILED, "UserCodeFailed")
    assert f"; it runs spec.data.factory {fleet.job.spec.data.factory}; " in over.message


def test_a_job_that_loses_steps_says_how_many_and_what_is_left() -> None:
    """The only holders crash before they can write."""
    fleet = running(1, 2, steps=40, every=4, mode=NONE)
    fleet.until(lambda: committed(fleet, 5))
    crash(fleet, "a0")
    fleet.add("n0", "z0")
    fleet.until(lambda: committed(fleet, 5))
    crash(fleet, "n0")
    over = ended(fleet)
    assert over.reason == "UserCodeFailed"
    assert re.search(
        r"; \d committed steps since the checkpoint of step 4 are lost \(with a smaller"
        r" spec.checkpoint.everySteps they would be fewer\); 4 committed steps in the"
        r" checkpoint of step 4: spec.checkpoint.from begins a job with it, and accept: \[Code",
        over.message,
    ), over.message


@pytest.mark.parametrize("places", [("", ""), (PLACE, "F[0:1] m3 @10"), (PLACE, "")])
def test_crashes_at_different_places_end_no_job(places: tuple[str, str]) -> None:
    fleet = running(2, 2, steps=40, every=0, mode=REPLICA)
    crash(fleet, "a0", places[0])
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    crash(fleet, "a2", places[1])
    fleet.add("n0", "z0")
    fleet.add("n1", "z1")
    assert ended(fleet).outcome is Outcome.COMPLETE


@pytest.mark.parametrize(("place", "losses"), [(PLACE, 0), ("", 1)])
def test_a_crash_of_users_code_says_nothing_about_nodes(place: str, losses: int) -> None:
    """Auto counts losses by zone."""
    fleet = running(2, 2, steps=40, every=0, mode=RedundancyMode.AUTO)
    before = _losses(fleet)
    crash(fleet, "a0", place)
    assert _losses(fleet) == pytest.approx(before + losses, abs=0.01)


def test_an_agent_that_is_left_out_says_nothing_about_nodes() -> None:
    fleet = failing(2, 2, mode=RedundancyMode.AUTO)
    before = _losses(fleet)
    ended(fleet)
    assert len(lost(fleet)) == 1
    assert _losses(fleet) == pytest.approx(before, abs=0.01)


def _losses(fleet: Fleet) -> float:
    return sum(zone.losses for zone in fleet.arbiter.state.protection.hazard.zones)


def test_facts_of_an_earlier_version_fail_by_the_user_s_code() -> None:
    facts = Durable(failing="x", failing_by="NotFinite")
    written = to_json(facts)
    assert from_json(written) == facts
    del written["failingBy"]
    assert from_json(written).failing_by == "UserCodeFailed"
    assert from_json(to_json(Durable())).failing_by == ""
