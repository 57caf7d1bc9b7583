"""Moves of agents to other stages, as the planner advises them and as it makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from tests.core.arbiter.fleet import spec
from tests.rotation import in_turn

from bamboo_core.api.spec import Adjacency, JobSpec, PlacementSpec, RedundancyMode
from bamboo_core.model.ids import AgentId, Coordinate
from bamboo_core.model.numerics import choose
from bamboo_core.model.program import Op, single
from bamboo_core.placement import moves
from bamboo_core.placement.plan import Move, wants
from bamboo_core.placement.seats import Seats
from bamboo_core.planning import planner, relocation, requests
from bamboo_core.planning.displays import between_steps
from bamboo_core.planning.team import NoPlanError
from bamboo_core.protocol.messages import LayerCost

SLOT = LayerCost(1.0, 2.0, 1, 0, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True)
Lost = Sequence[tuple[int, int]]


def grid(pipelines: int, stages: int, lost: Lost) -> Seats:
    gone = set(lost)
    return tuple(
        tuple(None if (d, s) in gone else AgentId(f"{d}-{s}") for s in range(stages))
        for d in range(pipelines)
    )


def job(pipelines: int, stages: int, steps: int = 100, **placement: object) -> JobSpec:
    found = spec(pipelines=pipelines, stages=stages, steps=steps, every=0)
    adjacency = PlacementSpec(adjacency=Adjacency.CLUSTER, **placement)  # type: ignore[arg-type]
    redundancy = replace(found.redundancy, mode=RedundancyMode.REPLICA)
    return replace(found, placement=adjacency, redundancy=redundancy)


def asked(
    seats: Seats, microbatches: int, *, layer: LayerCost = SLOT, steps: int = 100
) -> requests.PlanRequest:
    """All agents of these seats have stopped between two steps, and hold what they want."""
    stages, made = len(seats[0]), job(len(seats), len(seats[0]), steps)
    cut = tuple((s, s + 1) for s in range(stages))
    found = between_steps.request(made, (layer,) * stages, cut, seats, memory_bytes=1 << 40)
    return replace(
        found,
        batch=choose(microbatches=microbatches, pipelines_max=len(seats)),
        participants={a: replace(x, zone="z") for a, x in found.participants.items()},
    )


def advice(request: requests.PlanRequest) -> requests.Relocation | None:
    decision, rest, *more = planner.compute(request)
    assert isinstance(decision, requests.Decision)
    assert isinstance(rest, requests.Continuations)
    if not more:
        return None
    (found,) = more
    assert isinstance(found, requests.Relocation)
    return found


# The patterns of two pipelines with the longest steps that were found (docs/adr/0053).
WORST: list[Lost] = [
    [(0, 3), (0, 4), (1, 0), (1, 4)],
    [(0, 2), (0, 4), (0, 6), (1, 6), (1, 7)],
    [(0, 2), (0, 3), (0, 6), (1, 3), (1, 7)],
    [(0, 3), (0, 4), (1, 3), (1, 5)],
    [(0, 5), (1, 3), (1, 5)],
    [(0, 5), (0, 7), (1, 6)],
]


@pytest.mark.parametrize("lost", [WORST[0], *in_turn(3, WORST[1:])], ids=str)
def test_one_move_brings_two_pipelines_near_the_bound(lost: Lost) -> None:
    bound = 3 * 128 * 8 / (16 - len(lost))
    found = advice(asked(grid(2, 8, lost), 128))
    assert found is not None
    assert found.now > 1.08 * bound
    assert found.then <= 1.08 * bound


def test_the_advice_is_the_same_every_time() -> None:
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16)
    turned = replace(
        request,
        participants=dict(reversed(request.participants.items())),
        reports=dict(reversed(request.reports.items())),
    )
    assert advice(request) == advice(request) == advice(turned) is not None


def test_a_stage_without_an_agent_gets_one_even_where_that_costs_a_while() -> None:
    dear = replace(SLOT, parameter_bytes=10**12)
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16, layer=dear)
    found = advice(replace(request, memory_bytes=0))
    assert found is not None
    assert found.move.to.stage == 1
    assert found.then <= found.now


def test_a_move_that_pays_too_late_is_not_made() -> None:
    """Two stages of 3 x 2 GB take 10 s at 10 Gb/s, and 20 steps must save that and two pauses."""
    lost = [(0, 5), (0, 7), (1, 6)]
    large = replace(SLOT, parameter_bytes=2 * 10**9)
    request = asked(grid(2, 8, lost), 16, layer=large)
    assert request.spec.transport.bytes_per_s == 1.25e9
    plan = decide(request).plan
    move = Move(AgentId("0-3"), Coordinate(0, 5))
    seats = moves.moved(plan.pipelines, move)
    held = wants(
        pipelines=seats, cut=plan.cut, live=plan.live, mode=RedundancyMode.REPLICA, holders={}
    )
    after, price = replace(plan, pipelines=seats, wants=held), 2.0 + 2 * 3 * 2 / 1.25
    now = 10.0  # of which 3 % are less than what must be saved
    for saved, pays in ((price / 20 - 0.01, False), (price / 20 + 0.01, True)):
        found = relocation.best(request, plan, now, [(move, after, now - saved)])
        assert (found is not None) == pays
    unknown = replace(request, costs=())
    assert relocation.best(unknown, plan, now, [(move, after, 9.6)]) is not None
    assert relocation.best(unknown, plan, now, [(move, after, 9.8)]) is None, "costs have errors"
    assert relocation.best(request, plan, now, []) is None


@pytest.mark.parametrize(
    ("why", "request_"),
    [
        ("one seat is empty", asked(grid(2, 4, [(0, 1)]), 16)),
        ("the job is nearly over", asked(grid(2, 4, [(0, 1), (1, 1)]), 16, steps=5)),
        (
            "an agent leaves",
            replace(asked(grid(2, 4, [(0, 1), (1, 1)]), 16), draining=frozenset({AgentId("0-0")})),
        ),
        (
            "no device has room for two stages more",
            replace(
                asked(
                    grid(2, 4, [(0, 1), (1, 1)]), 16, layer=replace(SLOT, parameter_bytes=1 << 30)
                ),
                memory_bytes=13 << 30,
            ),
        ),
        ("no stage has two agents", asked(grid(1, 4, [(0, 1), (0, 3)]), 16)),
    ],
)
def test_no_move_is_advised_if(why: str, request_: requests.PlanRequest) -> None:
    assert advice(request_) is None, why


def test_large_steps_are_tried_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner works for other jobs, too."""
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16)
    plan, found = decide(request).plan, []
    for tasks in (4 * 4 * 16 * 3 - 1, 4 * 4 * 16 - 1, 10**6):
        monkeypatch.setattr(relocation, "_TASKS", tasks)
        found.append(len(list(relocation.tries(request, plan, 1e9, lambda p, _: p))))
    assert found[:2] == [2, 0]
    assert 2 < found[2] <= 16


def test_programs_that_cannot_run_advise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16)
    assert advice(request) is not None
    real, calls = planner._Planning._steady, []

    def broken(self: planner._Planning, *args: object, **options: bool) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise NoPlanError(requests.PlannerFault("it cannot run"))
        return real(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner._Planning, "_steady", broken)
    assert advice(request) is None
    assert len(calls) > 1


def test_a_newer_request_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    request, calls = asked(grid(2, 4, [(0, 1), (1, 1)]), 16), []
    real = planner._Planning.relocate

    def relocate(self: planner._Planning, *args: object) -> object:
        self.is_wanted = lambda: bool(calls.append(1))
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(planner._Planning, "relocate", relocate)
    assert advice(request) is None
    assert len(calls) == 1


# ---------------------------------------------------------------- the move itself

MOVE = Move(AgentId("0-2"), Coordinate(0, 1))


def with_move(above: float, move: Move = MOVE) -> requests.PlanRequest:
    """The two agents of stage 1 are lost. above: bytes from which copies are got first."""
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16)
    return replace(request, move=move, catch_up_above_bytes=above)


def decide(request: requests.PlanRequest) -> requests.Decision:
    found = next(planner.compute(request))
    assert isinstance(found, requests.Decision), found
    return found


def test_small_copies_come_with_the_move() -> None:
    found = decide(with_move(inf))
    assert found.plan.pipelines[0] == ("0-0", "0-2", None, "0-3")
    assert found.plan.move is None
    assert found.copies == 1  # it has its replica's layer already
    assert found.plan.target == 1
    before = {a for a, d in found.directives.items() if any(x.op is Op.F for x in single(d.resume))}
    assert MOVE.agent in before, "it works in its old seat while it gets its copies"


def test_large_copies_come_first_and_nothing_is_given_up_for_them() -> None:
    found = decide(with_move(0.0))
    assert found.plan.pipelines == grid(2, 4, [(0, 1), (0, 2), (1, 1)])
    assert found.plan.move == MOVE
    assert found.plan.learners == {MOVE.agent: ((1, 4),)}  # its new layers, and all that it has
    directive = found.directives[MOVE.agent]
    assert directive.wanted == ((1, 4),)
    for agent, told in found.directives.items():
        assert not any(x.op is Op.RECV and x.peer == MOVE.agent for x in single(told.resume)), agent


def test_an_agent_with_its_copies_gets_the_seat_of_its_move() -> None:
    first = decide(with_move(0.0)).plan
    request = asked(grid(2, 4, [(0, 1), (1, 1)]), 16)
    mover = replace(request.reports[MOVE.agent], versions=dict.fromkeys((1, 2, 3), 1))
    again = replace(
        request,
        grid=first.pipelines,
        move=first.move,
        reports={**request.reports, MOVE.agent: mover},
        catch_up_above_bytes=0.0,
    )
    found = decide(again)
    assert found.plan.pipelines[0] == ("0-0", "0-2", None, "0-3")
    assert (found.plan.learners, found.plan.move, found.copies) == ({}, None, 0)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("an agent leaves", {"draining": frozenset({AgentId("1-3")})}),
        ("the agent is lost", {"move": Move(AgentId("1-1"), Coordinate(0, 1))}),
        ("the seat is taken", {"move": Move(AgentId("0-2"), Coordinate(0, 3))}),
    ],
)
def test_a_move_is_not_made_if(why: str, change: dict[str, object]) -> None:
    request = replace(with_move(0.0), **change)  # type: ignore[arg-type]
    assert decide(request).plan.pipelines == decide(replace(request, move=None)).plan.pipelines, why


def test_a_move_is_not_made_if_the_other_agent_of_its_stage_is_lost_meanwhile() -> None:
    request = with_move(0.0)
    other = AgentId("1-2")
    left = replace(
        request,
        participants={a: p for a, p in request.participants.items() if a != other},
        reports={a: r for a, r in request.reports.items() if a != other},
    )
    assert decide(left).plan.pipelines == grid(2, 4, [(0, 1), (1, 1), (1, 2)])
    assert decide(left).plan.learners == {}


def test_no_pipeline_goes_while_an_agent_gets_its_copies() -> None:
    """Without it there would be one pipeline: all wait for its copies instead."""
    request = asked(grid(2, 3, [(0, 1), (1, 1)]), 16)
    move = Move(AgentId("0-2"), Coordinate(0, 1))
    found = decide(replace(request, move=move, catch_up_above_bytes=0.0))
    assert found.plan.pipelines[0] == ("0-0", "0-2", None)
    assert found.plan.learners == {}


def test_the_mean_load_counts_the_cheaper_backward() -> None:
    plan = decide(asked(grid(2, 4, [(0, 1)]), 16)).plan
    assert relocation.mean_load(plan, (SLOT,) * 4) == pytest.approx(3 * 16 * 4 / 7)
    dear = replace(SLOT, input_gradient_s=1.5, weight_gradient_s=1.5)
    assert relocation.mean_load(plan, (dear,) * 4) == pytest.approx(3 * 16 * 4 / 7)
    assert relocation.mean_load(plan, ()) == pytest.approx(3 * 16 * 4 / 7)
