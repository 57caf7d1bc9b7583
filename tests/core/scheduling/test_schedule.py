"""The rules of the list scheduler: priorities, caps, the reserved slot, forced releases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.graph.tasks import TaskGraph, TaskId, Transfer
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs

from .steps import name, step

A, B = AgentId("a"), AgentId("b")
BATCH = BatchShape(4, 1, 1)


def task(agent, op, stage, m):
    return TaskId(agent, Instruction(op, 0, stage, stage + 1, m))


def build(graph, *, batch=BATCH, caps=None, latency=0.0, layers=2):
    costs = Costs.even(layers, latency=latency)
    return schedule.build(graph, batch=batch, costs=costs, caps=caps or {})


def test_backward_comes_before_forward_and_weight_last():
    f0, i0, w0, f1 = (task(A, op, 1, m) for op, m in ((Op.F, 0), (Op.I, 0), (Op.W, 0), (Op.F, 1)))
    graph = TaskGraph((A,), {f0: (), i0: (f0,), w0: (i0,), f1: ()})
    program = build(graph, caps={A: 2}).programs[A]
    assert program == tuple(t.instruction for t in (f0, i0, f1, w0))


def test_the_cap_delays_forwards():
    forwards = [task(A, Op.F, 0, m) for m in range(4)]
    backwards = [task(A, Op.B, 0, m) for m in range(4)]
    graph = TaskGraph((A,), {f: () for f in forwards})
    graph.tasks.update({b: (f,) for f, b in zip(forwards, backwards, strict=True)})
    ops = "".join(x.op.value for x in build(graph, caps={A: 2}).programs[A])
    assert ops == "FFBFBFBB"
    ops = "".join(x.op.value for x in build(graph).programs[A])
    assert ops == "FFFFBBBB"


def test_activations_that_exist_already_count():
    backwards = [task(A, Op.B, 0, m) for m in range(2)]
    forward, last = task(A, Op.F, 0, 2), task(A, Op.B, 0, 2)
    graph = TaskGraph((A,), {b: () for b in backwards} | {forward: (), last: (forward,)})
    made = build(graph, caps={A: 2})
    assert [str(x) for x in made.programs[A]][:2] == ["B[0:1] m0", "F[0:1] m2"]
    assert made.forced == 0


def test_agents_of_two_stages_do_not_deadlock():
    """Each agent runs both stages for the other's micro-batches, with the smallest caps."""
    graph = TaskGraph((A, B), {})
    for m in range(4):
        first, second = (A, B) if m % 2 else (B, A)
        f0, f1 = task(first, Op.F, 0, m), task(second, Op.F, 1, m)
        b1, b0 = task(second, Op.B, 1, m), task(first, Op.B, 0, m)
        graph.tasks[f0] = ()
        graph.tasks[f1] = (Transfer(Item.out(0, 1, m), first, second, f0),)
        graph.tasks[b1] = (f1,)
        graph.tasks[b0] = (f0, Transfer(Item.ingrad(0, 1, m), second, first, b1))
    assert build(graph, caps={A: 1, B: 1}).forced == 0


def test_releases_beyond_an_impossible_cap_are_counted():
    f0, f1 = task(A, Op.F, 0, 0), task(A, Op.F, 1, 0)
    b1, b0 = task(A, Op.B, 1, 0), task(A, Op.B, 0, 0)
    graph = TaskGraph((A,), {f0: (), f1: (f0,), b1: (f1,), b0: (f0, b1)})
    made = build(graph, caps={A: 0})
    assert made.forced == 1
    assert len(made.programs[A]) == 4


def test_a_forward_without_a_backward_takes_no_slot():
    """After a loss, only its output is needed."""
    forwards = [task(A, Op.F, 0, m) for m in range(3)]
    graph = TaskGraph((A,), {f: () for f in forwards})
    assert build(graph, caps={A: 1}).forced == 0


def test_a_cyclic_graph_is_rejected():
    first, second = task(A, Op.B, 0, 0), task(A, Op.B, 0, 1)
    graph = TaskGraph((A,), {first: (second,), second: (first,)})
    with pytest.raises(ValueError, match="2 tasks of the graph can never run: it is cyclic"):
        build(graph)


@pytest.mark.parametrize("latency", [0.0, 0.5])
def test_existing_items_are_sent_first_in_order_of_need(latency):
    late, soon = Item.out(0, 1, 1), Item.out(0, 1, 0)
    ways = {m: Transfer(item, B, A, None) for m, item in ((1, late), (0, soon))}
    first, second = task(A, Op.F, 1, 0), task(A, Op.F, 1, 1)
    graph = TaskGraph((A, B), {second: (ways[1], first), first: (ways[0],)})
    made = build(graph, latency=latency)
    assert [x.item for x in made.programs[B]] == [soon, late]
    assert [x.op for x in made.programs[A]] == [Op.RECV, Op.F, Op.RECV, Op.F]
    assert made.length == 2 + latency


def test_an_agent_receives_earlier_messages_before_the_one_that_it_needs():
    made_by = [task(B, Op.F, 0, m) for m in range(2)]
    ways = [Transfer(Item.out(0, 1, m), B, A, t) for m, t in enumerate(made_by)]
    late, soon = task(A, Op.F, 1, 0), task(A, Op.F, 1, 1)
    graph = TaskGraph((A, B), {t: () for t in made_by} | {soon: (ways[1],), late: (ways[0], soon)})
    lines = [str(x) for x in build(graph).programs[A]]
    assert lines == ["RECV (out[1]) <b", "RECV (out[1] m1) <b", "F[1:2] m1", "F[1:2] m0"]


def test_equal_graphs_give_equal_programs():
    shape = step(BatchShape(16, 2, 2), 2, 4, lost=((1, 1),), split=True, extra=4)
    one, other = shape.build(), shape.build()
    assert one.programs == other.programs
    assert (one.length, one.end) == (other.length, other.end)


def test_caps_follow_the_seats():
    seats = ((name(0, 0), None, name(0, 2)),)
    assert schedule.caps(seats) == {name(0, 0): 3, name(0, 2): 1}
    assert schedule.caps(seats, 8) == {name(0, 0): 11, name(0, 2): 9}


def test_measured_costs_add_up_over_layers():
    profile = [
        LayerCost(1.0, 2.0, 0, 0, input_gradient_s=1.25, weight_gradient_s=1.5, can_split=True),
        LayerCost(3.0, 4.0, 0, 0, input_gradient_s=2.25, weight_gradient_s=2.5, can_split=True),
    ]
    costs = Costs.measured(profile)
    durations = costs.durations()
    spans = {op: durations.of(Instruction(op, 0, 0, 2)) for op in (Op.F, Op.B, Op.I, Op.W, Op.V)}
    assert spans == {Op.F: 4.0, Op.B: 6.0, Op.I: 3.5, Op.W: 4.0, Op.V: 4.0}
    assert durations.of(Instruction(Op.VOTE)) == 0.0
    assert costs.can_split
    assert not Costs.measured([profile[0], replace(profile[1], can_split=False)]).can_split


def test_half_a_backward_that_cannot_be_split_takes_as_long_as_the_whole():
    """After a loss an agent may need one half only. It runs the whole and drops the rest."""
    durations = Costs.measured([LayerCost(1.0, 2.0, 0, 0), LayerCost(3.0, 4.0, 0, 0)]).durations()
    halves = [durations.of(Instruction(op, 0, 0, 2)) for op in (Op.I, Op.W)]
    assert halves == [6.0, 6.0]


def test_unequal_stages_are_balanced_by_cost():
    costs = Costs((1.0, 3.0), (2.0, 6.0), (1.0, 3.0), (1.0, 3.0))
    shape = step(BatchShape(32, 1, 2), 2, 2, lost=((1, 0),), costs=costs)
    work = shape.work()
    load = {}
    for (s, _), agent in work.items():
        load[agent] = load.get(agent, 0) + (3.0 if s == 0 else 9.0)
    assert max(load.values()) - min(load.values()) <= 9.0


def test_an_equal_task_that_is_another_object_is_found():
    graph = TaskGraph((A,), {task(A, Op.B, 0, 0): (task(A, Op.F, 0, 0),), task(A, Op.F, 0, 0): ()})
    assert [x.op for x in build(graph).programs[A]] == [Op.F, Op.B]
    way = Transfer(Item.out(0, 1, 0), A, B, task(A, Op.F, 0, 0))
    graph = TaskGraph((A, B), {task(A, Op.F, 0, 0): (), task(B, Op.F, 1, 0): (way,)})
    assert [x.op for x in build(graph).programs[B]] == [Op.RECV, Op.F]


def test_waiting_for_an_unknown_task_is_rejected():
    graph = TaskGraph((A,), {task(A, Op.B, 0, 0): (task(A, Op.F, 0, 0),)})
    with pytest.raises(ValueError, match=r"a waits for F\[0:1\] m0, which is not a task"):
        build(graph)
