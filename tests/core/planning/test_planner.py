"""Plans from facts: target, cuts, seats, wanted layers, programs, and when there is no plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.arbiter.fleet import Fleet, spec

from bamboo_core.api.spec import JobSpec, PipelinesSpec, RecoveryPolicy, RedundancyMode
from bamboo_core.arbiter_state import events as a
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.placement.plan import layers_of, ranges_of, wants
from bamboo_core.planning import planner, requests
from bamboo_core.protocol.messages import AgentReport, CommitRecord, LayerCost, Manifest, Notice
from bamboo_core.scheduling import dry_run, schedule

A0, A1, A2 = AgentId("a0"), AgentId("a1"), AgentId("a2")


def request_of(
    job: JobSpec, *, kill: str = "", after: int = 0, layers: int = 4
) -> requests.PlanRequest:
    """The last request of a job whose agent was killed after so many events."""
    fleet = Fleet(job, layers=layers)
    fleet.add_grid(job.pipelines.count, job.pipelines.stages)
    fleet.tell(a.DesiredState(job.pipelines.count))
    if kill:
        while fleet.events < after:
            assert fleet.step()
        fleet.kill(kill)
        fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    else:
        fleet.until(lambda: bool(fleet.requests))
    return fleet.requests[-1]


def first(request: requests.PlanRequest) -> requests.PlanResult:
    return next(planner.compute(request))


def decide(request: requests.PlanRequest) -> requests.Decision:
    result = first(request)
    assert isinstance(result, requests.Decision), result
    return result


def proceed(request: requests.PlanRequest) -> requests.Continuations:
    _, rest = planner.compute(request)
    assert isinstance(rest, requests.Continuations), rest
    return rest


def test_a_new_job_builds_its_layers_and_begins_with_step_0() -> None:
    result = decide(request_of(spec()))
    assert (result.plan.target, result.plan.last, result.committed) == (0, 4, -1)
    assert result.plan.cut == ((0, 2), (2, 4))
    assert all(d.resume[0].op is Op.INIT for d in result.directives.values())
    assert result.plan.wants == {A0: ((0, 4),), A1: ((0, 4),)}


def test_measured_costs_decide_the_cut() -> None:
    request = request_of(spec())
    costs = tuple(LayerCost(x, 2 * x, 8, 8) for x in (9.0, 1.0, 1.0, 1.0))
    assert decide(replace(request, costs=costs)).plan.cut == ((0, 1), (1, 4))


HALVES = LayerCost(1.0, 2.0, 8, 8, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True)


def steady_ops(request: requests.PlanRequest) -> set[Op]:
    return {x.op for c in proceed(request).directives.values() for x in c.steady} & COMPUTE


def test_a_whole_grid_splits_its_backward_where_measured_costs_say_that_it_pays() -> None:
    request = request_of(spec(stages=4, steps=6))
    assert steady_ops(request) == {Op.F, Op.B}
    split = replace(request, costs=(HALVES,) * 4)
    assert steady_ops(split) == {Op.F, Op.B, Op.I, Op.W}  # B: the first stage's
    dear = replace(HALVES, weight_gradient_s=2.0)
    assert steady_ops(replace(request, costs=(dear,) * 4)) == {Op.F, Op.B}


def test_a_grid_with_an_empty_seat_splits_its_backward_even_before_costs_are_measured() -> None:
    assert Op.W not in steady_ops(request_of(spec(stages=3, steps=4), layers=3))
    degraded = request_of(spec(stages=3, steps=4), kill="a1", after=50, layers=3)
    assert Op.W in steady_ops(degraded)
    assert Op.W in {x.op for d in decide(degraded).directives.values() for x in d.resume}


def in_flight(request: requests.PlanRequest) -> int:
    """Forwards of a micro-batch that the first stage runs before its first backward."""
    program = proceed(request).directives[A0].steady
    ops = [x.op for x in program if x.op in COMPUTE]
    return next(i for i, op in enumerate(ops) if op is not Op.F)


def test_a_whole_grid_keeps_more_in_flight_only_where_the_memory_is_known_to_suffice() -> None:
    cost = replace(HALVES, activation_bytes=50)
    request = replace(request_of(spec(stages=4, steps=6, microbatches=16)), costs=(cost,) * 4)
    found = [in_flight(replace(request, memory_bytes=n)) for n in (0, 300, 10_000)]
    assert found[0] == found[1] < found[2]


def test_a_backward_that_cannot_be_split_is_never_split() -> None:
    request = request_of(spec(stages=3, steps=4), kill="a1", after=50, layers=3)
    assert Op.W in steady_ops(replace(request, costs=(HALVES,) * 3))
    costs = (HALVES, replace(HALVES, can_split=False), HALVES)
    whole = steady_ops(replace(request, costs=costs))
    assert Op.B in whole
    assert not {Op.I, Op.W} & whole


@pytest.mark.parametrize("after", range(10, 130, 20))
def test_an_interrupted_step_continues_without_repeating_work(after: int) -> None:
    request = request_of(spec(stages=3, steps=4), kill="a1", after=after, layers=3)
    result = decide(request)
    whole = 3 * request.batch.microbatches * 3  # F, I and W of every stage
    begun = sum(len(r.items) for r in request.reports.values())
    assert result.tasks <= whole
    assert begun == 0 or result.tasks < whole
    assert result.plan.holes == 1


def test_the_plan_does_not_depend_on_the_order_of_anything() -> None:
    request = request_of(spec(pipelines=2, stages=2), kill="a1", after=60)
    turned = replace(
        request,
        reports=dict(reversed(request.reports.items())),
        participants=dict(reversed(request.participants.items())),
    )
    assert list(planner.compute(turned)) == list(planner.compute(request))


@settings(max_examples=15, deadline=None)
@given(st.integers(4, 200), st.sampled_from(["a0", "a1", "a2", "a3"]))
def test_every_layer_is_wanted_and_every_peer_is_known(after: int, victim: str) -> None:
    request = request_of(spec(pipelines=2, stages=2, steps=3), kill=victim, after=after)
    result = decide(request)
    plan = result.plan
    assert {x for r in plan.wants.values() for x in layers_of(r)} == set(range(4))
    assert AgentId(victim) not in plan.members
    assert set(result.directives) == set(plan.members)
    assert {d.voters for d in result.directives.values()} == {plan.live}
    rest = proceed(request).directives
    assert rest.keys() == result.directives.keys()
    for agent, directive in result.directives.items():
        peers = {p.agent for p in directive.peers}
        assert {x.peer for x in directive.resume if x.peer} <= peers
        later = {p.agent for p in rest[agent].peers}
        programs = (*rest[agent].steady, *rest[agent].final)
        assert peers | {x.peer for x in programs if x.peer} <= later
        assert agent not in later


def test_both_parts_of_a_plan_carry_one_fence_and_hash() -> None:
    request = request_of(spec(pipelines=2, stages=2))
    decision, rest = planner.compute(request)
    assert isinstance(decision, requests.Decision)
    assert isinstance(rest, requests.Continuations)
    marks = {(d.fence, d.plan_hash) for d in decision.directives.values()}
    assert marks == {(c.fence, c.plan_hash) for c in rest.directives.values()}
    assert marks == {(request.fence, planner.hash_of(decision.plan))}
    later = replace(decision.plan, fence=Fence(0, 1, 99))
    assert planner.hash_of(later) != planner.hash_of(decision.plan)


def test_a_plan_that_ends_with_its_target_has_one_part() -> None:
    request = stopped(spec(steps=2), {"a0": {0: 2, 1: 2}, "a1": {2: 2, 3: 2}}, 2)
    decision, *rest = planner.compute(request)
    assert isinstance(decision, requests.Decision)
    assert not any(d.has_continuation for d in decision.directives.values())
    assert not rest


def test_resume_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(spec())
    results = planner.compute(request)
    assert isinstance(next(results), requests.Decision)
    report = dry_run.dry_run({}, batch=request.batch, layers=4)
    lost = (dry_run.Message(Item.out(0, 2, 0), A0, A1),)
    monkeypatch.setattr(dry_run, "dry_run", lambda *_, **__: replace(report, unmatched=lost))
    fault = next(results)
    assert isinstance(fault, requests.PlannerFault)
    assert "which never receives it" in fault.message


def test_an_overtaken_computation_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    request = request_of(spec())
    count(schedule, "build")
    count(dry_run, "dry_run")
    results = planner.compute(request)
    decision = next(results)
    first_part = len(calls)
    assert len(list(results)) == 1
    whole = calls.copy()
    assert whole[first_part:].count("build") == 2  # steady and final
    for wanted in range(len(whole)):
        calls.clear()
        results = planner.compute(request, lambda: len(calls) < wanted)  # noqa: B023
        assert list(results) == ([decision] if wanted >= first_part else [])
        assert calls == whole[:wanted]


def test_another_number_of_stages_is_another_cut_from_the_next_step_on() -> None:
    fleet = Fleet(spec(pipelines=2, stages=2, steps=9))
    fleet.add_grid(2, 2)
    fleet.tell(a.DesiredState(2))
    fleet.until(lambda: fleet.events > 80)
    fleet.kill("a3")
    fleet.until(lambda: len(fleet.requests) == 2)
    request = fleet.requests[-1]
    job = replace(request.spec, pipelines=PipelinesSpec(1, 3))
    plan = decide(replace(request, spec=job, pipelines=1)).plan
    assert len(plan.cut) == 3
    assert plan.step_cut == request.cut


def stopped(job: JobSpec, versions: dict[str, dict[int, int]], step: int) -> requests.PlanRequest:
    """Agents that have ended the step before and hold just these layers."""
    request = request_of(job)
    commit = CommitRecord(step - 1)
    reports = {
        AgentId(name): AgentReport(
            Fence(0, 1, 2), Fence(0, 1, 1), held, frozenset(), (commit,), step - 1
        )
        for name, held in versions.items()
    }
    return replace(
        request,
        reports=reports,
        participants={x: request.participants[x] for x in reports},
        grid=((A0, A1),),
        cut=((0, 2), (2, 4)),
        step_cut=((0, 2), (2, 4)),
        has_voter=True,
        is_full=False,
        target=step,
    )


def test_a_layer_without_a_holder_is_fatal() -> None:
    request = stopped(spec(), {"a0": {0: 2, 1: 2}}, 2)
    assert first(request) == requests.Fatal((2, 3), 1)


def test_a_file_of_exactly_the_needed_version_repairs_it() -> None:
    request = stopped(spec(), {"a0": {0: 2, 1: 2}}, 2)
    result = decide(replace(request, manifests=(Manifest(0, 2, "p", "d"),)))
    assert result.loads == 1
    assert result.directives[A0].manifest == Manifest(0, 2, "p", "d")
    old = replace(request, manifests=(Manifest(0, 1, "p", "d"), Manifest(0, 3, "p", "d")))
    assert isinstance(first(old), requests.Fatal)


def test_newcomers_alone_do_not_restart_silently() -> None:
    """Neither from version 0 nor from the attempt's file: the number of commits is unknown."""
    new = AgentReport(Fence(0, 1, 2), Fence(), {}, frozenset())
    request = stopped(spec(), {"a0": {}, "a1": {}}, 2)
    request = replace(request, reports=dict.fromkeys(request.reports, new))
    for base in (-1, 1):
        file = Manifest(0, base + 1, "p", "d")
        asked = replace(request, base=base, manifests=(file,), has_voter=False)
        assert first(asked) == requests.Fatal((0, 1, 2, 3), 1)


def test_a_commit_known_only_to_lost_agents_is_repeated() -> None:
    """The plan began with step 3, but the remaining agents know only that they voted for step 2."""
    request = stopped(spec(), {"a0": {0: 2, 1: 2}, "a1": {2: 2, 3: 2}}, 2)
    result = decide(replace(request, target=3))
    assert (result.plan.target, result.committed) == (2, 1)
    for versions, step in ((1, 1), (2, 2)):  # two steps back, or a layer is lost
        held = {"a0": {0: versions, 1: versions}}
        if step == 1:
            held |= {"a1": {2: 1, 3: 1}}
        less = replace(stopped(spec(), held, step), target=3)
        assert isinstance(first(less), requests.Fatal)


def test_only_layers_without_a_copy_are_called_lost() -> None:
    """Surviving copies count even if the newest commit cannot be repeated."""
    request = stopped(spec(), {"a0": {0: 2, 1: 2}}, 2)
    for has_voter in (True, False):
        asked = replace(request, target=3, has_voter=has_voter)
        assert first(asked) == requests.Fatal((2, 3), 2)


def test_without_a_voter_a_newer_file_outweighs_what_agents_hold() -> None:
    held = {"a0": {0: 2, 1: 2}, "a1": {2: 2, 3: 2}}
    request = replace(stopped(spec(), held, 2), has_voter=False)
    assert decide(request).plan.target == 2
    same = replace(request, manifests=(Manifest(0, 2, "p", "d"),))
    assert decide(same).plan.target == 2
    newer = replace(request, manifests=(Manifest(0, 4, "p", "d"),))
    assert first(newer) == requests.Fatal((0, 1, 2, 3), 3)


def test_a_restore_begins_with_the_manifest_s_step() -> None:
    fresh = request_of(spec())
    request = replace(fresh, base=1, manifests=(Manifest(0, 2, "p", "d"),))
    result = decide(request)
    assert (result.plan.target, result.committed) == (2, 1)
    assert {d.resume[0].op for d in result.directives.values()} == {Op.LOAD}


def test_a_copy_goes_to_the_agent_that_lacks_the_layer() -> None:
    request = stopped(spec(), {"a0": dict.fromkeys(range(4), 2), "a1": {}}, 2)
    result = decide(request)
    assert result.copies == 4
    assert result.plan.live == (A0, A1)


def test_a_leaver_on_short_notice_only_sends() -> None:
    request = request_of(spec(stages=3, steps=4), kill="a2", after=60, layers=3)
    hurried = replace(request, draining=frozenset({A1}), short_notice=frozenset({A1}))
    result = decide(hurried)
    assert (result.plan.leaving, result.plan.short_notice) == ((A1,), (A1,))
    ops = {x.op for x in result.directives[A1].resume}
    assert not ops & (COMPUTE | {Op.VOTE})
    assert result.directives[A1].resume[-1].op is Op.EXIT
    assert proceed(hurried).directives[A1].steady == ()


def test_newcomers_get_the_seats_of_the_layers_that_they_hold() -> None:
    request = stopped(spec(), {"a0": {2: 2, 3: 2}, "a1": {0: 2, 1: 2}}, 2)
    lost = ((A2, AgentId("a3")),)
    assert decide(replace(request, grid=lost)).plan.pipelines == ((A1, A0),)


def test_a_step_that_goes_on_keeps_the_cut_with_which_it_began() -> None:
    held = {"a0": {0: 2, 1: 2}, "a1": {2: 2, 3: 2}}
    begun = replace(stopped(spec(), held, 2), step_cut=((0, 1), (1, 4)))
    assert decide(begun).plan.step_cut == ((0, 1), (1, 4))
    assert decide(begun).plan.cut == ((0, 2), (2, 4))
    ended = replace(begun, target=1)
    assert decide(ended).plan.step_cut == ((0, 2), (2, 4))


def test_a_newcomer_does_not_learn_while_the_others_lack_a_layer() -> None:
    job = spec(steps=9)
    for held, learners in ({0: 2, 1: 2}, ()), (dict.fromkeys(range(4), 2), (A1,)):
        request = stopped(job, {"a0": held, "a1": {}}, 2)
        file = Manifest(0, 2, "p", "d")
        asked = replace(request, grid=((A0, A2),), manifests=(file,), catch_up_above_bytes=-1.0)
        plan = decide(asked).plan
        assert tuple(plan.learners) == learners
        assert plan.live == ((A0,) if learners else (A0, A1))


GRID = ((A0, A1), (A2, AgentId("a3")))


def whole(*lost: AgentId) -> requests.PlanRequest:
    """A grid of 2 x 2 that begins step 2, each stage held by two agents, without the lost ones."""
    request = request_of(spec(pipelines=2, stages=2, steps=9))
    held = {a: dict.fromkeys(range(2 * s, 2 * s + 2), 2) for p in GRID for s, a in enumerate(p)}
    reports = {
        a: AgentReport(Fence(0, 1, 2), Fence(0, 1, 1), layers, frozenset(), (CommitRecord(1),), 1)
        for a, layers in held.items()
        if a not in lost
    }
    known = {a: request.participants[a] for a in reports}
    cut = ((0, 2), (2, 4))
    facts = {"grid": GRID, "cut": cut, "step_cut": cut, "reports": reports, "target": 2}
    return replace(request, **facts, participants=known, has_voter=True, is_full=False)


def test_a_leaver_computes_its_own_leaves_until_the_target_step_has_ended() -> None:
    request = replace(whole(), draining=frozenset({A1}))
    job = replace(request.spec, recovery=RecoveryPolicy.PEERS)
    result = decide(replace(request, spec=job))
    assert result.plan.leaving == (A1,)
    found = {a: [x.index for x in d.resume if x.op is Op.F] for a, d in result.directives.items()}
    assert [sorted(found[a]) for p in GRID for a in p] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_a_leaver_without_layers_stays_only_for_items_of_the_target_step() -> None:
    request = replace(whole(), draining=frozenset({A1}))
    for step, leaving in (1, ()), (2, (A1,)):
        held = frozenset({Item.out(step, 2, 0)})
        report = replace(request.reports[A1], versions={}, items=held, commits=())
        asked = replace(request, reports={**request.reports, A1: report})
        assert decide(asked).plan.leaving == leaving


def test_a_step_with_an_empty_seat_may_split_its_backward() -> None:
    ops = [x.op for d in decide(whole(A1)).directives.values() for x in d.resume]
    assert Op.I in ops
    assert Op.I not in [x.op for d in decide(whole()).directives.values() for x in d.resume]


def test_suspending_ends_after_the_step_without_validation() -> None:
    request = replace(request_of(spec(steps=9, every=0)), is_last=True)
    result = decide(request)
    assert result.plan.last == result.plan.target + 1
    ops = {x.op for c in proceed(request).directives.values() for x in c.final}
    assert {Op.SAVE, Op.SEAL} <= ops
    assert Op.V not in ops
    complete = proceed(request_of(spec(steps=9, every=0)))
    assert Op.V in {x.op for c in complete.directives.values() for x in c.final}


def test_zones_that_fit_no_grid_are_reported() -> None:
    request = request_of(spec())
    crowded = {x: replace(p, zone="z0") for x, p in request.participants.items()}
    result = first(replace(request, participants=crowded))
    assert isinstance(result, requests.Unplaceable)
    assert "ring neighbours must not share a zone" in result.message


def test_programs_that_cannot_run_are_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(spec())
    report = dry_run.dry_run({}, batch=request.batch, layers=4)
    lost = (dry_run.Message(Item.out(0, 2, 0), A0, A1),)
    monkeypatch.setattr(dry_run, "dry_run", lambda *_, **__: replace(report, unmatched=lost))
    result = first(request)
    assert isinstance(result, requests.PlannerFault)
    assert "which never receives it" in result.message


def test_programs_must_also_run_in_steps_that_neither_validate_nor_save(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = request_of(spec())
    original = dry_run.dry_run
    lost = (dry_run.Message(Item.out(0, 2, 0), A0, A1),)

    def failing(*arguments: Any, **options: Any) -> dry_run.DryRunResult:
        report = original(*arguments, **options)
        return report if options["periodic"] else replace(report, unmatched=lost)

    monkeypatch.setattr(dry_run, "dry_run", failing)
    *_, result = planner.compute(request)
    assert isinstance(result, requests.PlannerFault)
    assert "which never receives it" in result.message


# ---------------------------------------------------------------- wanted layers


def wanted(mode: RedundancyMode, **options: object) -> dict[AgentId, tuple[tuple[int, int], ...]]:
    facts: dict[str, object] = {
        "pipelines": ((A0, A1, A2),),
        "cut": ((0, 2), (2, 3), (3, 5)),
        "live": (A0, A1, A2),
        "holders": {},
    }
    return wants(mode=mode, **{**facts, **options})  # type: ignore[arg-type]


def test_a_shadow_wants_its_successor_s_stage() -> None:
    found = wanted(RedundancyMode.REPLICA)
    assert found == {A0: ((0, 3),), A1: ((2, 5),), A2: ((0, 2), (3, 5))}
    assert wanted(RedundancyMode.NONE) == {A0: ((0, 2),), A1: ((2, 3),), A2: ((3, 5),)}


def test_a_stage_without_a_seat_goes_to_its_holder() -> None:
    found = wanted(
        RedundancyMode.NONE,
        pipelines=((A0, None, A2),),
        live=(A0, A2),
        holders={2: (A2,)},
    )
    assert found == {A0: ((0, 2),), A2: ((2, 5),)}


@given(st.sets(st.integers(0, 30)))
def test_ranges_and_layers_are_inverse(layers: set[int]) -> None:
    ranges = ranges_of(layers)
    assert layers_of(ranges) == sorted(layers)
    assert all(b[0] > x[1] for x, b in pairwise(ranges))


def test_the_batch_shape_is_the_job_s() -> None:
    request = replace(request_of(spec()), batch=BatchShape(4, 2, 2))
    assert decide(request).plan.batch == BatchShape(4, 2, 2)


def test_a_leaver_updates_what_it_holds_until_the_step_is_committed() -> None:
    """Row C10 of docs/verification.md: the leaver votes for its layers and updates them first.

    So they survive if the agents that have just received them are lost.
    """
    fleet = Fleet(spec(steps=9, mode=RedundancyMode.NONE))
    fleet.add_grid(1, 2)
    fleet.tell(a.DesiredState(1))
    fleet.until(lambda: fleet.events > 60)
    fleet.add_grid(1, 2, "b")
    fleet.receive(A0, Notice(60.0, "asked to go"))
    fleet.until(lambda: len(fleet.requests) == 2)
    request = fleet.requests[-1]
    result = decide(request)
    assert result.plan.leaving == (A0,)
    kept = set(request.reports[A0].versions)
    resume = result.directives[A0].resume
    updated = {x for i in resume if i.op is Op.UPDATE for x in range(i.lo, i.hi)}
    assert kept
    assert updated == kept
    ops = [i.op for i in resume]
    assert ops.index(Op.VOTE) < ops.index(Op.UPDATE) < ops.index(Op.EXIT)
