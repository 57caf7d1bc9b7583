"""The ledger decides as a plain one does that looks at all nodes again, and looks at few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.admission import line
from bamboo_core.admission.claims import Claim, NodeRoom, Shape
from bamboo_core.admission.ledger import Ledger
from bamboo_core.admission.line import decide
from bamboo_core.api.spec import Adjacency
from bamboo_core.controller.turn import Word
from bamboo_core.controller.view import JobView
from bamboo_core.placement import fitting

from .plain_ledger import PlainLedger

GPU, CPU = "nvidia.com/gpu", "cpu"
NODES = [f"{zone}{number}" for zone in "abc" for number in range(3)]


def node_room(zone: str, gpus: int, cpu: int = 9) -> NodeRoom:
    free = {GPU: gpus * fitting.ONE, CPU: cpu * fitting.ONE}
    return NodeRoom(zone, free, {GPU: 8 * fitting.ONE, CPU: 9 * fitting.ONE})


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    asks = {GPU: draw(st.integers(1, 2)) * fitting.ONE, CPU: draw(st.integers(0, 3)) * 500}
    suitable = draw(st.permutations(NODES))[: draw(st.integers(3, 9))]
    usable = [name for name in suitable if draw(st.integers(0, 5))]
    return Shape(asks, tuple(usable), frozenset(suitable))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Claim], dict[str, NodeRoom]]:
    """Jobs of a few shapes, and nodes; some pods are on nodes that are gone."""
    room = {
        name: node_room(name[0], draw(st.integers(-1, 6)), draw(st.integers(0, 9)))
        for name in NODES
        if draw(st.integers(0, 9))
    }
    known = draw(st.lists(shapes(), min_size=1, max_size=3))
    held = st.dictionaries(st.sampled_from(NODES), st.integers(1, 3), max_size=3)
    claims = []
    for number in range(draw(st.integers(1, 12))):
        least, stages = draw(st.integers(1, 2)), draw(st.integers(1, 4))
        claims.append(
            Claim(
                JobView("ns", f"j{number}", f"uid-{number}", 1, float(draw(st.integers(0, 3)))),
                draw(st.integers(0, 1)),
                stages,
                least,
                draw(st.integers(least, 3)),
                draw(st.sampled_from(Adjacency)),
                draw(st.sampled_from(known)),
                draw(held) if draw(st.booleans()) else {},
                is_training=draw(st.integers(0, 4)) == 0,
                assured=draw(st.integers(0, least)) * stages,
                closed=frozenset(draw(st.sets(st.sampled_from("abc"), max_size=1))),
            )
        )
    return claims, room


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_it_decides_as_a_plain_ledger(cluster: tuple[list[Claim], dict[str, NodeRoom]]) -> None:
    claims, room = cluster
    found = decide(claims, room, now=0)
    with patch.object(line, "Ledger", PlainLedger):
        assert found == decide(claims, room, now=0)


@settings(max_examples=200, deadline=None)
@given(clusters(), st.data())
def test_each_answer_is_that_of_a_plain_ledger(
    cluster: tuple[list[Claim], dict[str, NodeRoom]], data: st.DataObject
) -> None:
    """Jobs take, give back and take again, in any order."""
    claims, room = cluster
    one, other = Ledger(room), PlainLedger(room)
    deeds: dict[str, Callable[[Any, Claim], Any]] = {
        "there": lambda ledger, claim: ledger.there(claim),
        "take": lambda ledger, claim: ledger.take(claim, claim.seats),
        "give": lambda ledger, claim: ledger.give_back(claim, 1),
        "keep": lambda ledger, claim: ledger.give_back(claim, -1),
        "empty": lambda ledger, claim: ledger.when_empty(claim),
    }
    for _ in range(data.draw(st.integers(1, 20))):
        deed, claim = (
            deeds[data.draw(st.sampled_from(sorted(deeds)))],
            data.draw(st.sampled_from(claims)),
        )
        assert deed(one, claim) == deed(other, claim)


def before(claims: list[Claim], uid: str) -> set[str]:
    """UIDs of the jobs that stand before that one in the line."""
    order = [c.job.uid for c in sorted(claims, key=lambda claim: line._place(claim, {}, 0))]
    return set(order[: order.index(uid)])


@settings(max_examples=200, deadline=None)
@given(clusters(), st.data())
def test_no_change_of_its_spec_lets_a_started_job_take_room_from_those_before_it(
    cluster: tuple[list[Claim], dict[str, NodeRoom]], data: st.DataObject
) -> None:
    claims, room = cluster
    claims[0] = replace(claims[0], is_training=True)
    least = data.draw(st.integers(max(1, claims[0].assured // claims[0].stages), 9))
    changed = replace(claims[0], least=least, most=data.draw(st.integers(least, 12)))
    uid, first = changed.job.uid, before(claims, changed.job.uid)
    old, new = (decide([c, *claims[1:]], room, now=0).turns for c in (claims[0], changed))
    assert {job: new[job] for job in first} == {job: old[job] for job in first}
    assert new[uid].word in (Word.KEEPS, Word.GROWS, Word.ASKS)
    assert new[uid].assured == claims[0].assured


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_a_started_job_whose_pods_are_refused_takes_no_room_from_anybody(
    cluster: tuple[list[Claim], dict[str, NodeRoom]],
) -> None:
    claims, room = cluster
    refused = replace(claims[0], is_training=True, is_refused=True)
    found = dict(decide([refused, *claims[1:]], room, now=0).turns)
    del found[refused.job.uid]
    assert found == decide(claims[1:], room, now=0).turns


def looks(jobs: int, nodes: int, *, half_started: bool = False) -> int:
    """How often the room of a node is counted for equal jobs of 2 x 4 agents."""
    names = [f"n{i}" for i in range(nodes)]
    shape = Shape({GPU: fitting.ONE}, tuple(names), frozenset(names))
    room = {name: node_room("abc"[i % 3], 8 - half_started) for i, name in enumerate(names)}
    claims = [
        Claim(
            JobView("ns", f"j{i}", f"uid-{i}", 1, float(i)), 0, 4, 2, 2, Adjacency.ALTERNATE,
            shape, {names[i % nodes]: 1} if half_started else {},
        )
        for i in range(jobs)
    ]  # fmt: skip
    with patch.object(fitting, "room", wraps=fitting.room) as counted:
        found = decide(claims, room, now=0)
    assert Word.STARTS in {turn.word for turn in found.turns.values()}
    return counted.call_count


@pytest.mark.parametrize("half_started", [False, True])
@pytest.mark.parametrize("jobs_per_node", [0.8, 3])
def test_the_work_grows_with_the_jobs_not_with_jobs_times_nodes(
    half_started: bool, jobs_per_node: float
) -> None:
    few = looks(int(50 * jobs_per_node), 50, half_started=half_started)
    many = looks(int(400 * jobs_per_node), 400, half_started=half_started)
    assert many < 12 * few  # eight times as many jobs and nodes; 64 times, if it looked at all
    assert many < 16 * 400 * jobs_per_node
