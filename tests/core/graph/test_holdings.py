"""What the index of holdings says: who can send what, what is begun, which versions are usable."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.graph.tasks import Holdings
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import AgentReport, CommitRecord

A, B, C = AgentId("a"), AgentId("b"), AgentId("c")
CUT = (0, 2)
BATCH = BatchShape(8, 4, 2)  # 2 leaves of 4 micro-batches, 2 slices
TARGET = 5


def index(short_notice: Iterable[AgentId] = (), **held: Holdings) -> HoldingsIndex:
    holdings = {AgentId(name): x for name, x in held.items()}
    return HoldingsIndex(holdings, batch=BATCH, target=TARGET, short_notice=frozenset(short_notice))


def items(*found: Item) -> Holdings:
    return Holdings(items=frozenset(found))


def test_steps_are_relative_to_the_target() -> None:
    found = index(a=items(Item.out(TARGET, 2, 3)), b=items(Item.out(TARGET - 1, 2, 3)))
    assert found.held == {A: {Item.out(0, 2, 3)}, B: {Item.out(-1, 2, 3)}}
    assert found.where == {Item.out(0, 2, 3): [A], Item.out(-1, 2, 3): [B]}


@pytest.mark.parametrize(("step", "is_begun"), [(-1, False), (0, True)])
def test_a_step_is_begun_once_something_of_it_exists(step: int, is_begun: bool) -> None:
    assert index(a=items(Item.out(TARGET + step, 2, 0))).is_begun is is_begun


def test_a_staying_agent_does_not_send_what_it_is_writing() -> None:
    bound = [Item.act(TARGET, CUT, 1), Item.partial(TARGET, CUT, 0, 3)]
    bound.append(Item.sum(TARGET, CUT, (0, 1)))
    assert index(a=items(*bound)).where == {}
    assert len(index([A], a=items(*bound)).where) == 3


def test_a_vote_is_never_sent_on() -> None:
    assert index(a=items(Item.vote(TARGET, A))).where == {}


def test_the_largest_unfinished_sum_of_an_agent_counts() -> None:
    sums = [Item.partial(TARGET, CUT, 1, n) for n in (1, 3, 2)]
    found = index(a=items(*sums), b=items(Item.partial(TARGET, CUT, 1, 1)))
    assert found.counts(Kind.PART, CUT, 1) == {A: 3, B: 1}
    assert found.count(A, Kind.PART, CUT, 1) == 3
    assert found.count(C, Kind.PART, CUT, 1) == 0
    assert found.counts(Kind.PART, CUT, 0) == {}


@pytest.mark.parametrize("step", [TARGET - 1, TARGET + 1])
def test_unfinished_sums_of_other_steps_do_not_count(step: int) -> None:
    found = index(a=items(Item.partial(step, CUT, 1, 2)))
    assert found.counts(Kind.PART, CUT, 1) == {}
    assert found.done == {}


def test_the_fullest_sum_of_those_who_leave_on_short_notice() -> None:
    sums = {"a": 3, "b": 1, "c": 2}
    held = {name: items(Item.partial(TARGET, CUT, 0, n)) for name, n in sums.items()}
    assert index([B, C], **held).short_notice_count(Kind.PART, CUT, 0) == 2
    assert index(**held).short_notice_count(Kind.PART, CUT, 0) == 0


def test_what_an_agent_has_done_of_a_leaf_in_half_microbatches() -> None:
    begun = [Item.act(TARGET, CUT, 4), Item.act(TARGET, CUT, 7), Item.partial(TARGET, CUT, 0, 3)]
    begun.append(Item.sum(TARGET, CUT, (0, 1)))
    assert index(a=items(*begun)).done == {(0, 2, 1): {A: 2}, (0, 2, 0): {A: 6}}
    assert index([A], a=items(*begun)).done == {}


def test_of_the_holders_of_a_layer_those_that_stay_come_first_then_the_newest() -> None:
    old, new = Holdings({0: TARGET - 1}), Holdings({0: TARGET}, commits=frozenset({TARGET - 1}))
    both = Holdings(old.versions, frozenset(reds(0, 1)))
    assert index(a=both, b=new, c=new).sources == {0: (B, C)}
    assert index([B, C], a=both, b=new, c=new).sources == {0: (A,)}
    assert index([A, B, C], a=both, b=new, c=new).sources == {0: (B, C)}


def reds(*slices: int) -> list[Item]:
    return [Item.red(TARGET - 1, CUT, z, 2) for z in slices]


@pytest.mark.parametrize(
    ("slices", "commits", "is_usable"),
    [((0, 1), {TARGET - 1}, True), ((0,), {TARGET - 1}, False), ((0, 1), {TARGET - 2}, False)],
)
def test_an_older_version_is_usable_with_the_whole_gradient_and_the_commit(
    slices: tuple[int, ...], commits: set[int], is_usable: bool
) -> None:
    late = Holdings({1: TARGET - 1})
    other = Holdings(items=frozenset(reds(*slices)), commits=frozenset(commits))
    assert index(a=late, b=other).have[A] == ({1: -1} if is_usable else {})


def test_a_version_beyond_the_target_is_not_usable() -> None:
    assert index(a=Holdings({0: TARGET + 1, 1: TARGET})).have == {A: {1: 0}}


def test_a_report_tells_commits_by_record_and_by_item() -> None:
    held = frozenset({Item.commit(1), Item.out(2, 1, 0)})
    report = AgentReport(Fence(), Fence(), {0: 2}, held, (CommitRecord(0),), 1)
    assert Holdings.of(report) == Holdings({0: 2}, held, frozenset({0, 1}), 1)
