"""What a job does with its turn, and what it says; when it has started, and what it gets back then
before others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.spec import Adjacency, FactorySpec, JobSpec, WorkerSpec
from bamboo_core.controller.reconcile import CreatePod, DeletePod, Step, step
from bamboo_core.controller.turn import Aside, Turn, Word, assured, is_training, template
from bamboo_core.controller.view import (
    ClusterView,
    JobView,
    Memory,
    PodPhase,
    PodView,
    TrainingView,
)
from bamboo_core.model.ids import AgentId

from .builders import JOB, nodes, pod, spec

GPU = "nvidia.com/gpu"
SPEC = spec(count=2, stages=2, worker=WorkerSpec("i", {"limits": {GPU: 2}}))
OTHER = JobView("ns", "other", "uid-2", 1, 0.0)
WAITS = Turn(Word.WAITS, 1, 2, OTHER, is_outranked=True)


def test_no_raised_minimum_makes_pods_before_others() -> None:
    """One that has started with two agents and has lost one gets that one back."""
    raised = replace(SPEC, pipelines=replace(SPEC.pipelines, min=2))
    keeps = Turn(Word.KEEPS, minimum=4, first=OTHER, assured=2)
    found = run(keeps, pod(0, 0, zone="a"), spec_=raised)
    (made,) = found.actions
    assert isinstance(made, CreatePod)
    text = next(c.message for c in found.status.conditions if c.type == "CapacityAvailable")
    assert "agents beyond the 2 that the job has started with wait, since job ns/other" in text
    assert run(keeps, pod(0, 0, zone="a"), pod(0, 1, zone="b"), spec_=raised).actions == ()


def run(turn: Turn | None, *pods_: object, spec_: JobSpec = SPEC) -> Step:
    view = ClusterView(nodes(a=8, b=8), pods_)  # type: ignore[arg-type]
    return step(spec_, view, TrainingView(), Memory(), job=JOB, now=1000.0, turn=turn)


def test_in_the_line_pods_stay_that_miss_an_object_and_it_is_told() -> None:
    """They cannot take the room, and new ones would only find out the same."""
    refusal = '0/2 nodes are available: persistentvolumeclaim "data" not found'
    first = pod(0, 0, zone="a", node="", phase=PodPhase.PENDING, refusal=refusal, refused_at=1.0)
    found = run(WAITS, first)
    assert found.actions == ()
    said = {c.type: c for c in found.status.conditions}
    assert said[ConditionType.CAPACITY_AVAILABLE].reason == Reason.WAITS_IN_LINE
    for kind in (ConditionType.CAPACITY_AVAILABLE, ConditionType.STALLED):
        assert "PersistentVolumeClaim data in namespace ns does not exist" in said[kind].message
    assert len(run(WAITS, replace(first, node="node-a", waiting="")).actions) == 1


def test_without_its_turn_a_job_has_no_pods() -> None:
    assert run(WAITS).actions == ()
    pending = pod(0, 0, zone="a", node="", phase=PodPhase.PENDING)
    (gone,) = run(WAITS, pending).actions
    assert isinstance(gone, DeletePod)
    assert (gone.force, gone.reason) == (
        False,
        "a job ahead of this one in the line needs the room",
    )
    assert len(run(Turn(Word.STARTS)).actions) == len(run(Turn(Word.ASKS)).actions) == 4


def test_a_job_that_keeps_its_minimum_gets_no_more() -> None:
    keeps = Turn(Word.KEEPS, first=OTHER, assured=2)
    bound = [pod(0, 0, zone="a"), pod(0, 1, zone="b")]
    assert run(keeps, *bound).actions == ()
    waiting = [pod(1, s, zone="a", node="", phase=PodPhase.PENDING) for s in (0, 1)]
    gone = run(keeps, *bound, *waiting).actions
    assert [a.name for a in gone if isinstance(a, DeletePod)] == ["job-p1-s1-i0", "job-p1-s0-i0"]
    (made,) = run(keeps, bound[0]).actions  # its minimum comes back
    assert isinstance(made, CreatePod)


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (
            WAITS,
            f"waits without pods: 2 {GPU} are free, the smallest grid (1 x 2) needs 4;"
            " job ns/other of higher priority is first in line",
        ),
        (
            replace(WAITS, first=replace(OTHER, namespace="secret"), is_outranked=False),
            f"waits without pods: 2 {GPU} are free, the smallest grid (1 x 2) needs 4;"
            " a job of another namespace is first in line",
        ),
        (
            replace(WAITS, word=Word.KEEPS),
            f"waits without pods: 2 {GPU} are free, the smallest grid (1 x 2) needs 4;"
            " job ns/other of higher priority is first in line",
        ),
        (
            replace(WAITS, room=2),
            f"waits without pods: 4 {GPU} are free, the smallest grid (1 x 2) needs 4 in zones"
            " where ring neighbours can be apart; job ns/other of higher priority is first in line",
        ),
    ],
)
def test_the_condition_says_who_is_first_without_names_of_other_namespaces(
    turn: Turn, text: str
) -> None:
    (found,) = [c for c in run(turn).status.conditions if c.type == "CapacityAvailable"]
    assert (found.status, found.reason, found.message) == (False, Reason.WAITS_IN_LINE, text)


def test_the_condition_of_the_first_and_of_one_that_may_not_grow() -> None:
    cpu = spec(stages=2)
    waiting = pod(0, 0, zone="a", node="", phase=PodPhase.PENDING)

    def message(turn: Turn) -> str:
        status = run(turn, waiting, spec_=cpu).status
        return next(c.message for c in status.conditions if c.type == "CapacityAvailable")

    too_big = Turn(Word.ASKS, 1, 2, aside=Aside(600.0, 2400.0, is_now=False))
    assert message(too_big).endswith(
        "room for 1 agent is free, the smallest grid (1 x 2) needs room for 2; the nodes that"
        " can be used now are too few for it even without other jobs, so the jobs behind it go"
        " first from 1970-01-01T00:10:00Z until 1970-01-01T00:40:00Z unless there are more of them;"
        " this job is first in line"
    )
    aside = Aside(600.0, 2400.0, is_now=True)
    text = "so the jobs behind it go first until 1970-01-01T00:40:00Z unless there are more of them"
    assert text in message(Turn(Word.KEEPS, 1, 2, OTHER, aside=aside))
    keeps = message(Turn(Word.KEEPS, first=OTHER))
    assert "agents beyond the smallest grid wait, since job ns/other is first in line" in keeps


# ------------------------------------------------------------ what it gets back before others


def a_spec(*, least: int = 1, count: int = 8, stages: int = 2, suspend: bool = False) -> JobSpec:
    found = spec(count=count, stages=stages, suspend=suspend)
    return replace(found, pipelines=replace(found.pipelines, min=least))


def trains(*pods: PodView) -> TrainingView:
    members = frozenset(pod.agent for pod in pods)
    return TrainingView(planned=True, members=members, pipelines=8)


PAIR = (pod(0, 0, zone="a"), pod(0, 1, zone="b"))


def of(spec_: JobSpec, *pods: PodView, before: int = 0, training: bool = False) -> int:
    known = trains(*pods) if training else TrainingView()
    return assured(spec_, ClusterView((), pods), known, Memory(assured=before))


def test_agents_that_hold_the_training_state_have_started() -> None:
    view = ClusterView((), (pod(0, 0),))
    agent = AgentId("job-p0-s0-i0")
    assert is_training(view, TrainingView(planned=True, members=frozenset({agent})))
    assert not is_training(view, TrainingView(planned=False, members=frozenset({agent})))
    assert not is_training(view, TrainingView(planned=True, members=frozenset()))


def test_a_job_whose_smallest_grid_has_nodes_has_started() -> None:
    assert of(a_spec(), *PAIR) == 2
    assert of(a_spec(least=2), *PAIR) == 0
    assert of(a_spec(), PAIR[0], pod(0, 1, zone="a")) == 0  # neighbours need two zones
    assert of(a_spec(), PAIR[0], replace(PAIR[1], node="", phase=PodPhase.PENDING)) == 0
    assert of(a_spec(), PAIR[0], replace(PAIR[1], deleting_at=9.0)) == 0


def test_losses_leave_what_is_assured_until_no_agent_is_left() -> None:
    assert of(a_spec(), PAIR[0], before=2) == 2
    assert of(a_spec(), before=2) == 0
    assert of(a_spec(), replace(PAIR[0], node=""), before=2) == 0


def test_a_raised_minimum_assures_nothing_and_a_lowered_one_stays() -> None:
    assert of(a_spec(least=8), *PAIR, before=2) == 2
    assert of(a_spec(least=1), *PAIR, before=4) == 2
    assert of(a_spec(least=8, stages=4), *PAIR, before=2) == 2


def test_a_minimum_that_is_raised_before_the_start_was_seen_assures_what_is_there() -> None:
    assert of(a_spec(least=8), *PAIR, training=True) == 2
    assert of(a_spec(least=8), *PAIR) == 0


def test_a_job_that_is_suspended_or_has_ended_is_assured_of_nothing() -> None:
    assert of(a_spec(suspend=True), *PAIR, before=2) == 0
    ended = Memory(assured=2, terminal=Outcome.COMPLETE)
    assert assured(a_spec(), ClusterView((), PAIR), TrainingView(), ended) == 0


def test_a_step_remembers_it() -> None:
    view = ClusterView(nodes(a=8, b=8), PAIR)
    found = step(a_spec(), view, TrainingView(), Memory(), job=JOB, now=1.0)
    assert found.memory.assured == 2
    found = step(a_spec(least=8), view, TrainingView(), found.memory, job=JOB, now=2.0)
    assert found.memory.assured == 2


def test_what_is_assured_is_for_the_agents_that_it_started_with() -> None:
    """Suspended, changed and resumed between two looks, it is not seen suspended. Its old agents
    are no reason to keep room for new ones that ask for more, until all have gone."""
    large = replace(a_spec(), worker=WorkerSpec("i", {"limits": {GPU: 8}}))
    moved = replace(a_spec(), placement=replace(large.placement, zones=("a", "b")))
    for changed in (large, moved):
        known, seen = Memory(), list[int]()
        for spec_, pods in (
            (a_spec(), PAIR), (changed, PAIR), (changed, PAIR[:1]), (a_spec(), PAIR[:1]),
            (changed, ()), (changed, PAIR),
        ):  # fmt: skip
            view = ClusterView(nodes(a=8, b=8), pods)
            known = step(spec_, view, trains(*pods), known, job=JOB, now=1.0).memory
            seen.append(known.assured)
        assert seen == [2, 0, 0, 0, 0, 2]


grids = st.tuples(st.integers(1, 8), st.integers(1, 3)).map(
    lambda pair: a_spec(least=pair[0], stages=pair[1])
)


@given(st.integers(1, 8), st.lists(st.tuples(grids, st.integers(1, 9), st.booleans()), max_size=9))
def test_it_never_rises_while_the_job_has_agents(
    least: int, later: list[tuple[JobSpec, int, bool]]
) -> None:
    """Whatever the spec says meanwhile, and however many agents there are."""
    first = a_spec(least=least)
    first = replace(first, placement=replace(first.placement, adjacency=Adjacency.CLUSTER))
    now = of(first, *(pod(i, s) for i in range(least) for s in range(2)))
    assert now == 2 * least
    for spec_, agents, training in later:
        after = of(spec_, *(pod(i) for i in range(agents)), before=now, training=training)
        assert 0 < after <= now
        now = after


def test_agents_with_other_hooks_are_replaced() -> None:
    one = replace(SPEC, hooks=(FactorySpec("t:build"),))
    other = replace(SPEC, hooks=(FactorySpec("t:build", {"folder": "x"}),))
    assert len({template(SPEC), template(one), template(other)}) == 3
