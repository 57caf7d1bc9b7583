"""A job that trains gets a node that it has lost back from one behind it that has not started."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.admission.builders import a_claim, node_room, shape, words

from bamboo_core.admission.line import decide
from bamboo_core.controller.turn import Word

NODES = shape("a1", "a2", "b1", "b2")
FULL = {name: node_room(name[0], 0, 1) for name in NODES.usable}
OLD = a_claim("old", NODES, grid=(1, 2, 2), age=9, held={"a1": 1, "b1": 1, "b2": 1}, training=True)
YOUNG = a_claim("young", NODES, grid=(2, 2, 2), held={"a2": 1})


@pytest.mark.parametrize("zone", ["a", ""])
def test_a_new_job_gives_back_the_node_that_a_pod_ahead_of_it_waits_for(zone: str) -> None:
    """The scheduler gave it to a pod of the new job, which had waited for longer."""
    old = replace(OLD, waiting={zone: 1})
    found = decide([old, YOUNG], FULL, now=0)
    assert words(found) == {"old": Word.GROWS, "young": Word.WAITS}
    assert found.turns["uid-young"].first == old.job
    gone, room = replace(YOUNG, held={}), FULL | {"a2": node_room("a", 1)}
    found = decide([old, gone], room, found.patience, now=1)
    assert words(found) == {"old": Word.GROWS, "young": Word.KEEPS}, "else its pods might be first"
    whole = replace(old, held={**old.held, "a2": 1}, waiting={})
    found = decide([whole, gone], FULL, found.patience, now=2)
    assert words(found) == {"old": Word.GROWS, "young": Word.ASKS}


def test_a_new_job_keeps_nodes_that_no_pod_ahead_of_it_can_take() -> None:
    for waiting in ({}, {"b": 1}):
        found = decide([replace(OLD, waiting=waiting), YOUNG], FULL, now=0)
        assert words(found) == {"old": Word.GROWS, "young": Word.ASKS}
    first = replace(YOUNG, priority=1)
    found = decide([replace(OLD, waiting={"a": 1}), first], FULL, now=0)
    assert words(found) == {"young": Word.ASKS, "old": Word.KEEPS}


def test_only_as_many_new_jobs_give_nodes_back_as_pods_wait() -> None:
    three = shape("a1", "a2", "a3", "b1", "b2")
    room = {name: node_room(name[0], 0, 1) for name in three.usable}
    old = replace(OLD, shape=three, waiting={"a": 1})
    middle = replace(YOUNG, shape=three)
    last = a_claim("last", three, grid=(2, 2, 2), age=-1, held={"a3": 1})
    found = decide([old, middle, last], room, now=0)
    assert words(found) == {"old": Word.GROWS, "young": Word.KEEPS, "last": Word.WAITS}


def test_a_started_job_behind_gives_nothing_back() -> None:
    started = replace(YOUNG, is_training=True)
    found = decide([replace(OLD, waiting={"a": 1}), started], FULL, now=0)
    assert Word.WAITS not in words(found).values()
