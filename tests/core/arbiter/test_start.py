"""When a job starts, who is refused, and what must be durable before anything leaves."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter import events as a
from bamboo_core.arbiter.durable import Durable
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import (
    BadCheckpoint,
    CommitRecord,
    Directive,
    Fingerprint,
    Hello,
    Progress,
    Stop,
)

from .fleet import Fleet, spec


def started(pipelines: int = 1, stages: int = 2, **options: object) -> Fleet:
    fleet = Fleet(spec(pipelines=pipelines, stages=stages, **options), layers=stages)  # type: ignore[arg-type]
    fleet.add_grid(pipelines, stages)
    fleet.tell(a.DesiredState(pipelines))
    return fleet


def orders(fleet: Fleet, kind: type) -> list[object]:
    return [m for to, m in fleet.wire if to and isinstance(m, kind)]


def test_a_job_trains_to_its_end() -> None:
    fleet = started(steps=4)
    fleet.run()
    assert fleet.over == a.Over(Outcome.COMPLETE, "StepsReached", "all 4 steps are committed")
    assert {step for _, step in fleet.commits} == {0, 1, 2, 3, 4}  # 4: the epilogue
    assert not fleet.agents  # all released
    assert [m.step for m in fleet.arbiter.durable.manifests] == [2, 4]


def test_a_job_whose_last_checkpoint_cannot_be_written_has_failed() -> None:
    fleet = started(steps=4)
    while not any(step == 3 for _, step in fleet.commits):
        assert fleet.step()
    fleet.receive(AgentId("a0"), BadCheckpoint(0, 4, "disk full"))
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, "CheckpointFailed")
    assert "spec.checkpoint.uri" in fleet.over.message


def test_nothing_starts_without_a_goal() -> None:
    fleet = Fleet(spec())
    fleet.add_grid(1, 2)
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING


def test_too_few_agents_are_waited_for() -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0")
    fleet.run()
    assert "1 agents are ready" in fleet.arbiter.status().detail


def test_an_agent_that_was_silent_before_the_start_counts_again_on_contact() -> None:
    fleet = Fleet(spec(steps=4))
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0")
    fleet.run()
    fleet.tell(a.Lost(AgentId("a0"), False, "not heard of"))
    fleet.add("a1", "z1")
    fleet.run_wire()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING
    fleet.wait(1.0)  # a heartbeat of each, and ticks
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_neighbours_in_one_zone_do_not_start() -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0")
    fleet.add("a1", "z0")
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING


def test_expected_agents_are_given_a_while() -> None:
    fleet = Fleet(spec(pipelines=2, stages=1), layers=1)
    fleet.tell(a.DesiredState(2, expected=frozenset({"a0", "a1"})))  # type: ignore[arg-type]
    fleet.add("a0", "z0")
    fleet.run()
    assert fleet.arbiter.status().phase is a.ArbiterPhase.WAITING
    fleet.wait(11.0)
    assert fleet.over is not None


@pytest.mark.parametrize(
    ("ready", "reason", "words"),
    [
        ({"fingerprint": Fingerprint(torch="2.9")}, "FingerprintMismatch", "torch of agent a1"),
        ({"training_samples": 3}, "DataTooSmall", "gives 3 samples, fewer than"),
        ({"validation_samples": 0}, "DataTooSmall", "spec.data.validation.factory"),
        ({"layers": 1}, "TooFewLayers", "gives 1 layers, fewer than spec.pipelines.stages 2"),
    ],
)
def test_an_unfit_agent_fails_a_job_that_never_ran(
    ready: dict[str, object], reason: str, words: str
) -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0")
    fleet.add("a1", "z1", **ready)
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, reason)
    assert words in fleet.over.message


def test_an_unfit_newcomer_is_sent_away_from_a_running_job() -> None:
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.add("b0", "z0", fingerprint=Fingerprint(code="other"))
    fleet.until(lambda: "b0" in fleet.dismissed)
    assert fleet.over is None


def test_the_term_is_durable_before_the_first_stop() -> None:
    fleet = Fleet(spec())
    fleet.hold_persists = True
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert not orders(fleet, Stop)
    assert fleet.persists[-1].durable.term == 1
    fleet.tell(a.Persisted(fleet.persists[-1].version))
    assert len(orders(fleet, Stop)) == 2


def test_a_plan_is_durable_before_its_directives() -> None:
    fleet = started()
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.PLANNING)
    fleet.hold_persists = True
    fleet.run()
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert not orders(fleet, Directive)
    durable = fleet.persists[-1].durable
    assert (durable.plan, durable.voters) == (plan.fence, plan.live)
    fleet.tell(a.Persisted(fleet.persists[-1].version))
    assert len(orders(fleet, Directive)) == 2


def test_a_newer_leader_silences_this_one() -> None:
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    hello = Hello("x", "x", "x", "z0", "x", "x:1", "x:2", fence=Fence(0, 2, 1))  # type: ignore[arg-type]
    fleet.tell(a.Connected(hello, b""))
    assert fleet.records[-1].reason is EventReason.LEADERSHIP_LOST
    assert fleet.arbiter.handle(a.Tick(), 99.0) == []


def test_an_arbiter_of_an_old_term_is_born_silent() -> None:
    fleet = Fleet(spec(), durable=Durable(term=7))
    assert fleet.arbiter.handle(a.DesiredState(1), 0.0) == []


def test_strangers_are_not_listened_to() -> None:
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    before = fleet.arbiter.status()
    fleet.receive("stranger", Progress(CommitRecord(30)))  # type: ignore[arg-type]
    assert fleet.arbiter.status() == before


def test_equal_goals_change_nothing() -> None:
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fence = fleet.arbiter.fence
    fleet.now += 60.0
    fleet.tell(a.DesiredState(1, expected=frozenset({"b"})))  # type: ignore[arg-type]
    assert fleet.arbiter.fence == fence
