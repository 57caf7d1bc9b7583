"""Agents whose image is of another version of Bamboo: they would not understand their programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import FailureCause
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import LANGUAGE

from .fleet import Fleet, committed, spec

OTHERS = [0, LANGUAGE + 1]


def refused(fleet: Fleet) -> list[a.Record]:
    return [r for r in fleet.records if r.reason is EventReason.AGENT_REFUSED]


@pytest.mark.parametrize("language", OTHERS)
def test_they_are_refused_and_the_job_begins_with_others(language: int) -> None:
    """However many there are: the image can be built anew, so the job does not end."""
    fleet = Fleet(spec())
    fleet.tell(a.DesiredState(1))
    agents = [fleet.add(f"a{n}", f"z{n % 2}", language) for n in range(4)]
    fleet.run()
    assert fleet.over is None
    assert [x.released for x in agents] == 4 * [ExitCode.FENCED]
    assert {x.executor.fence for x in agents} == {Fence()}, "they have heard no STOP"
    assert sorted(fleet.dismissed) == ["a0", "a1", "a2", "a3"]
    assert [r.facts[EventFact.CAUSE] for r in refused(fleet)] == 4 * [FailureCause.VERSION_DIFFERS]
    assert f"agent a0 speaks language {language}" in refused(fleet)[0].message
    fleet.add("b0", "z0")
    fleet.add("b1", "z1")
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert len(refused(fleet)) == 4


def test_a_newcomer_is_refused_while_the_others_train() -> None:
    fleet = Fleet(spec(steps=20))
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2)
    fleet.until(lambda: committed(fleet, 3))
    epoch = fleet.arbiter.durable.plan
    fleet.add("b0", "z0", 0)
    fleet.run()
    assert (fleet.dismissed[0], len(refused(fleet))) == ("b0", 1)
    assert fleet.arbiter.durable.plan == epoch
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE


def test_a_new_operator_of_another_version_goes_on_from_the_checkpoint() -> None:
    """The agents train, and nobody has suspended the job before the upgrade."""
    fleet = Fleet(spec(steps=20))
    fleet.tell(a.DesiredState(1))
    fleet.add_grid(1, 2)
    fleet.until(lambda: committed(fleet, 7) and len(fleet.arbiter.durable.manifests) > 1)
    saved = fleet.arbiter.durable.manifests[-1].step
    for agent in fleet.agents.values():
        agent.hello = replace(agent.hello, language=0)
    fleet.restart()
    fleet.tell(a.DesiredState(1))
    fleet.reconnect()
    fleet.run()
    assert len(refused(fleet)) == 2
    assert {AgentId("a0"), AgentId("a1")} <= set(fleet.dismissed)
    fleet.add("b0", "z0")
    fleet.add("b1", "z1")
    fleet.wait(600.0)
    fleet.run()
    assert fleet.over is not None
    assert fleet.over.outcome is Outcome.COMPLETE
    assert min(step for attempt, step in fleet.commits if attempt == 1) == saved > 0
