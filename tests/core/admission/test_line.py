"""Jobs that compete: who may make pods, that all get their turn, and what they are told.

The invariant: of competing jobs that have not started, at most one holds pods without having its
minimum, which is bound to nodes or has room of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.admission.builders import GPU, a_claim, node_room, shape, words
from tests.core.controller.builders import pod

from bamboo_core.admission.claims import Claim, NodeRoom, Shape
from bamboo_core.admission.line import (
    Decision,
    Patience,
    decide,
    is_unheard,
)
from bamboo_core.api.spec import Adjacency
from bamboo_core.controller.reconcile import (
    ASK_ELSEWHERE_S,
)
from bamboo_core.controller.turn import ASIDE_S, PATIENCE_S, Aside, Word
from bamboo_core.controller.view import ClusterView, PodPhase

A, AB = shape("n"), shape("a", "b", "c")
MISSING = '0/2 nodes are available: persistentvolumeclaim "data" not found'


def test_two_jobs_for_one_room_the_older_one_starts_and_the_other_has_no_pods() -> None:
    claims = [a_claim("young", A), a_claim("old", A, age=9)]
    found = decide(claims, {"n": node_room("a", 3)}, now=0)
    assert words(found) == {"old": Word.STARTS, "young": Word.KEEPS}
    claims.append(a_claim("third", A, age=5))
    found = decide(claims, {"n": node_room("a", 3)}, now=0)
    assert words(found) == {"old": Word.STARTS, "third": Word.KEEPS, "young": Word.WAITS}
    assert found.turns["uid-third"].first == claims[1].job
    turn = found.turns["uid-young"]
    assert (turn.room, turn.minimum, turn.first, turn.is_outranked) == (0, 2, claims[2].job, False)


def test_nobody_asks_for_nodes_while_a_job_ahead_of_it_starts() -> None:
    """Its pods would take the room that is kept for a pod of the other one, which was pinned to a
    full zone while the room was not free yet."""
    big = a_claim("big", AB, grid=(3, 4, 2), age=9)
    small = a_claim("small", AB, priority=5, adjacency=Adjacency.ALTERNATE)
    room = {"a": node_room("a", 0, 1), "b": node_room("b", 1), "c": node_room("c", 1)}
    found = decide([big, small], room, now=0)
    assert words(found) == {"small": Word.STARTS, "big": Word.KEEPS}
    assert found.askers == {"uid-big"}
    half = replace(small, held={"b": 1})
    room["b"] = node_room("b", 0, 1)
    found = decide([big, half], room, now=0)
    assert words(found) == {"small": Word.STARTS, "big": Word.KEEPS}
    assert found.turns["uid-big"].first == small.job
    whole = replace(small, held={"b": 1, "c": 1}, assured=2)
    room["c"] = node_room("c", 0, 1)
    assert words(decide([big, whole], room, now=0)) == {"small": Word.GROWS, "big": Word.ASKS}


def test_one_that_asks_keeps_its_pods_and_its_patience_while_another_one_starts() -> None:
    big = a_claim("big", AB, grid=(1, 1, 9), held={"a": 1})
    small, room = a_claim("small", AB, priority=5), {"a": node_room("a", 0, 1)}
    before = decide([big], room, now=0)
    assert words(before) == {"big": Word.ASKS}
    room |= {"b": node_room("b", 2)}
    found = decide([big, small], room, before.patience, now=PATIENCE_S / 2)
    assert words(found) == {"small": Word.STARTS, "big": Word.KEEPS}
    assert "uid-big" in found.patience


def test_priority_goes_before_age() -> None:
    claims = [a_claim("low", A, age=9), a_claim("high", A, priority=5), a_claim("mid", A, age=1)]
    found = decide(claims, {"n": node_room("a", 0)}, now=0)
    assert words(found) == {"high": Word.ASKS, "low": Word.WAITS, "mid": Word.WAITS}
    assert found.turns["uid-low"].is_outranked


def test_half_started_jobs_the_one_behind_gives_its_pods_back() -> None:
    claims = [a_claim("one", A, age=9, held={"n": 1}), a_claim("two", A, held={"n": 1})]
    found = decide(claims, {"n": node_room("a", 0, 2)}, now=0)
    assert words(found) == {"one": Word.STARTS, "two": Word.WAITS}
    assert found.turns["uid-two"].first == claims[0].job


def test_pods_are_given_back_only_if_that_helps() -> None:
    """The one behind has room of its own; the first needs more than it could give."""
    first = a_claim("first", A, grid=(2, 2, 4), age=9)
    small = a_claim("small", A, held={"n": 1})
    found = decide([first, small], {"n": node_room("a", 0, 9)}, now=0)
    assert words(found) == {"first": Word.ASKS, "small": Word.WAITS}
    other = a_claim("small", shape("n", "m"), held={"m": 1})
    room = {"n": node_room("a", 0, 9), "m": node_room("a", 1, 2)}
    assert words(decide([first, other], room, now=0)) == {"first": Word.ASKS, "small": Word.STARTS}


def test_only_pods_on_nodes_that_the_first_could_use_are_given_back() -> None:
    claims = [
        a_claim("first", A, age=9, held={"n": 1}),
        a_claim("behind", A, age=5, held={"n": 1}),
        a_claim("elsewhere", shape("m"), held={"m": 1}),
    ]
    room = {"n": node_room("a", 0, 2), "m": node_room("a", 0, 1)}
    found = words(decide(claims, room, now=0))
    assert found == {"first": Word.STARTS, "behind": Word.WAITS, "elsewhere": Word.ASKS}


def test_pods_that_are_kept_leave_no_room() -> None:
    """The job behind could give back its node. That does not help the first, so it is not free."""
    first = a_claim("first", A, age=9, adjacency=Adjacency.ALTERNATE)  # it needs two zones
    behind = a_claim("behind", A, held={"n": 1})
    found = words(decide([first, behind], {"n": node_room("a", 1, 2)}, now=0))
    assert found == {"first": Word.ASKS, "behind": Word.WAITS}


def test_a_job_that_has_lost_agents_takes_no_more_than_its_grid() -> None:
    hurt = a_claim("hurt", A, grid=(1, 2, 2), age=9, held={"n": 1}, training=True)
    small = a_claim("small", A, grid=(1, 1, 1))
    for free, word in ((4, Word.STARTS), (3, Word.ASKS)):
        found = words(decide([hurt, small], {"n": node_room("a", free)}, now=0))
        assert found == {"hurt": Word.GROWS, "small": word}


def test_of_jobs_with_one_grid_only_the_one_with_the_larger_minimum_is_too_big() -> None:
    able, big = a_claim("able", A, grid=(2, 4, 1), age=9), a_claim("big", A, grid=(4, 4, 1))
    aside = {"uid-big": Patience(0.0, 2, aside_until=100.0)}
    found = decide([able, big], {"n": node_room("a", 0, 2)}, aside, now=50)
    assert found.patience == aside
    assert found.turns["uid-able"].aside is None


def test_a_job_that_has_its_minimum_is_never_sent_away() -> None:
    low = a_claim("low", A, held={"n": 2})
    high = a_claim("high", A, priority=9)
    assert words(decide([low, high], {"n": node_room("a", 0, 2)}, now=0)) == {
        "high": Word.ASKS,
        "low": Word.KEEPS,
    }
    hurt = a_claim("low", A, held={"n": 1}, training=True)
    room = {"n": node_room("a", 1, 2)}  # it gets back what it needs to go on
    assert words(decide([hurt, high], room, now=0)) == {"high": Word.ASKS, "low": Word.KEEPS}


def test_the_first_in_line_keeps_room_that_it_could_use() -> None:
    big = a_claim("big", A, grid=(1, 1, 4), age=9)
    small = a_claim("small", A)
    assert words(decide([big, small], {"n": node_room("a", 3, 8)}, now=0)) == {
        "big": Word.ASKS,
        "small": Word.WAITS,
    }


def test_a_small_job_starts_beside_it_in_room_that_it_cannot_use() -> None:
    """A zone fills half of a ring at most, and large agents do not fit on small nodes."""
    big = a_claim("big", A, grid=(1, 1, 4), age=9, adjacency=Adjacency.ALTERNATE)
    small = a_claim("small", A)
    room = {"n": node_room("a", 4, 8)}
    assert words(decide([big, small], room, now=0)) == {"big": Word.ASKS, "small": Word.STARTS}
    large = a_claim("large", shape("n", gpus=8), age=9)
    assert words(decide([large, small], room, now=0))["small"] == Word.STARTS


def test_jobs_that_share_no_node_do_not_wait_for_each_other() -> None:
    one, two = a_claim("one", shape("n")), a_claim("two", shape("m"))
    room = {"n": node_room("a", 0, 4), "m": node_room("b", 0, 4)}
    assert set(words(decide([one, two], room, now=0)).values()) == {Word.ASKS}
    p, q = a_claim("one", shape(wish="p")), a_claim("two", shape(wish="q"))
    assert set(words(decide([p, q], {}, now=0)).values()) == {Word.ASKS}
    both = [p, a_claim("two", shape(wish="p"))]
    assert words(decide(both, {}, now=0)) == {"one": Word.ASKS, "two": Word.WAITS}


def test_a_started_job_of_higher_order_gets_its_whole_grid_first() -> None:
    started = a_claim("started", A, grid=(1, 3, 2), age=9, held={"n": 2})
    new = a_claim("new", A)
    assert words(decide([started, new], {"n": node_room("a", 4)}, now=0)) == {
        "started": Word.GROWS,
        "new": Word.ASKS,
    }
    assert words(decide([started, new], {"n": node_room("a", 6)}, now=0))["new"] == Word.STARTS


def test_a_raised_minimum_stands_in_the_line() -> None:
    """First comes the job of higher priority, whatever the one that trains asks for now."""
    first = a_claim("first", A, grid=(1, 1, 8), priority=9, age=9)
    raised = a_claim("raised", A, grid=(8, 8, 1), held={"n": 1}, training=True, assured=1)
    room = {"n": node_room("a", 8, 9)}
    assert words(decide([first, raised], room, now=0)) == {"first": "Starts", "raised": "Keeps"}
    room = {"n": node_room("a", 7, 9)}
    found = decide([first, raised], room, now=0)
    assert words(found) == {"first": "Asks", "raised": "Keeps"}
    assert found.turns["uid-raised"].assured == 1


def test_a_raised_minimum_is_waited_for_as_that_of_a_new_job() -> None:
    raised = a_claim("raised", A, grid=(4, 4, 1), age=9, held={"n": 1}, training=True, assured=1)
    new = a_claim("new", A)
    room = {"n": node_room("a", 2, 9)}
    assert words(decide([raised, new], room, now=0)) == {"raised": "Asks", "new": "Waits"}
    room = {"n": node_room("a", 5, 9)}
    assert words(decide([raised, new], room, now=0)) == {"raised": "Grows", "new": "Starts"}


def test_what_was_assured_counts_for_a_raised_minimum() -> None:
    """It has lost one of the two agents that it started with, and two are free."""
    hurt = a_claim("hurt", A, grid=(3, 3, 1), age=9, held={"n": 1}, training=True, assured=2)
    found = decide([hurt, a_claim("new", A)], {"n": node_room("a", 2, 9)}, now=0)
    assert words(found) == {"hurt": "Grows", "new": "Asks"}


def test_a_raised_minimum_that_no_nodes_suffice_for_does_not_hold_up_the_others_for_ever() -> None:
    big = a_claim("big", A, grid=(9, 9, 1), age=9, held={"n": 1}, training=True, assured=2)
    room, new = {"n": node_room("a", 3, 4)}, a_claim("new", A)
    found = decide([big, new], room, now=0)
    assert words(found) == {"big": "Asks", "new": "Waits"}
    assert found.turns["uid-big"].aside is not None
    for _ in range(2):
        found = decide([big, new], room, found.patience, now=PATIENCE_S)
    assert words(found)["new"] == Word.STARTS
    room = {"n": node_room("a", 2, 4)}  # what it has started with is kept for it all the same
    found = decide([big, new], room, found.patience, now=PATIENCE_S + 1)
    assert words(found) == {"big": "Keeps", "new": "Asks"}


def test_what_is_assured_is_kept_in_zones_that_the_first_grid_may_use() -> None:
    """A larger grid may have more agents in a zone, but that is no reason to keep room there."""
    ring = shape("n", "m")
    hurt = a_claim("hurt", ring, held={"n": 1}, training=True, adjacency=Adjacency.ALTERNATE)
    raised = replace(hurt, least=4, most=4)
    first = a_claim("first", A, grid=(1, 1, 1), priority=9)
    room = {"n": node_room("a", 1, 9), "m": node_room("b", 0, 9)}
    for claim in (hurt, raised):
        assert words(decide([first, claim], room, now=0))["first"] == Word.STARTS


@pytest.mark.parametrize("how", ["refused", "unheard", "was unheard"])
def test_no_room_is_kept_for_pods_that_nobody_places(how: str) -> None:
    stuck = a_claim("stuck", A, grid=(8, 8, 1), held={"n": 1}, training=True)
    stuck = replace(stuck, is_refused=how == "refused", is_unheard=how == "unheard")
    known = {"uid-stuck": Patience(0, 0, aside_until=9.0, is_unheard=True)}
    others = [a_claim(f"j{i}", A, age=9 - i) for i in range(4)]
    room = {"n": node_room("a", 8, 9)}
    found = words(decide([stuck, *others], room, known if how == "was unheard" else {}, now=1))
    assert found.pop("stuck") == Word.GROWS
    assert set(found.values()) == {Word.STARTS}


def test_a_zone_where_the_scheduler_refuses_pods_has_no_room() -> None:
    claims = [a_claim("one", A, closed=frozenset("a"))]
    assert words(decide(claims, {"n": node_room("a", 8)}, now=0)) == {"one": Word.ASKS}


def test_a_job_whose_pods_are_refused_goes_last() -> None:
    claims = [a_claim("refused", A, age=9, refused=True), a_claim("other", A)]
    found = words(decide(claims, {"n": node_room("a", 2)}, now=0))
    assert found == {"other": Word.STARTS, "refused": Word.KEEPS}


def test_a_job_whose_pods_no_scheduler_looks_at_goes_last_for_a_while() -> None:
    """Also after it has given them back."""
    new, room = a_claim("new", A), {"n": node_room("a", 2)}
    old = a_claim("old", A, age=9)
    found = decide([replace(old, is_unheard=True), new], room, now=100)
    last = {"new": Word.STARTS, "old": Word.KEEPS}
    assert words(found) == last
    for now in (101, 100 + ASIDE_S - 1):
        found = decide([old, new], room, found.patience, now=now)
        assert words(found) == last
    found = decide([old, new], room, found.patience, now=100 + ASIDE_S)
    assert words(found) == {"old": Word.STARTS, "new": Word.KEEPS}
    assert found.patience == {}


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({}, True),
        ({"created_at": 1.0 + 1e-3}, False),
        ({"created_at": 0.0}, False),  # unknown
        ({"refused_at": 5.0, "refusal": "0/2 nodes are available: 2 Insufficient cpu"}, False),
        ({"refused_at": 5.0, "refusal": MISSING}, True),
        ({"refused_at": 5.0, "refusal": MISSING, "created_at": 2.0}, False),
        ({"node": "a-0"}, False),
        ({"deleting_at": 9.0}, False),
    ],
)
def test_pods_that_cannot_take_the_room_that_is_kept_for_them(
    waits: dict[str, Any], expected: bool
) -> None:
    waiting = replace(pod(0, 0, node="", phase=PodPhase.PENDING), **{"created_at": 1.0} | waits)
    view = ClusterView((), (pod(1, 0), waiting))
    assert is_unheard(view, 1.0 + ASK_ELSEWHERE_S) == expected


def test_a_job_too_big_for_all_nodes_stands_aside_after_a_while_and_comes_back() -> None:
    big, small = a_claim("big", A, grid=(1, 1, 9), age=9), a_claim("small", A)
    room = {"n": node_room("a", 2)}
    found = decide([big, small], room, now=0.0)
    assert words(found) == {"big": Word.ASKS, "small": Word.WAITS}
    times = (PATIENCE_S, PATIENCE_S + ASIDE_S)
    assert found.turns["uid-big"].aside == Aside(*times, is_now=False)
    found = decide([big, small], room, found.patience, now=PATIENCE_S)
    assert found.turns["uid-big"].aside == Aside(*times, is_now=True)
    found = decide([big, small], room, found.patience, now=PATIENCE_S)
    assert words(found) == {"big": Word.KEEPS, "small": Word.STARTS}
    more = {"n": node_room("a", 3)}  # one node has come: it asks again
    grown = decide([big, small], more, found.patience, now=PATIENCE_S + 1)
    grown = decide([big, small], more, grown.patience, now=PATIENCE_S + 1)
    assert words(grown) == {"big": Word.ASKS, "small": Word.WAITS}
    late = PATIENCE_S + ASIDE_S
    found = decide([big, small], room, found.patience, now=late)
    assert words(found) == {"big": Word.ASKS, "small": Word.WAITS}
    found = decide([big, small], room, found.patience, now=late + 1)
    assert words(found) == {"big": Word.ASKS, "small": Word.WAITS}
    enough = {"n": node_room("a", 0, 9)}
    assert decide([big, small], enough, found.patience, now=late + 2).patience == {}


def test_a_started_job_and_a_new_one_do_not_wait_for_each_other() -> None:
    """It has lost agents, and the scheduler gave their nodes to the other one."""
    old = a_claim("old", A, grid=(1, 1, 4), held={"n": 1}, training=True)
    new = a_claim("new", A, grid=(1, 1, 6), priority=1, held={"n": 5})
    found = decide([old, new], {"n": node_room("a", 0, 6)}, now=0.0)
    assert words(found) == {"old": Word.ASKS, "new": Word.WAITS}
    assert found.turns["uid-new"].first == old.job
    gone = replace(new, held={})
    found = decide([old, gone], {"n": node_room("a", 5, 6)}, found.patience, now=1.0)
    assert words(found) == {"old": Word.KEEPS, "new": Word.ASKS}, "its room is kept"
    elsewhere = a_claim("elsewhere", shape("m"), priority=2)
    room = {"n": node_room("a", 0, 6), "m": node_room("b", 0, 6)}
    found = decide([old, new, elsewhere], room, now=0.0)
    assert words(found)["elsewhere"] is Word.ASKS, "it can use none of its nodes"


def test_a_job_that_has_lost_its_state_waits_as_a_new_one() -> None:
    """It has stood aside while it trained. By that it must not lose its pods now."""
    big = a_claim("big", A, grid=(1, 1, 4), age=9, held={"n": 3}, training=True)
    small, room = a_claim("small", A, grid=(1, 1, 3)), {"n": node_room("a", 0, 3)}
    found = decide([big, small], room, now=0.0)
    for _ in range(2):
        found = decide([big, small], room, found.patience, now=PATIENCE_S)
    assert found.patience["uid-big"].aside_until > PATIENCE_S
    lost, room = replace(big, held={"n": 1}, is_training=False), {"n": node_room("a", 2, 3)}
    for now in (PATIENCE_S + 1, 2 * PATIENCE_S):
        found = decide([lost, small], room, found.patience, now=now)
        assert words(found) == {"big": Word.ASKS, "small": Word.WAITS}
    for _ in range(2):
        found = decide([lost, small], room, found.patience, now=2 * PATIENCE_S + 1)
    assert words(found) == {"big": Word.WAITS, "small": Word.STARTS}


LAME = Shape({GPU: 1}, ("n",), frozenset({"n", "c"}))
"""A node that suits but is cordoned, not ready, about to go, or no spot node."""


@pytest.mark.parametrize(
    ("wanted", "closed", "room"),
    [
        (LAME, "", {"n": node_room("a", 2), "c": node_room("a", 4)}),
        (shape("n", "c"), "a", {"n": node_room("b", 2), "c": node_room("a", 4)}),
    ],
)
def test_nodes_that_cannot_be_used_let_nobody_wait_for_ever(
    wanted: Shape, closed: str, room: dict[str, NodeRoom]
) -> None:
    """Nor does room that the scheduler gives to nobody."""
    big = a_claim("big", wanted, grid=(1, 1, 4), age=9, closed=frozenset(closed))
    small = a_claim("small", A)
    found = decide([big, small], room, now=0.0)
    assert words(found) == {"big": Word.ASKS, "small": Word.WAITS}
    for _ in range(2):
        found = decide([big, small], room, found.patience, now=PATIENCE_S)
    assert words(found) == {"big": Word.KEEPS, "small": Word.STARTS}


def test_room_that_other_jobs_leave_is_waited_for() -> None:
    """Also in a zone where the scheduler refuses pods meanwhile, and beside its own pods on a
    cordoned node."""
    closed = a_claim("big", A, grid=(1, 1, 4), age=9, closed=frozenset("a"))
    found = decide([closed, a_claim("small", A)], {"n": node_room("a", 0, 4)}, now=0.0)
    assert found.turns["uid-big"].aside is None
    held = a_claim("big", LAME, grid=(1, 1, 4), age=9, held={"c": 2})
    room = {"n": node_room("a", 0, 2), "c": node_room("a", 0, 9)}
    assert decide([held, a_claim("small", A)], room, now=0.0).turns["uid-big"].aside is None
    none = a_claim("big", LAME, grid=(1, 1, 4), age=9)
    assert decide([none, a_claim("small", A)], room, now=0.0).turns["uid-big"].aside is not None


# ------------------------------------------------------------ any cluster, any order of events


@dataclass
class World:
    """Nodes of one GPU in two zones, a scheduler that binds pods in any order, jobs that come, end
    and lose nodes."""

    random: random.Random
    free: dict[str, bool] = field(default_factory=dict)  # node -> whether it is free
    jobs: dict[str, Claim] = field(default_factory=dict)
    pods: Counter[str] = field(default_factory=Counter)  # job -> pods without a node
    now: float = 0.0
    turns: Decision = field(default_factory=lambda: Decision({}))

    def room(self) -> dict[str, NodeRoom]:
        return {n: node_room(n[0], int(is_free), 1) for n, is_free in self.free.items()}

    def decide(self) -> None:
        names = tuple(sorted(self.free))
        same = shape(*names)
        self.jobs = {
            uid: replace(c, shape=same, waiting={"": self.pods[uid]})
            for uid, c in self.jobs.items()
        }
        self.turns = decide(self.jobs.values(), self.room(), self.turns.patience, now=self.now)
        for uid, turn in self.turns.turns.items():
            claim = self.jobs[uid]
            if turn.word is Word.WAITS:
                self.leave(claim)
                self.jobs[uid] = replace(claim, held={})
            elif turn.word is not Word.KEEPS:
                self.pods[uid] = claim.seats - claim.pods
            else:
                self.pods[uid] = max(0, turn.assured - claim.pods)

    def leave(self, claim: Claim) -> None:
        self.pods[claim.job.uid] = 0
        for node in claim.held:
            self.free[node] = True

    def bind(self) -> None:
        waiting = [uid for uid, n in self.pods.items() for _ in range(n)]
        self.random.shuffle(waiting)
        for uid in waiting[: self.random.randint(0, len(waiting))]:
            there = sorted(node for node, is_free in self.free.items() if is_free)
            if not there:
                return
            node = self.random.choice(there)
            self.free[node] = False
            self.pods[uid] -= 1
            self.jobs[uid] = replace(self.jobs[uid], held={**self.jobs[uid].held, node: 1})

    def lose(self) -> None:
        """A node goes away, with its pod."""
        node = self.random.choice(sorted(self.free))
        del self.free[node]
        for uid, claim in self.jobs.items():
            held = {n: k for n, k in claim.held.items() if n != node}
            self.jobs[uid] = replace(claim, held=held)

    def end(self, uid: str) -> None:
        self.leave(self.jobs.pop(uid))
        del self.pods[uid]

    def check(self) -> None:
        """The invariant, and that those with room of their own can all have it at once."""
        new = [c for c in self.jobs.values() if not c.is_training]
        open_ = [c for c in new if c.pods < c.minimum]
        holding = [c for c in open_ if c.pods or self.pods[c.job.uid]]
        sure = [c for c in holding if self.turns.turns[c.job.uid].word is Word.STARTS]
        assert len(holding) - len(sure) <= 1
        assert sum(c.minimum - c.pods for c in sure) <= sum(self.free.values())


def has_started(claim: Claim) -> bool:
    return claim.pods >= claim.assured


def _grow(world: World, rng: random.Random, number: int) -> None:
    world.now += 1
    match rng.choice(("job", "job", "node", "node", "loss", "end", "raise", "bind")):
        case "job":
            least = rng.randint(1, 2)
            claim = a_claim(
                f"j{number}", A, grid=(least, rng.randint(least, 3), rng.randint(1, 3)),
                priority=rng.randint(0, 2), age=-number,
            )  # fmt: skip
            world.jobs[claim.job.uid], world.pods[claim.job.uid] = claim, 0
        case "node":
            world.free[f"{rng.choice('ab')}{number}"] = True
        case "loss" if world.free:
            world.lose()
        case "end" if done := [u for u, c in world.jobs.items() if has_started(c)]:
            world.end(rng.choice(sorted(done)))
        case "raise" if done := [u for u, c in world.jobs.items() if has_started(c)]:
            uid = rng.choice(sorted(done))
            least = world.jobs[uid].least + rng.randint(1, 3)
            world.jobs[uid] = replace(world.jobs[uid], is_training=True, least=least, most=least)
        case _:
            pass


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_at_most_one_job_holds_pods_without_its_minimum_and_all_start(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for number in range(40):
        _grow(world, rng, number)
        world.decide()
        world.check()
        world.bind()
        if rng.random() < 0.1:  # another operator: nothing is remembered
            world.turns = Decision({})
    world.free |= {f"a-last{n}": True for n in range(6)}  # enough for every job alone
    for _ in range(60 * max(1, len(world.jobs))):  # jobs that have started end some day
        if not world.jobs:
            break
        world.now += 60
        world.decide()
        world.check()
        world.bind()
        for uid in [u for u, c in world.jobs.items() if has_started(c)]:
            if rng.random() < 0.5:
                world.end(uid)
    assert not world.jobs


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(0, 3)), max_size=5),
    st.dictionaries(st.sampled_from(["a1", "a2", "b1", "b2", "c1"]), st.integers(0, 4)),
)
def test_the_order_of_the_claims_does_not_matter_and_more_room_never_hurts_the_first(
    grids: list[tuple[int, int, int]], free: dict[str, int]
) -> None:
    names = shape(*sorted(free))
    claims = [
        a_claim(
            f"j{i}",
            names,
            grid=(least, least, stages),
            priority=priority,
            age=-i,
            adjacency=Adjacency.ALTERNATE,
        )
        for i, (least, stages, priority) in enumerate(grids)
    ]
    room = {name: node_room(name[0], count, 4) for name, count in free.items()}
    found = decide(claims, room, now=0)
    assert found == decide(reversed(claims), room, now=0)
    assert list(found.turns.values()).count(Word.ASKS) <= 1
    if claims:
        first = min(claims, key=lambda c: (-c.priority, c.job.created_at))
        assert found.turns[first.job.uid].word in (Word.STARTS, Word.ASKS)
        more = {name: node_room(name[0], count + 4) for name, count in free.items()}
        if found.turns[first.job.uid].word is Word.STARTS:
            assert decide(claims, more, now=0).turns[first.job.uid].word is Word.STARTS
