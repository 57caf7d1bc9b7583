"""Tied layers are updated with the gradients of each other's stages."""

from __future__ import annotations

from dataclasses import replace

from tests.core.graph.small import goals, name

from bamboo_core.graph.closure import Holdings, missing, steady, undisturbed
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.items import Item
from bamboo_core.model.program import Op, updating, voted
from bamboo_core.model.rules import rule

ENDS = {"stages": 3, "replica": False, "ties": ((0, 2),)}


def of(graph, agent, op):
    return [t.instruction for t in graph.tasks if t.agent == agent and t.instruction.op is op]


def test_the_ends_of_a_pipeline_vote_on_their_own_layers_with_both_gradients() -> None:
    graph = steady(goals(2, **ENDS))
    (first,), (middle,), (last,) = (of(graph, name(0, s), Op.VOTE) for s in range(3))
    assert list(voted(first.ranges)) == [((0, 1), (0, 1), (0, 2)), ((2, 3), (2, 2), (0, 2))]
    assert list(voted(middle.ranges)) == [((1, 2), (1, 2), (0, 2))]
    assert list(voted(last.ranges)) == [((2, 3), (2, 3), (0, 2)), ((0, 1), (0, 0), (0, 2))]


def test_their_updates_need_both_gradients() -> None:
    wanted = goals(2, **ENDS)
    graph = steady(wanted)
    (first,), (middle,) = (of(graph, name(0, s), Op.UPDATE) for s in range(2))
    assert list(updating(first.ranges)) == [((0, 1), (0, 2)), ((2, 3), (0, 2))]
    assert list(updating(middle.ranges)) == [((1, 2), (0, 2))]
    needed = rule(first, wanted.batch, 3).needs
    assert {Item.red(0, (2, 3), z, 2) for z in range(2)} < set(needed)


def test_one_stage_with_both_needs_nothing_else() -> None:
    graph = steady(goals(2, 1, layers_per_stage=3, replica=False, ties=((0, 2),)))
    (vote,), (update,) = (of(graph, name(0, 0), op) for op in (Op.VOTE, Op.UPDATE))
    assert list(voted(vote.ranges)) == [((0, 3), (0, 3), (0, 2))]
    assert list(updating(update.ranges)) == [((0, 3), (0, 2))]


def laggard(reds):
    """Holdings in which one agent has version 0 of layer 0, and these reduced gradients."""
    wanted = goals(1, **ENDS)
    held = undisturbed(wanted)
    items = frozenset(Item.red(0, cut, 0, 1) for cut in reds)
    held[name(0, 0)] = Holdings({0: 0}, items, frozenset({0}), -1)
    return wanted, held


def test_a_laggard_is_rolled_forward_with_both_gradients() -> None:
    wanted, held = laggard([(0, 1), (2, 3)])
    (older,) = (x for x in of(missing(wanted, held), name(0, 0), Op.UPDATE) if x.step == -1)
    assert list(updating(older.ranges)) == [((0, 1), (0, 1)), ((2, 3), (0, 1))]


def test_a_laggard_without_the_other_gradient_cannot_be_used() -> None:
    wanted, held = laggard([(0, 1)])
    index = HoldingsIndex(
        held, batch=wanted.batch, target=1, short_notice=frozenset(), ties=wanted.ties
    )
    assert 0 not in index.have[name(0, 0)]
    untied = HoldingsIndex(held, batch=wanted.batch, target=1, short_notice=frozenset())
    assert 0 in untied.have[name(0, 0)]


def test_whoever_learns_of_the_commit_updates_with_what_it_has() -> None:
    """Nothing is reduced again once the step is committed."""
    wanted = goals(1, **ENDS)
    held = undisturbed(wanted)
    reds = frozenset(Item.red(1, cut, 0, 1) for cut in ((0, 1), (2, 3)))
    for stage in (0, 2):
        known = held[name(0, stage)]
        held[name(0, stage)] = replace(known, items=reds, commits=known.commits | {1})
    held[name(0, 1)] = replace(held[name(0, 1)], items=frozenset({Item.red(1, (1, 2), 0, 1)}))
    graph = missing(wanted, held)
    assert not [t for t in graph.tasks if t.instruction.op is Op.REDUCE]
    (update,) = of(graph, name(0, 0), Op.UPDATE)
    assert list(updating(update.ranges)) == [((0, 1), (0, 1)), ((2, 3), (0, 1))]
