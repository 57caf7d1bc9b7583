"""Which reports can be true: every number ends where the job's do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.graph.reports import Extent, impossible
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind, parse_item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import AgentReport, CommitRecord

EXTENT = Extent(steps=9, layers=4, batch=BatchShape(16, 2, 4), evals=3)
NOTHING = AgentReport(Fence(1, 1, 1), Fence(1, 1, 1), {}, frozenset())

LARGEST = [
    Item.act(9, (0, 4), 15),
    Item.out(9, 4, 15),
    Item.ingrad(9, 4, 15),
    Item.prefix(9, (0, 4), 15, 4),
    Item.partial(9, (0, 4), 7, 2),
    Item.sum(9, (0, 4), (7, 8)),
    Item.piece(9, (0, 4), (7, 8), 7, 8),
    Item.red(9, (0, 4), 7, 8),
    Item.eval(9, 4, 2),
    Item.score(9, 2),
    Item.vote(9, AgentId("a")),
    Item.commit(9),
    Item.ver(9, 3),
    Item.file(9, 3),
]


def with_items(*items: Item) -> AgentReport:
    return replace(NOTHING, items=frozenset(items))


def test_the_largest_numbers_of_each_kind_are_possible() -> None:
    assert {item.kind for item in LARGEST} == set(Kind)
    assert impossible(with_items(*LARGEST), EXTENT) == ""


@pytest.mark.parametrize("item", LARGEST, ids=str)
@pytest.mark.parametrize("field", ["step", "lo", "hi", "index", "part"])
def test_one_more_is_not(item: Item, field: str) -> None:
    largest = {"step": 9, "lo": 4, "hi": 4}.get(field, getattr(item, field))
    wrong = item._replace(**{field: largest + 1})
    assert impossible(with_items(*LARGEST, wrong), EXTENT) == f"item {wrong}"


def test_an_item_without_end_is_impossible() -> None:
    assert impossible(with_items(parse_item("red[0:1000000000000]")), EXTENT)
    assert len(impossible(with_items(parse_item(f"red[0:{'9' * 4000}]")), EXTENT)) < 100


def test_a_step_before_the_first_is_impossible() -> None:
    assert impossible(with_items(parse_item("out[1] @-1")), EXTENT) == "item out[1] @-1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {4: 1}}, "version 1 of layer 4"),
        ({"versions": {-1: 1}}, "version 1 of layer -1"),
        ({"versions": {3: 10}}, "version 10 of layer 3"),
        ({"commits": (CommitRecord(9),)}, "the commit of step 9"),
        ({"ended": 10}, "the end of step 10"),
    ],
)
def test_versions_commits_and_ends_are_compared_too(changes: dict[str, object], words: str) -> None:
    assert impossible(replace(NOTHING, **changes), EXTENT) == words  # type: ignore[arg-type]


def test_the_newest_state_of_a_finished_job_is_possible() -> None:
    done = replace(NOTHING, versions={3: 9}, commits=(CommitRecord(8),), ended=9)
    assert impossible(done, EXTENT) == ""
