"""What mode Auto measures in a job: undisturbed steps, and what losses cost in time."""

from __future__ import annotations

from math import inf, nan

import pytest
from tests.core.arbiter.fleet import Fleet, committed, spec
from tests.core.protection.job import layers, usual
from tests.core.protection.job import spec as job

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.arbiter_state.events import ArbiterPhase, DesiredState, Tick, Timing
from bamboo_core.model.ids import AgentId
from bamboo_core.protection.choice import Facts, choose
from bamboo_core.protection.facts import Seen, gather
from bamboo_core.protection.measured import EmptySeats, Measured, interrupted_s
from bamboo_core.protocol.messages import CommitRecord, Manifest, Progress, Sealed

SMALL = layers(4, parameter_bytes=1000, output_bytes=0, activation_bytes=0)
LAST = 200


def fleet(
    pipelines: int = 2,
    *,
    mode: RedundancyMode = RedundancyMode.AUTO,
    catch_up_above_bytes: float = 256e6,
    every: int = 4,
) -> Fleet:
    """A job of 2 stages that has committed some steps of a second each."""
    made = Fleet(
        spec(pipelines=pipelines, stages=2, steps=LAST, mode=mode, microbatches=8, every=every),
        timing=Timing(join_grace_s=0.0, catch_up_above_bytes=catch_up_above_bytes),
    )
    made.step_s = 1.0
    for i in range(2 * pipelines):
        add(made, f"a{i}")
    made.tell(DesiredState(pipelines))
    train(made, 4)
    return made


def add(made: Fleet, name: str) -> None:
    zone = f"z{int(name[1:]) % 2}"
    made.add(name, zone, costs=SMALL)


def train(made: Fleet, steps: int) -> None:
    """Each step takes ``step_s`` of the fleet's clock, and ends with the commit."""
    for _ in range(steps):
        made.now += made.step_s
        step = made.arbiter.status().progress.committed + 1
        made.until(lambda step=step: committed(made, step))  # type: ignore[misc]


def kill(made: Fleet, name: str, *, pause_s: float) -> None:
    """Halfway in a step; afterwards training stands still, and the rest of the step follows."""
    made.now += made.step_s / 2
    made.kill(name)
    made.until(lambda: made.arbiter.status().phase is not ArbiterPhase.RUNNING)
    made.now += pause_s
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    made.now += made.step_s / 2
    step = made.arbiter.status().progress.committed + 1
    made.until(lambda: committed(made, step))


def join(made: Fleet, name: str) -> None:
    epoch = made.arbiter.fence.epoch
    add(made, name)
    made.until(lambda: made.arbiter.fence.epoch > epoch)
    train(made, 2)


def verdict(made: Fleet) -> Facts:
    found = made.arbiter.status().verdict
    assert found is not None
    return found.facts


def measured(made: Fleet) -> Measured:
    return made.arbiter.durable.measured


def empty(made: Fleet) -> EmptySeats:
    return made.arbiter.durable.empty


def test_slower_steps_with_an_empty_seat_are_not_undisturbed() -> None:
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    made.step_s = 1.6
    train(made, 4)
    join(made, "b1")
    assert len(made.requests[-1].participants) == 4
    assert verdict(made).step_s == 1.0
    assert "step_s" in verdict(made).measured


def test_limits_on_waiting_follow_the_slower_steps() -> None:
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    made.step_s = 1.6
    train(made, 4)
    assert made.arbiter.state.ledger.usual_s == 1.6


def test_steps_while_learners_get_copies_are_not_undisturbed() -> None:
    made = fleet(pipelines=1, catch_up_above_bytes=1.0)
    for name in ("b0", "b1"):
        add(made, name)
    made.tell(DesiredState(2))
    made.until(lambda: bool(made.arbiter.status().plan.learners))  # type: ignore[union-attr]
    made.step_s = 1.6
    in_force = made.arbiter.state.in_force
    assert in_force is not None
    assert in_force.plan.holes == 0
    progress = Progress(CommitRecord(in_force.plan.target + 1), made.arbiter.fence, step_s=1.6)
    made.receive(in_force.plan.live[0], progress)
    assert made.arbiter.state.ledger.usual_s == 1.6
    assert made.arbiter.state.protection.measured.step_s == 1.0


def test_a_step_of_a_smaller_grid_is_scaled() -> None:
    """One pipeline of two has twice the micro-batches: 8 + 1 slots, and not 4 + 1. The mode is
    chosen for the grid that the job asks for."""
    made = fleet()
    for name in ("a3", "a2"):
        kill(made, name, pause_s=0.0)
    assert len(made.requests[-1].participants) == 2
    assert (verdict(made).pipelines, verdict(made).step_s) == (2, 1.0)
    made.step_s = 1.8
    train(made, 3)
    made.kill("a1")
    made.run()
    assert verdict(made).step_s == pytest.approx(1.8 * 5 / 9)


@pytest.mark.parametrize("pause_s", [0.0, 3.0, 30.0])
def test_the_pause_of_a_loss_is_measured_as_the_model_counts_it(pause_s: float) -> None:
    """From commit to commit, less what the model expects of the step without a stop."""
    made = fleet()
    known = made.arbiter.status().verdict
    assert known is not None
    expected_s = interrupted_s(known, known.mode, 1.0)
    assert expected_s is not None
    assert expected_s > 1.0
    kill(made, "a3", pause_s=pause_s)
    assert measured(made).stops == (
        pytest.approx(max(0.001, 1.0 + pause_s - expected_s), abs=1e-3),
    )
    train(made, 1)
    kill(made, "a2", pause_s=0.0)
    assert verdict(made).stop_s == measured(made).stops[0]
    assert "stop_s" in verdict(made).measured


def test_only_a_loss_from_a_whole_grid_is_measured() -> None:
    """Work of others for an empty seat is no part of the expected step."""
    made = fleet()
    kill(made, "a3", pause_s=3.0)
    made.step_s = 1.6
    train(made, 2)
    known = measured(made).stops
    assert len(known) == 1
    kill(made, "a1", pause_s=9.0)
    train(made, 2)
    assert measured(made).stops == known


def test_a_loss_in_a_grid_without_a_measured_step_is_not_measured() -> None:
    made = fleet()
    for name in ("a3", "a2"):
        kill(made, name, pause_s=0.0)
    known = measured(made).stops
    assert len(known) == 1
    plan = made.arbiter.status().plan
    assert plan is not None
    assert (len(plan.pipelines), plan.holes) == (1, 0)
    kill(made, "a1", pause_s=9.0)
    assert measured(made).stops == known


def test_a_commit_that_comes_while_training_stands_still_ends_no_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step that the loss has interrupted began with it, and nobody knew."""
    made = fleet()
    newest = made.arbiter.status().progress.committed
    late: list[tuple[AgentId, Progress]] = []
    told = made.receive

    def receive(agent: AgentId, message: object) -> None:
        if isinstance(message, Progress) and message.commit.step > newest:
            late.append((agent, message))
        else:
            told(agent, message)

    monkeypatch.setattr(made, "receive", receive)
    made.now += 1.0
    made.until(lambda: bool(late))
    monkeypatch.undo()
    made.kill(next(name for name in sorted(made.agents) if name != late[0][0]))
    told(*late[0])
    made.now += 9.0
    train(made, 2)
    assert measured(made).stops == ()


def test_a_loss_during_another_change_is_not_measured() -> None:
    made = fleet()
    made.tell(DesiredState(1))
    assert made.arbiter.status().phase is ArbiterPhase.COLLECTING
    made.now += 9.0
    made.kill("a3")
    train(made, 2)
    assert measured(made).stops == ()


def test_a_change_without_a_loss_is_no_pause_of_a_loss() -> None:
    made = fleet()
    made.tell(DesiredState(1))
    made.now += 9.0
    train(made, 2)
    assert measured(made).stops == ()


def test_waiting_for_agents_is_no_pause_of_a_loss() -> None:
    made = fleet()
    made.tell(DesiredState(2, least=2))
    for name in ("a1", "a2", "a3"):
        made.kill(name)
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.HOLDING)
    made.now += 500.0
    for name in ("b1", "b2", "b3"):
        add(made, name)
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    train(made, 2)
    assert made.arbiter.durable.attempt == 0
    assert measured(made).stops == ()
    seats = made.arbiter.state.protection.empty
    assert (seats.refilled, seats.empty_s) == (
        pytest.approx(3, rel=0.02),
        pytest.approx(3 * 501, abs=20),
    )


def test_a_seat_is_empty_from_the_loss_until_an_agent_has_it() -> None:
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    train(made, 20)
    assert empty(made).refilled == 0
    join(made, "b1")
    found = empty(made)
    assert found.refilled == pytest.approx(1, abs=0.001)
    assert found.empty_s == pytest.approx(0.5 + 20.0, abs=2.0)
    kill(made, "a2", pause_s=0.0)
    facts = verdict(made)
    assert facts.refill_s == pytest.approx((180 + found.empty_s) / 2, abs=0.5)
    assert {"refill_s", "empty_share", "step_s"} <= set(facts.measured)


def test_a_seat_that_stays_empty_counts_while_it_is_empty() -> None:
    """Nobody waits until it is taken again, which may be never."""
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    before = made.arbiter.state.protection.empty
    made.step_s = 120.0
    for _ in range(30):
        train(made, 1)
        made.tell(Tick())
    found = made.arbiter.state.protection.empty
    assert found.empty_s - before.empty_s == pytest.approx(3600, rel=0.03)
    assert found.seat_s - before.seat_s == pytest.approx(4 * 3600, rel=0.03)
    assert empty(made).empty_s > 0.7 * found.empty_s  # it is written as it grows
    assert found.length_s(180.0) > 3600


def test_a_seat_of_a_pipeline_that_nobody_wants_is_not_taken_again() -> None:
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    made.tell(DesiredState(1))
    train(made, 3)
    found = made.arbiter.state.protection
    assert (found.seats, found.empty.refilled) == ((2, 0), 0)


def test_a_suspended_job_does_not_wait_for_agents() -> None:
    made = fleet()
    kill(made, "a3", pause_s=0.0)
    made.tell(DesiredState(2, suspended=True))
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.OVER)
    made.now += 1000.0
    made.tell(DesiredState(2))
    for name in ("b0", "b1", "b2", "b3"):
        add(made, name)
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    train(made, 2)
    assert made.arbiter.state.protection.empty.empty_s < 10


@pytest.mark.parametrize("step_s", [0.0, -1.0, inf, nan])
def test_a_made_up_step_is_not_believed(step_s: float) -> None:
    """Status is JSON, which has no infinity."""
    made = fleet()
    made.step_s = 1.0
    newest = made.arbiter.status().progress.committed
    made.receive(AgentId("a0"), Progress(CommitRecord(newest), made.arbiter.fence, step_s=step_s))
    assert made.arbiter.state.protection.measured.step_s == 1.0


def test_an_attempt_from_the_start_is_no_restart_from_a_checkpoint() -> None:
    made = fleet(pipelines=1, every=0)
    made.kill("a0")
    made.kill("a1")
    made.run()
    add(made, "b0")
    add(made, "b1")
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    assert made.arbiter.durable.attempt == 1
    made.now += 20.0
    train(made, 2)
    assert measured(made).restarts == ()


def test_a_restart_is_measured_without_the_wait_for_agents() -> None:
    made = fleet(pipelines=1)
    newest = made.arbiter.status().progress.committed
    made.sealed.append(Manifest(0, newest + 1, "0/4", "d"))
    made.receive(AgentId("a0"), Sealed(made.sealed[-1]))
    made.kill("a0")
    made.kill("a1")
    made.run()
    made.now += 100.0
    add(made, "b0")
    add(made, "b1")
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    assert made.arbiter.durable.attempt == 1
    made.now += 20.0
    train(made, 1)
    assert measured(made).restarts == (20.0,)
    found = made.arbiter.state.protection.empty
    assert found.refilled == pytest.approx(2, abs=0.01)
    assert found.empty_s == pytest.approx(200, abs=5)
    assert measured(made).stops == ()  # though the first new commit is that of the lost step


def test_what_was_measured_survives_the_operator() -> None:
    made = fleet()
    kill(made, "a3", pause_s=3.0)
    train(made, 5)
    join(made, "b1")
    known, seats = measured(made), empty(made)
    assert known.stops
    assert seats.refilled
    share = verdict(made).share
    made.restart()
    assert made.arbiter.state.protection.empty == seats
    made.reconnect()
    made.tell(DesiredState(2))
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    found = verdict(made)
    assert (found.step_s, found.stop_s) == (known.step_s, known.stops[0])
    assert found.refill_s == pytest.approx(seats.length_s(180.0), rel=0.05)
    assert found.share == pytest.approx(share, rel=0.05)
    assert "empty_share" in found.measured


def test_other_modes_measure_nothing() -> None:
    made = fleet(mode=RedundancyMode.REPLICA)
    kill(made, "a3", pause_s=3.0)
    train(made, 5)
    join(made, "b1")
    assert measured(made) == Measured()


def test_the_newest_durations_count() -> None:
    known = Measured()
    for seconds in (500.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        known = known.restarted(seconds)
    assert known.restarts == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert Measured().stopped(-3.0).stops == (0.001,)  # 0 would mean that nothing is known


def test_the_record_survives_json() -> None:
    seats = EmptySeats(7200.0, 360.0, 20.0, 1.5)
    known = Durable(measured=Measured(2, 1.25, (0.5,), (9.0,)), empty=seats)
    assert from_json(to_json(known)) == known
    earlier = to_json(known) | {"measured": [2, 1.25, [0.5], [40.0, 60.125], [9.0]]}
    assert from_json(earlier) == known
    with pytest.raises(ValueError, match="durable state of the job is unreadable"):
        from_json({"measured": [2, 1.25, ["x"], [], []]})
    with pytest.raises(ValueError, match="durable state of the job is unreadable"):
        from_json({"emptySeats": [1.0, "x", 0.0, 0.0]})


def test_measured_durations_take_the_place_of_assumptions() -> None:
    seats = EmptySeats(80 * 3600.0, 33.0 * 99 - 147, 0.0, 98.0)
    seen = Seen(0.1, stop_s=2.5, empty=seats, restart_s=7.0)
    found = gather(job(), layers(), seen, pipelines=2)
    assert (found.stop_s, found.refill_s, found.restart_s) == (2.5, 33.0 + 33.0 / 99, 7.0)
    assert found.measured == ("empty_share", "empty_together", "refill_s", "restart_s", "stop_s")
    assert gather(job(), layers(), Seen(0.1), pipelines=2).measured == ()


def test_a_fatal_loss_has_no_expected_length() -> None:
    known = choose(usual(bare=None, pipelines=1))
    assert interrupted_s(known, RedundancyMode.NONE, 1.0) is None
    assert interrupted_s(known, RedundancyMode.REPLICA, 0.0) is None
    assert interrupted_s(known, RedundancyMode.REPLICA, 2.0) == pytest.approx(2.0 * 2.1 / 2 + 0.8)
