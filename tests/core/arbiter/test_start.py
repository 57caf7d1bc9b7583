"""When a job starts, who is refused, and what must be durable before anything leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import Channel, Encryption, TransportSpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Cause,
    CommitRecord,
    Directive,
    Disputed,
    Failure,
    Fingerprint,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Progress,
    Stop,
    Suspicion,
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


def test_a_job_whose_last_checkpoint_is_torn_has_failed() -> None:
    fleet = started(steps=4)
    while not any(step == 3 for _, step in fleet.commits):
        assert fleet.step()
    for agent in ("a0", "a1"):
        fence = fleet.arbiter.fence
        fleet.receive(AgentId(agent), BadCheckpoint(0, 4, "not complete", fence=fence))
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
    assert "1 agent ready" in fleet.arbiter.status().detail


def test_the_channel_is_known_once_an_agent_is_ready() -> None:
    fleet = Fleet(replace(spec(), transport=TransportSpec(encryption=Encryption.OFF)))
    assert fleet.arbiter.status().route is None
    fleet.add("a0", "z0", fingerprint=Fingerprint(device="cuda:X"), nccl="2.30")
    route = fleet.arbiter.status().route
    assert route is not None
    assert (route.channel, route.backend) == (Channel.PROCESS_GROUP, "nccl")
    assert "NCCL 2.30" in route.reason


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
        ({"training_samples": 3}, "DataTooSmall", "gives 3 samples, fewer than"),
        ({"validation_samples": 0}, "DataTooSmall", "spec.data.validation.factory"),
        ({"layers": 1}, "TooFewLayers", "gives 1 layers, fewer than spec.pipelines.stages 2"),
    ],
)
def test_two_unfit_agents_fail_a_job_that_never_ran(
    ready: dict[str, object], reason: str, words: str
) -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0", **ready)
    fleet.run()
    assert fleet.over is None
    assert "a0" in fleet.dismissed
    fleet.add("a1", "z1", **ready)
    fleet.run()
    assert fleet.over is not None
    assert (fleet.over.outcome, fleet.over.reason) == (Outcome.FAILED, reason)
    assert words in fleet.over.message


def test_a_job_that_is_over_does_not_end_again() -> None:
    """The error of an agent that has died before may be heard later."""
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    names = [AgentId(f"a{n}") for n in range(3)]
    for name in names:
        fleet.tell(a.Connected(Hello(name, name, name, "z", name, "", ""), b""))
    fleet.tell(a.Lost(names[0], True, "the pod is gone"))
    for name in names[1:]:
        fleet.receive(name, Failure("UserCodeFailed", "too bad", True, 2))
    fleet.run()
    before = (fleet.over, fleet.arbiter.status())
    assert fleet.over is not None
    assert fleet.over.message == "a2: UserCodeFailed: too bad"
    fleet.receive(names[0], Failure("UserCodeFailed", "worse", True, 2))
    fleet.run()
    assert (fleet.over, fleet.arbiter.status()) == before


def test_one_unfit_agent_is_replaced_before_the_start() -> None:
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    fleet.add("a0", "z0")
    fleet.add("a1", "z1", training_samples=3)
    fleet.run()
    assert "a1" in fleet.dismissed
    fleet.add("a2", "z1")
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


@pytest.mark.parametrize("odd", ["a0", "a1", "a2"])
def test_the_one_that_differs_from_most_is_refused(odd: str) -> None:
    """Whoever came first: two of three agents agree, so the third one is the odd one."""
    fleet = Fleet(spec())
    for n, name in enumerate(("a0", "a1", "a2")):
        fleet.add(
            name, f"z{n}", **({"fingerprint": Fingerprint(torch="2.9")} if name == odd else {})
        )
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.dismissed[0] == odd
    (refused,) = (r for r in fleet.records if r.reason is EventReason.AGENT_REFUSED)
    assert refused.severity is Severity.WARNING
    other = "a1" if odd == "a0" else "a0"
    assert f"torch of agent {odd} is '2.9', of agent {other} ''" in refused.message
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


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


@pytest.mark.parametrize("term", [2, 1 << 40])
def test_no_hello_deposes_the_leader(term: int) -> None:
    """Terms come from the Lease. The agent hears our term, so that it looks for a later leader."""
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    before = fleet.arbiter.status()
    for name in ("x", before.members[0]):
        hello = Hello(AgentId(name), "x", "x", "z0", "x", "x:1", "x:2", fence=Fence(0, term, 1))
        effects = fleet.arbiter.handle(a.Connected(hello, b""), fleet.now)
        assert [e.message.term for e in effects if isinstance(e, a.Send)] == [1]  # type: ignore[union-attr]
        assert len(effects) == 1
    assert fleet.arbiter.status() == before
    fleet.run()
    assert fleet.arbiter.status().outcome is Outcome.COMPLETE


@pytest.mark.parametrize(
    "message",
    [
        Progress(CommitRecord(30), Fence(0, 1 << 40, 1)),
        AgentReport(Fence(0, 1, 1), Fence(0, 1 << 40, 1), {}, frozenset()),
        Heartbeat(1, 1, 1, Fence(0, 1 << 40, 1)),
        Left(Fence(0, 1 << 40, 1)),
        Finished(Fence(0, 1 << 40, 1)),
        Disputed(Fence(0, 1 << 40, 1), 0, ()),
        Suspicion(AgentId("a00"), Cause.LIVENESS_CLOSED, Fence(0, 1 << 40, 1)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_no_message_of_a_later_term_counts(message: AgentMessage) -> None:
    fleet = started(steps=40)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    before = fleet.arbiter.status()
    assert fleet.arbiter.handle(a.Received(before.members[0], message), fleet.now) == []
    assert fleet.arbiter.status() == before


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


@pytest.mark.parametrize(("known", "smallest"), [((0, 0), 0), ((16, 0), 16), ((16, 8), 8)])
def test_a_plan_reckons_with_the_smallest_memory_that_is_known(
    known: tuple[int, int], smallest: int
) -> None:
    fleet = Fleet(spec())
    for i, memory_bytes in enumerate(known):
        fleet.add(f"a{i}", f"z{i}", memory_bytes=memory_bytes)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: bool(fleet.requests))
    assert fleet.requests[-1].memory_bytes == smallest


def test_the_status_counts_the_live_copies_of_each_layer() -> None:
    """Every agent also holds the layers of another stage."""
    fleet = started(stages=3)
    assert fleet.arbiter.status().copies == {}
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.status().copies == {0: 2, 1: 2, 2: 2}
    plan = fleet.arbiter.status().plan
    assert plan is not None
    lost = layers_of(plan.wants[AgentId("a1")])
    fleet.kill("a1")
    assert fleet.arbiter.status().copies == {x: 1 if x in lost else 2 for x in range(3)}
    fleet.run()
    assert fleet.over is not None
    assert fleet.arbiter.status().copies == {}


def test_agents_that_do_not_know_a_digest_go_with_most() -> None:
    """Agents of the version before equal all; those that know another digest are the odd ones."""
    fleet = Fleet(spec())
    for n, products in enumerate(("", "one", "two", "two")):
        fleet.add(f"a{n}", f"z{n}", fingerprint=Fingerprint(products=products))
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.dismissed[0] == "a1"
    assert [r.agents for r in fleet.records if r.reason is EventReason.AGENT_REFUSED] == [("a1",)]
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_of_two_agents_the_first_one_wins() -> None:
    fleet = Fleet(spec())
    for n, weights in enumerate(("one", "two")):
        fleet.add(f"a{n}", f"z{n}", fingerprint=Fingerprint(weights=weights))
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: bool(fleet.dismissed))
    assert fleet.dismissed == ["a1"]
    fleet.add("b0", "z1", fingerprint=Fingerprint())
    fleet.run()
    assert "b0" not in fleet.dismissed[:2]
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_newcomer_must_fit_every_member() -> None:
    """The first member does not know the digest by which the second one differs."""
    fleet = Fleet(spec(steps=40))
    for n, products in enumerate(("", "one")):
        fleet.add(f"a{n}", f"z{n}", fingerprint=Fingerprint(products=products))
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    fleet.add("b0", "z0", fingerprint=Fingerprint(products="one"))
    fleet.add("b1", "z0", fingerprint=Fingerprint(products="two"))
    fleet.until(lambda: "b1" in fleet.dismissed)
    (refused,) = (r for r in fleet.records if r.reason is EventReason.AGENT_REFUSED)
    assert refused.facts[EventFact.CAUSE] == Reason.DEVICE_DIFFERS
    assert "products of agent b1 () is 'two', of agent a1 () 'one'" in refused.message


def test_other_processors_never_end_a_job() -> None:
    """However many there are before the start: no code of the user is at fault."""
    fleet = Fleet(spec())
    for n in range(3):
        fleet.add(f"a{n}", f"z{n}", fingerprint=Fingerprint(device="cpu:one"))
    for n in range(3, 5):
        fleet.add(f"a{n}", f"z{n}", fingerprint=Fingerprint(device="cpu:two"))
    fleet.tell(a.DesiredState(1))
    fleet.run()
    assert fleet.dismissed[:2] == ["a3", "a4"]
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
