"""The condition of a job that has ended or rests names the hooks that were not told all steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import ConditionType
from bamboo_core.controller.reconcile import Step, step
from bamboo_core.controller.view import ClusterView, Memory, PodPhase, PodView, TrainingView

from .builders import JOB, nodes, pod, spec

WHY = "a: UserCodeFailed: sample 7 is damaged"
WORDS = "mine:build was not told 9 records, from step 0 on, when the agent ended"
LIVES = (pod(0, 0, zone="a"), pod(0, 1, zone="b"))
FAILED = TrainingView(outcome=Outcome.FAILED, reason="UserCodeFailed", message=WHY)
RESTS = TrainingView(outcome=Outcome.SUSPENDED, message="suspended after step 10")
COMPLETE = TrainingView(outcome=Outcome.COMPLETE, message="all 10 steps are committed")


def ended(each: PodView, untold: str = "") -> PodView:
    return replace(each, phase=PodPhase.SUCCEEDED, exit_code=0, ended_at=990.0, untold=untold)


def look(training: TrainingView, memory: Memory, *pods: PodView, suspend: bool = False) -> Step:
    view = ClusterView(nodes(a=1, b=1), pods)
    return step(spec(suspend=suspend), view, training, memory, job=JOB, now=1000.0)


def said(found: Step, kind: ConditionType) -> str:
    return next(c.message for c in found.status.conditions if c.type is kind)


@pytest.mark.parametrize(
    ("training", "kind", "why"),
    [
        (FAILED, ConditionType.FAILED, WHY),
        (COMPLETE, ConditionType.COMPLETE, "all 10 steps are committed"),
    ],
)
def test_a_job_that_has_ended_says_which_hooks_were_not_told(
    training: TrainingView, kind: ConditionType, why: str
) -> None:
    """Its agents say so as they end. The words stay when the pods go, and come once."""
    first = look(training, Memory(trained=True), *LIVES)
    assert said(first, kind) == why
    gone = (ended(LIVES[0], WORDS), ended(LIVES[1]))
    second = look(training, first.memory, *gone)
    assert said(second, kind) == f"{why}; spec.hooks: {WORDS}"
    again = look(training, second.memory, *gone)
    assert said(again, kind) == f"{why}; spec.hooks: {WORDS}"
    later = look(training, again.memory)
    assert said(later, kind) == f"{why}; spec.hooks: {WORDS}"


def test_a_job_that_goes_on_does_not_speak_of_the_hooks_of_agents_that_have_gone() -> None:
    """Another agent tells these steps."""
    gone = ended(LIVES[0], WORDS)
    found = look(TrainingView(planned=True), Memory(trained=True), gone, LIVES[1])
    assert not any(WORDS in c.message for c in found.status.conditions)


def test_a_suspended_job_says_which_hooks_were_not_told() -> None:
    """Only the logs of its agents did, and these go with the pods. The words go with the resume."""
    gone = (ended(LIVES[0], WORDS), ended(LIVES[1]))
    kind = ConditionType.SUSPENDED
    leaving = look(RESTS, Memory(trained=True), gone[0], LIVES[1], suspend=True)
    assert said(leaving, kind) == f"the agents are leaving; spec.hooks: {WORDS}"
    first = look(RESTS, leaving.memory, gone[1], suspend=True)
    text = f"suspended after step 10; spec.hooks: {WORDS}"
    assert said(first, kind) == text
    later = look(RESTS, first.memory, suspend=True)
    assert said(later, kind) == text
    resumed = look(TrainingView(), later.memory)
    assert said(resumed, kind) == "spec.suspend is false"
    again = look(RESTS, resumed.memory, suspend=True)
    assert said(again, kind) == "suspended after step 10"


def test_a_suspended_job_does_not_speak_of_the_hooks_of_an_agent_that_was_lost() -> None:
    lost = replace(ended(LIVES[0], WORDS), phase=PodPhase.FAILED, exit_code=143)
    found = look(RESTS, Memory(trained=True), lost, suspend=True)
    assert said(found, ConditionType.SUSPENDED) == "suspended after step 10"
