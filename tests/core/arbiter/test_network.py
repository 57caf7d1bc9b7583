"""The network between agents as they measure it: plans count with it, and say so."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.progress import Goodput, Network
from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.evidence.wire import HOLD_S
from bamboo_core.model.ids import AgentId
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Decision
from bamboo_core.protocol.messages import CommitRecord, LayerCost, Progress
from bamboo_wire import decode, encode

from .fleet import Fleet, spec

COST = LayerCost(1.0, 2.0, 1 << 28, 1, input_gradient_s=1.0, weight_gradient_s=1.0)
MOST = 1.25e9
SLOW = 0.25e9
PLAN_S = 60.0  # between two plans because of the network


def running(policy: RecoveryPolicy = RecoveryPolicy.DIFFUSE) -> Fleet:
    job = spec(pipelines=2, stages=2, steps=10_000)
    job.__dict__["recovery"] = policy
    return started(Fleet(job, layers=2))


def started(fleet: Fleet) -> Fleet:
    for n in range(4):
        fleet.add(f"a{n}", f"z{n % 2}", costs=(COST, COST))
    fleet.tell(a.DesiredState(2))
    settle(fleet)
    return fleet


def settle(fleet: Fleet) -> None:
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.run_wire()


def train(fleet: Fleet, seconds: float, goodput: Goodput | None) -> None:
    """A step each second, until that time has passed or there is another plan."""
    fence = fleet.arbiter.fence
    first = max(fleet.arbiter.status().progress.committed, 0) + 1
    for step in range(first, first + round(seconds)):
        fleet.idle(1.0)
        for name in sorted(fleet.agents):
            fleet.receive(name, Progress(CommitRecord(step), fence, 1.0, goodput=goodput))
        if fleet.arbiter.fence != fence:
            return


def lose(fleet: Fleet) -> None:
    """One seat stays empty."""
    fleet.kill("a2")
    settle(fleet)
    assert fleet.arbiter.status().plan is not None


def planned(fleet: Fleet) -> a.Record:
    return [r for r in fleet.records if r.reason is EventReason.PLANNED][-1]


def test_a_plan_after_a_loss_counts_with_what_was_measured() -> None:
    fleet = running()
    assert planned(fleet).facts[EventFact.NETWORK_GBPS] == 10.0
    assert "network" not in planned(fleet).message
    train(fleet, HOLD_S + 2, Goodput(SLOW, SLOW))
    assert fleet.arbiter.status().network == Network(SLOW, SLOW)
    lose(fleet)
    assert fleet.requests[-1].goodput == SLOW
    assert fleet.requests[-1].bytes_per_s == SLOW
    assert planned(fleet).facts[EventFact.NETWORK_GBPS] == 2.0
    assert planned(fleet).message.endswith("network as measured: 2.0 Gb/s")


def test_the_spec_stays_the_upper_bound() -> None:
    fleet = running()
    train(fleet, 3 * HOLD_S, Goodput(100 * MOST, 100 * MOST))
    lose(fleet)
    assert fleet.requests[-1].bytes_per_s == MOST
    assert planned(fleet).facts[EventFact.NETWORK_GBPS] == 10.0
    assert "network" not in planned(fleet).message


def test_agents_that_tell_nothing_change_nothing() -> None:
    fleet = running()
    train(fleet, 3 * HOLD_S, None)
    lose(fleet)
    assert fleet.requests[-1].bytes_per_s == MOST
    assert fleet.arbiter.status().network == Network(MOST)


@pytest.mark.parametrize("policy", RecoveryPolicy)
def test_lost_work_is_dealt_anew_when_the_network_turns_out_to_be_slow(
    policy: RecoveryPolicy,
) -> None:
    """With Shadow one agent does all of it, whatever the network gives."""
    fleet = running(policy)
    lose(fleet)
    before = fleet.arbiter.fence
    train(fleet, PLAN_S - 5, Goodput(SLOW, SLOW))
    assert fleet.arbiter.fence == before  # plans for it are rare
    train(fleet, 15.0, Goodput(SLOW, SLOW))
    assert (fleet.arbiter.fence == before) is (policy is RecoveryPolicy.SHADOW)
    if policy is RecoveryPolicy.SHADOW:
        return
    stopped = [r for r in fleet.records if r.reason is EventReason.STOPPED][-1]
    assert "the network is slower or faster than the plan expects" in stopped.message
    settle(fleet)
    assert fleet.requests[-1].bytes_per_s == SLOW
    after = fleet.arbiter.fence
    train(fleet, 3 * PLAN_S, Goodput(1.2 * SLOW, 1.2 * SLOW))
    assert fleet.arbiter.fence == after


def test_a_full_grid_is_not_planned_again_for_the_network() -> None:
    fleet = running()
    before = fleet.arbiter.fence
    train(fleet, 4 * PLAN_S, Goodput(SLOW, SLOW))
    assert fleet.arbiter.fence == before
    assert fleet.arbiter.status().network.planned == SLOW


def test_figures_of_lost_agents_are_forgotten() -> None:
    fleet = running()
    train(fleet, 2.0, Goodput(SLOW, SLOW))
    fleet.receive("a2", Progress(CommitRecord(9), fleet.arbiter.fence, goodput=Goodput(1.0, 1.0)))
    lose(fleet)
    assert fleet.arbiter.status().network.measured == SLOW
    assert AgentId("a2") not in fleet.arbiter.state.wire._told


def test_a_log_of_what_agents_said_gives_the_same_requests() -> None:
    """The figure of a plan follows from messages alone, as they come from the wire."""
    fleet, log = Fleet(spec(pipelines=2, stages=2, steps=10_000), layers=2), []
    handle = fleet.arbiter.handle

    def logged(event: a.Event, now: float, heard_at: float) -> list[a.Effect]:
        log.append((event, now, heard_at))
        return handle(event, now, heard_at)

    fleet.arbiter.handle = logged  # type: ignore[method-assign, assignment]
    started(fleet)
    rates = [SLOW * (1 + n % 7 / 50) for n in range(40)]
    for rate in rates:
        train(fleet, 1.0, Goodput(rate, 2 * rate))
    lose(fleet)
    again = Arbiter(fleet.job, Durable(), 1)
    requests = []
    for event, now, heard_at in log:
        is_said = isinstance(event, a.Received) and isinstance(event.message, Progress)
        effects = again.handle(from_wire(event) if is_said else event, now, heard_at)
        requests += [x.request for x in effects if isinstance(x, a.ComputePlan)]
    assert requests == fleet.requests
    assert requests[-1].goodput < MOST
    assert [next(planner.compute(x)) for x in requests] == [
        x for x in fleet.plans if isinstance(x, Decision)
    ]


def from_wire(event: a.Received) -> a.Received:
    return a.Received(event.agent, decode.agent_message(encode.agent_message(event.message)))


def test_a_new_leader_begins_without_figures() -> None:
    """It learns them again from what agents repeat with each step."""
    fleet = running()
    train(fleet, HOLD_S + 2, Goodput(SLOW, SLOW))
    assert fleet.arbiter.status().network.planned == SLOW
    fleet.restart()
    fleet.tell(a.DesiredState(2))
    fleet.reconnect()
    settle(fleet)
    assert fleet.requests[-1].bytes_per_s == MOST
    train(fleet, HOLD_S + 2, Goodput(SLOW, SLOW))
    assert fleet.arbiter.status().network == Network(SLOW, SLOW)
