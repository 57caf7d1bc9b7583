"""Mode Auto in the arbiter: what the planner is told, what is durable, what status says."""

from __future__ import annotations

import pytest
from tests.core.arbiter.fleet import Fleet, spec
from tests.core.protection.job import layers

from bamboo_core.api.spec import RedundancyMode, TransportSpec
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.arbiter_state.events import ArbiterPhase, DesiredState, Tick
from bamboo_core.model.ids import AgentId
from bamboo_core.protection.hazard import Hazard, ZoneRecord
from bamboo_core.protection.inputs import Source, inputs
from bamboo_core.protocol.messages import CommitRecord, Progress

HOUR = 3600.0
FREE = layers(4, parameter_bytes=0, output_bytes=0, activation_bytes=0)
DEAR = layers(4, parameter_bytes=4 << 30)


def fleet(
    pipelines: int = 2, *, costs: object = FREE, memory_bytes: int = 0, **known: object
) -> Fleet:
    """A job in mode Auto that has started."""
    job = spec(pipelines=pipelines, stages=2, steps=40, mode=RedundancyMode.AUTO, microbatches=8)
    made = Fleet(job, durable=Durable(**known) if known else None)
    zones = ["z0", "z1"] * pipelines
    for i, zone in enumerate(zones):
        made.add(f"a{i}", zone, costs=costs, memory_bytes=memory_bytes)
    return begin(made, pipelines)


def begin(made: Fleet, pipelines: int) -> Fleet:
    made.tell(DesiredState(pipelines))
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    return made


def mode_of(made: Fleet) -> RedundancyMode:
    return made.requests[-1].spec.redundancy.mode


def test_the_planner_gets_a_concrete_mode_and_the_spec_stays() -> None:
    made = fleet()
    assert mode_of(made) is RedundancyMode.REPLICA
    assert made.job.spec.redundancy.mode is RedundancyMode.AUTO
    assert made.arbiter.durable.mode is RedundancyMode.REPLICA
    held = made.arbiter.status().plan
    assert held is not None
    assert all(sum(hi - lo for lo, hi in ranges) == 4 for ranges in held.wants.values())


def test_dear_copies_are_not_taken() -> None:
    made = fleet(costs=DEAR)
    assert mode_of(made) is RedundancyMode.NONE
    assert made.arbiter.durable.mode is RedundancyMode.NONE


def test_copies_that_the_devices_cannot_hold_are_not_taken() -> None:
    made = fleet(costs=layers(4, parameter_bytes=1000), memory_bytes=20_000)
    assert mode_of(made) is RedundancyMode.NONE
    verdict = made.arbiter.status().verdict
    assert verdict is not None
    assert verdict.facts.memory_bytes == 20_000
    assert "Replica cannot be used" in verdict.reason


def test_costs_that_are_not_measured_do_not_stop_a_job() -> None:
    assert mode_of(fleet(costs=())) is RedundancyMode.REPLICA


def test_status_names_mode_reason_and_inputs() -> None:
    status = fleet().arbiter.status()
    assert status.mode is RedundancyMode.REPLICA
    assert status.verdict is not None
    assert status.verdict.facts.pipelines == 2
    assert status.verdict.facts.hazard_per_agent_hour == pytest.approx(0.05)
    assert "Replica costs" in status.verdict.reason


def test_the_network_of_the_spec_counts_and_may_change_at_any_time() -> None:
    seen = Hazard((ZoneRecord("z0", 4.0, 20 * HOUR), ZoneRecord("z1", 4.0, 20 * HOUR)))
    made = fleet(costs=layers(4, parameter_bytes=20_000_000), hazard=seen)
    assert made.arbiter.status().verdict.facts.bytes_per_s == 1.25e9
    assert mode_of(made) is RedundancyMode.NONE
    epoch = made.arbiter.fence.epoch
    made.tell(DesiredState(2, bandwidth_gbps=1000.0))
    assert made.arbiter.fence.epoch == epoch  # no reason to stop
    made.kill("a1")
    made.run()
    assert made.arbiter.status().verdict.facts.bytes_per_s == 1.25e11
    assert mode_of(made) is RedundancyMode.REPLICA
    assert made.job.spec.transport == TransportSpec()


@pytest.mark.parametrize(
    ("measured", "expected", "source"),
    [(1e8, 1e8, Source.MEASURED), (5e9, 1.25e9, Source.SPEC)],
)
def test_what_agents_measure_of_the_network_counts_where_it_is_less(
    measured: float, expected: float, source: Source
) -> None:
    made = fleet(costs=layers(4, parameter_bytes=20_000_000))
    made.arbiter.state.wire._settled = measured
    made.kill("a1")
    made.run()
    verdict = made.arbiter.status().verdict
    assert verdict is not None
    assert verdict.facts.bytes_per_s == expected
    (found,) = [x for x in inputs(verdict.facts) if x.name == "bandwidthGbps"]
    assert (found.value, found.source) == (expected * 8 / 1e9, source)


def test_the_network_counts_for_the_work_of_every_mode() -> None:
    made = Fleet(spec(pipelines=2, stages=2, steps=40, microbatches=8))
    for i, zone in enumerate(["z0", "z1"] * 2):
        made.add(f"a{i}", zone)
    begin(made, 2)
    made.tell(DesiredState(2, bandwidth_gbps=40.0))
    made.kill("a1")
    made.run()
    assert made.requests[0].spec == made.job.spec
    assert made.requests[-1].spec.transport == TransportSpec(bandwidth_gbps=40.0)


def test_another_network_is_no_reason_to_try_agents_without_a_seat_again() -> None:
    made = fleet()
    made.arbiter.state.membership.without_seat = {AgentId("x")}
    made.tell(DesiredState(2, bandwidth_gbps=1000.0))
    assert made.arbiter.state.membership.without_seat == {AgentId("x")}
    made.tell(DesiredState(2, bandwidth_gbps=1000.0, least=2))
    assert made.arbiter.state.membership.without_seat == set()


def test_what_the_agents_measured_is_no_assumption() -> None:
    found = fleet(memory_bytes=1 << 34).arbiter.status().verdict
    assert found is not None
    assert {"forward_s", "memory_bytes", "parameter_bytes"} <= set(found.facts.measured)
    assert "hazard_per_agent_hour" not in found.facts.measured
    bare = fleet(costs=()).arbiter.status().verdict
    assert bare is not None
    assert bare.facts.measured == ()


def test_a_loss_raises_the_hazard_of_its_zone_and_is_durable() -> None:
    made = fleet()
    made.kill("a1")
    made.run()
    assert [z.zone for z in made.arbiter.durable.hazard.zones if z.losses] == ["z1"]
    assert made.requests[-1].spec.redundancy.mode is RedundancyMode.REPLICA
    found = made.arbiter.status().verdict.facts
    assert found.hazard_per_agent_hour > 0.05
    assert "hazard_per_agent_hour" in found.measured


def test_a_new_leader_goes_on_with_mode_and_record() -> None:
    record = Hazard((ZoneRecord("z0", 0.0, 5000 * HOUR), ZoneRecord("z1", 0.0, 5000 * HOUR)))
    made = fleet(costs=DEAR, mode=RedundancyMode.REPLICA, hazard=record)
    assert mode_of(made) is RedundancyMode.NONE  # the other saves much
    # without hazard None is a little cheaper, but not by as much as a change is worth
    cheap = layers(4, parameter_bytes=2_500_000)
    kept = fleet(costs=cheap, mode=RedundancyMode.REPLICA, hazard=record)
    assert mode_of(kept) is RedundancyMode.REPLICA
    afresh = fleet(costs=cheap, hazard=record)
    assert mode_of(afresh) is RedundancyMode.NONE


def test_a_change_of_mode_is_an_ordinary_change_of_plan() -> None:
    made = fleet(costs=layers(4, parameter_bytes=20_000_000))
    before = mode_of(made)
    state = made.arbiter.state
    state.protection.hazard = Hazard((ZoneRecord("z0", 500.0, 100 * HOUR),))
    made.kill("a3")
    made.run()
    assert (before, mode_of(made)) == (RedundancyMode.NONE, RedundancyMode.REPLICA)
    assert made.arbiter.status().phase in (ArbiterPhase.RUNNING, ArbiterPhase.OVER)
    text = [r.message for r in made.records if r.reason == "Planned"]
    assert "redundancy None" in text[0]
    assert "redundancy Replica" in text[-1]


def test_other_modes_leave_no_trace() -> None:
    job = spec(pipelines=2, stages=2, steps=6, mode=RedundancyMode.REPLICA)
    made = Fleet(job)
    made.add_grid(2, 2)
    begin(made, 2)
    made.kill("a1")
    made.run()
    durable = made.arbiter.durable
    assert (durable.mode, durable.hazard) == (None, Hazard())
    assert made.arbiter.status().verdict is None


def test_the_record_survives_json() -> None:
    known = Durable(mode=RedundancyMode.EAGER, hazard=Hazard((ZoneRecord("a", 0.333, 12.0),)))
    assert from_json(to_json(known)) == known
    for value in ({"mode": "Sometimes"}, {"hazard": [["a", "x", 1]]}):
        with pytest.raises(ValueError, match="durable state of the job is unreadable"):
            from_json(to_json(known) | value)


def test_exposure_is_written_as_it_grows() -> None:
    made = fleet()
    written = []
    for _ in range(40):
        made.now += 600.0
        made.tell(Tick())
        written.append(made.arbiter.durable.hazard.agent_hours)
    assert written[-1] > 1
    assert len(set(written)) < 20
    assert made.arbiter.state.protection.hazard.agent_hours < 1.25 * written[-1] + 1


@pytest.mark.parametrize(("beyond", "expected"), [(0, 0.5), (1, 7.0)])
def test_an_interrupted_step_does_not_say_how_long_steps_take(beyond: int, expected: float) -> None:
    """It contains the pause; the first step of a newcomer counts from the newcomer's start."""
    made = fleet()
    in_force = made.arbiter.state.in_force
    assert in_force is not None
    target = in_force.plan.target
    made.until(lambda: made.arbiter.state.ledger.progress.committed >= target + 2)
    for step, seconds in ((target + 2, 0.5), (target + beyond, 7.0)):
        record = CommitRecord(step)
        made.receive(AgentId("a0"), Progress(record, made.arbiter.fence, step_s=seconds))
    assert made.arbiter.state.ledger.usual_s == expected
    made.kill("a3")
    made.run()
    verdict = made.arbiter.status().verdict
    assert verdict is not None
    assert verdict.facts.step_s == expected


def test_the_facts_are_those_of_the_grid_that_the_job_asks_for() -> None:
    """How many of its seats are empty is counted by itself."""
    made = fleet(3)
    made.kill("a5")
    made.kill("a4")
    made.until(lambda: len(made.requests[-1].participants) == 4)
    made.until(lambda: made.arbiter.status().phase is ArbiterPhase.RUNNING)
    verdict = made.arbiter.status().verdict
    assert verdict is not None
    assert verdict.facts.pipelines == 3
    assert made.arbiter.state.protection.seats == (6, 2)
