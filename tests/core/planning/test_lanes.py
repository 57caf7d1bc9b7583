"""What each agent computes ahead, and what that spares after a loss."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import spec
from tests.core.planning.test_planner import decide, proceed, request_of

from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.planning.lanes import lanes
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.dry_run import dry_run

A, B = AgentId("0-0"), AgentId("0-1")


def shape(pipelines: int = 1, stages: int = 3, **options: object) -> StepShape:
    batch = BatchShape(4 * pipelines, 2, 1 if pipelines == 1 else 2)
    return StepShape(pipelines, stages, batch, mode=RedundancyMode.EAGER, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pipelines", [1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_forward_is_computed_ahead_by_the_ring_predecessor(
    pipelines: int, stages: int
) -> None:
    step = shape(pipelines, stages)
    programs = step.build().programs
    found = lanes(programs, cut=step.cut, wants=step.wants(), held={})
    ahead = Counter((x.lo, x.index) for lane in found.values() for x in lane)
    assert ahead == Counter((s, m) for s in range(stages) for m in range(step.batch.microbatches))
    for agent, lane in found.items():
        stage = int(agent.partition("-")[2])
        assert {x.lo for x in lane} == {(stage + 1) % stages}


def test_the_mandatory_programs_are_the_same_with_a_lane_and_its_work_fills_waits() -> None:
    step = shape(1, 4)
    programs = step.build().programs
    ahead = lanes(programs, cut=step.cut, wants=step.wants(), held={})
    arguments = {"batch": step.batch, "layers": 4, "holdings": step.holdings()}
    without, within = dry_run(programs, **arguments), dry_run(programs, **arguments, lanes=ahead)
    assert within.ok
    assert within.busy == without.busy
    assert sum(within.ahead.values()) > 0
    assert within.length <= without.length * 1.2  # slices of a whole stage: the last ones overrun


@pytest.mark.parametrize(("microbatches", "expected"), [((0,), 0), ((0, 1), 1)])
def test_the_dry_run_ends_the_lane_with_the_last_computation(
    microbatches: tuple[int, ...], expected: float
) -> None:
    """As executors do. A waits for B's result, before another computation of its own or at the
    end."""
    first, *more = (Instruction(Op.F, 0, 0, 1, m) for m in microbatches)
    out, answer = Item.out(0, 1, 0), Item.out(0, 2, 0)
    programs = {
        A: (
            first,
            Instruction(Op.SEND, item=out, peer=B),
            Instruction(Op.RECV, item=answer, peer=B),
            *more,
        ),
        B: (
            Instruction(Op.RECV, item=out, peer=A),
            Instruction(Op.F, 0, 1, 2, 0),
            Instruction(Op.SEND, item=answer, peer=A),
        ),
    }
    report = dry_run(
        programs,
        batch=BatchShape(2, 2, 1),
        layers=3,
        holdings={A: [Item.ver(0, 0), Item.ver(0, 1)], B: [Item.ver(0, 1)]},
        lanes={A: (Instruction(Op.R, 0, 1, 2, 0, ranges=((1, 2),)),)},
    )
    assert report.ok, str(report)
    assert report.ahead_s[A] == expected


def test_nothing_is_computed_ahead_twice() -> None:
    step = shape(1, 2)
    programs = step.build().programs
    held = {A: [Item.out(0, 1, 0), Item.act(0, (1, 2), 1)], B: [Item.prefix(0, (0, 1), 2, 1)]}
    found = lanes(programs, cut=step.cut, wants=step.wants(), held=held)
    assert [x.index for x in found[A]] == [0, 2, 3]
    assert [x.index for x in found[B]] == [0, 1, 3]


def test_what_the_program_computes_itself_is_not_computed_ahead() -> None:
    """After a loss, an agent may run forwards of two stages."""
    program = tuple(
        Instruction(Op.F, 0, *span, m) for span, m in [((0, 1), 0), ((0, 1), 1), ((1, 2), 1)]
    )
    found = lanes({A: program}, cut=((0, 1), (1, 2)), wants={A: ((0, 2),)}, held={})
    assert [str(x) for x in found[A] if x.lo == 1] == ["R[1:2] m0 1:2"]


def test_what_has_begun_goes_on_although_the_program_needs_no_forward_any_more() -> None:
    """Votes wait for it."""
    cut, wants = ((0, 2), (2, 4)), {A: ((0, 4),), B: ((0, 4),)}
    held = {A: [Item.prefix(0, (2, 4), 3, 1)], B: [Item.prefix(0, (0, 2), 2, 1)]}
    found = lanes({A: (), B: ()}, cut=cut, wants=wants, held=held)
    assert [str(x) for x in (*found[A], *found[B])] == ["R[2:4] m3 3:4", "R[0:2] m2 1:2"]


def test_a_single_stage_has_no_successor() -> None:
    step = shape(1, 1)
    assert not lanes(step.build().programs, cut=step.cut, wants=step.wants(), held={})


@pytest.mark.parametrize("mode", RedundancyMode)
def test_only_eager_has_lanes(mode: RedundancyMode) -> None:
    job = replace(spec(pipelines=1, stages=3, steps=4), redundancy=RedundancySpec(mode))
    request = request_of(job)
    rest = proceed(request).directives.values()
    is_eager = mode is RedundancyMode.EAGER
    assert any(d.lane for d in decide(request).directives.values()) is is_eager
    assert any(c.lane for c in rest) is is_eager
    assert all(x.op is Op.R for c in rest for x in c.lane)


def test_without_room_nothing_is_computed_ahead() -> None:
    job = spec(pipelines=1, stages=3, steps=4)
    job = replace(job, redundancy=RedundancySpec(RedundancyMode.EAGER, "1Ki"))
    costs = (LayerCost(1.0, 2.0, 10, 1, activation_bytes=2000),) * 4
    request = replace(request_of(job), costs=costs, memory_bytes=20_000)
    assert not any(d.lane for d in decide(request).directives.values())
    assert not any(c.lane for c in proceed(request).directives.values())


def test_a_recovery_continues_what_was_computed_ahead() -> None:
    """With one pipeline the predecessor takes over, and repeats no forward that it has done."""
    job = spec(pipelines=1, stages=3, steps=6)
    job = replace(job, redundancy=RedundancySpec(RedundancyMode.EAGER))
    found = []
    for after in range(60, 260, 8):
        request = request_of(job, kill="a1", after=after)
        held = {
            (a, i.index): i.part
            for a, report in request.reports.items()
            for i in report.items
            if i.kind is Kind.PREFIX
        }
        for agent, order in decide(request).directives.items():
            for x in order.resume:
                if x.op is Op.F and x.ranges:
                    assert held[agent, x.index] == x.ranges[0][0] - x.lo
                    assert x.ranges[0][1] == x.hi
                    found.append(x)
    assert found
