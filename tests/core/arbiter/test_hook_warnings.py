"""A hook that does not work is told as one event, whoever says it and however often."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.spec import FactorySpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import CommitRecord, HookWarning, Progress

from .fleet import Fleet, spec


def warned(*reports: tuple[str, int, HookWarning], hooks: int = 2) -> list[a.Record]:
    """Events about hooks after these reports: the agent, the step, the warning."""
    job = replace(spec(stages=3, steps=400), hooks=(FactorySpec("pkg.trackers:build"),) * hooks)
    fleet = Fleet(job, layers=3)
    fleet.add_grid(1, 3)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    for agent, step, warning in reports:
        progress = Progress(CommitRecord(step), fleet.arbiter.fence, warnings=(warning,))
        fleet.receive(AgentId(agent), progress)
    return [r for r in fleet.records if r.reason is EventReason.HOOK_FAILED]


def test_a_warning_is_one_event_however_often_it_is_said() -> None:
    first, other = HookWarning(0, "hooks: x raised"), HookWarning(1, "hooks: y raised")
    reports = [("a0", 0, first), ("a0", 1, first), ("a1", 1, replace(first, text="again"))]
    (found,) = warned(*reports)
    assert (found.message, found.severity) == ("a0: hooks: x raised", Severity.WARNING)
    assert found.facts[EventFact.AGENTS] == "a0"
    assert [r.message for r in warned(*reports, ("a2", 2, other))] == [
        "a0: hooks: x raised",
        "a2: hooks: y raised",
    ]


def test_a_warning_about_a_hook_that_the_job_does_not_have_is_no_event() -> None:
    assert warned(("a0", 0, HookWarning(2, "x"))) == []
    assert warned(("a0", 0, HookWarning(0, "x")), hooks=0) == []
