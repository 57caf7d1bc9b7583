"""The wait-for graph: who holds up the training."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.events import StallCause
from bamboo_core.evidence.stalls import (
    Stall,
    find,
    several_overdue,
    slow_data,
    slow_links,
    slow_storage,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Activity, ActivityKind

A, B, C, D = (AgentId(name) for name in "abcd")
ALL = (A, B, C, D)


def waits(peer: AgentId | None, age_s: float = 9.0, text: str = "RECV m0") -> Activity:
    return Activity(ActivityKind.WAITING, age_s, instruction=text, peer=peer)


def runs(age_s: float, limit_s: float = 30.0) -> Activity:
    return Activity(ActivityKind.RUNNING, age_s, limit_s, "F m0")


def idle(age_s: float = 9.0) -> Activity:
    return Activity(ActivityKind.IDLE, age_s)


def look(activities: dict[AgentId, Activity], members: tuple[AgentId, ...] = ALL) -> Stall | None:
    return find(activities, members, wait_s=3.0)


def test_nobody_is_stuck_in_a_quiet_job() -> None:
    assert look({}) is None
    assert look({A: runs(29.9), B: waits(A), C: waits(B)}) is None


def test_an_instruction_beyond_its_limit() -> None:
    stall = look({A: runs(30.0), B: waits(A), C: waits(A), D: runs(9.0, limit_s=0.0)})
    assert stall is not None
    assert (stall.cause, stall.roots) == (StallCause.OVERDUE, (A,))
    assert stall.message == (
        "F m0 on a has taken 30.0 s, at most 30.0 s are expected; b, c wait for it"
    )


def test_the_instruction_that_is_latest_comes_first() -> None:
    stall = look({A: runs(125.0), B: runs(120.0, limit_s=10.0)})
    assert stall is not None
    assert stall.roots == (B,)


def test_several_late_agents_may_share_what_is_slow() -> None:
    """A file server of samples that stands still: to replace all its readers loses their layers."""
    assert look({A: runs(119.0), B: runs(119.0)}) is None
    stall = look({A: runs(120.0), B: runs(119.0)})
    assert stall is not None
    assert stall.roots == (A,)


def test_several_late_agents_are_told_before_they_count() -> None:
    """N4: two agents whose samples hang were not mentioned for 1,200 s."""
    reads = {a: Activity(ActivityKind.LOADING, 301.0, 300.0, "F m0 reads data") for a in (A, B)}
    assert look(reads) is None
    assert several_overdue(reads, ALL) == (
        "2 agents are late together (a, b): F m0 reads data on b has taken 301 s, at most 300 s are"
        " expected; what several agents wait for has 1200 s, since to replace them would not help"
    )
    assert several_overdue(reads, (A, C)) == ""
    assert several_overdue(reads | {B: runs(29.0)}, ALL) == ""
    assert several_overdue(reads | {B: runs(120.0)}, ALL) == ""  # find names it
    assert look(reads | {B: runs(120.0)}) is not None


def test_a_link_that_trickles_is_named_with_its_item_and_rate() -> None:
    def trickles(peer: AgentId | None, still_s: float, rate: float = 1.4) -> Activity:
        return Activity(ActivityKind.WAITING, 0.3, 0.0, "RECV m0", peer, still_s, rate)

    both = {A: trickles(B, 31.0), B: trickles(A, 30.0), C: trickles(D, 121.0, 2400.0), D: runs(9.0)}
    one, other = slow_links(both, ALL)
    assert (one.ends, one.sender, one.is_lasting) == ((A, B), B, False)
    assert one.message == (
        "a has got 1 B/s from b for 31 s (RECV m0): the link counts as standing still"
    )
    assert (other.ends, other.is_lasting) == ((C, D), True)
    assert "c has got 2 kB/s from d" in other.message
    assert slow_links({A: trickles(B, 31.0)}, (A, C)) == []
    assert slow_links({A: trickles(B, 31.0)}, (B, C)) == []
    assert slow_links({A: trickles(None, 31.0), B: waits(A, 99.0)}, ALL) == []


def test_a_limit_may_be_shorter_than_a_second() -> None:
    stall = look({A: runs(0.6, limit_s=0.5)})
    assert stall is not None
    assert stall.roots == (A,)


def test_loading_has_a_limit_too() -> None:
    loading = Activity(ActivityKind.LOADING, 400.0, 300.0, "LOAD[0:2]")
    stall = look({A: loading})
    assert stall is not None
    assert stall.message == "LOAD[0:2] on a has taken 400.0 s, at most 300.0 s are expected"


def test_agents_that_wait_for_each_other() -> None:
    stall = look({A: waits(B, text="RECV x"), B: waits(C), C: waits(A), D: waits(C, 4.0)})
    assert stall is not None
    assert stall.cause is StallCause.CYCLE
    assert stall.roots == (C, A, B)  # for C two agents wait
    assert stall.message.startswith("agents have waited for each other for 9.0 s: a for b (RECV x)")


def test_a_cycle_needs_patience_everywhere() -> None:
    assert look({A: waits(B), B: waits(A, age_s=2.9)}) is None
    assert look({A: waits(B), B: waits(A, age_s=3.0)}) is not None


def test_a_wait_for_one_that_has_nothing_to_do() -> None:
    stall = look({A: waits(B), B: waits(C, 8.0), C: idle()})
    assert stall is not None
    assert (stall.cause, stall.roots) == (StallCause.NOT_SENT, (C, B))
    assert stall.message == "b has waited for c for 8.0 s (RECV m0), and c has nothing to do"
    assert look({A: waits(B), B: idle(2.9)}) is None


def test_a_wait_for_one_that_takes_no_part() -> None:
    stall = look({A: waits(D)}, members=(A, B))
    assert stall is not None
    assert stall.roots == (D, A)
    assert "takes no part" in stall.message


def test_a_wait_for_the_operator_is_no_stall() -> None:
    assert look({A: waits(None), B: waits(A)}) is None


def test_a_wait_for_orders_that_the_operator_has_sent() -> None:
    known = {A: waits(None, 9.0), B: waits(A)}
    stall = find(known, ALL, wait_s=3.0, is_complete=True)
    assert stall is not None
    assert (stall.cause, stall.roots) == (StallCause.NOT_SENT, (A,))


def test_a_long_wait_for_storage_is_told_and_no_stall() -> None:
    def loads(age_s: float, limit_s: float = 0.0) -> Activity:
        return Activity(ActivityKind.LOADING, age_s, limit_s, "SAVE[0:1] waits for storage")

    assert look({A: loads(9999.0), B: waits(A)}) is None
    assert (
        slow_storage({A: loads(119.0), B: loads(999.0, limit_s=300.0), C: runs(500.0)}, ALL) == ""
    )
    assert slow_data({A: loads(120.0)}, ALL) == ""
    text = slow_storage({A: loads(120.0), B: loads(150.0), D: loads(300.0)}, (A, B))
    assert text == "storage is slow: a, b have waited for files for up to 150 s"


def test_a_sample_that_does_not_come_is_told_before_it_is_overdue() -> None:
    def reads(age_s: float) -> Activity:
        what = "F[0:4] m3 @7 reads sample 9 of spec.data"
        return Activity(ActivityKind.LOADING, age_s, 300.0, what)

    said = "F[0:4] m3 @7 reads sample 9 of spec.data on b has taken {}, at most {} s are expected"
    remedy = "its __getitem__ has not returned: give what it waits for a time-out that raises"
    assert slow_data({A: reads(119.0), B: reads(119.0)}, ALL) == ""
    assert slow_storage({B: reads(130.0)}, ALL) == ""
    assert slow_data({A: reads(119.0), B: reads(130.0)}, ALL) == (
        f"data are slow: {said.format('130 s', '300')}; {remedy}"
    )
    assert slow_data({B: reads(301.0)}, ALL) == ""
    stall = look({B: reads(301.0)})
    assert stall is not None
    assert stall.message == f"{said.format('301.0 s', '300.0')}; {remedy}"


def test_what_agents_that_are_no_members_do_is_of_no_interest() -> None:
    assert look({D: runs(99.0)}, members=(A, B)) is None


def test_long_cycles_and_crowds_are_named_in_part() -> None:
    names = [AgentId(f"n{i}") for i in range(8)]
    ring = {a: waits(names[(i + 1) % 8]) for i, a in enumerate(names)}
    stall = find(ring, names, wait_s=3.0)
    assert stall is not None
    assert stall.message == (
        "agents have waited for each other for 9.0 s: n0 for n1 (RECV m0), n1 for n2 (RECV m0),"
        " n2 for n3 (RECV m0), n3 for n4 (RECV m0) and 4 more"
    )
    crowd = {names[0]: runs(31.0), **{a: waits(names[0]) for a in names[1:]}}
    stall = find(crowd, names, wait_s=3.0)
    assert stall is not None
    assert "and 3 more wait" in stall.message


ACTIVITIES = st.one_of(
    st.builds(waits, st.sampled_from([*ALL, None]), st.floats(0, 10)),
    st.builds(runs, st.floats(0, 200), st.sampled_from([0.0, 30.0])),
    st.builds(idle, st.floats(0, 10)),
)


@given(st.dictionaries(st.sampled_from(ALL), ACTIVITIES))
def test_a_stall_is_named_exactly_if_no_chain_of_waits_ends_well(
    activities: dict[AgentId, Activity],
) -> None:
    """Against a plain definition: who can still be reached by progress."""
    stall = look(activities)
    overdue = {
        a
        for a, x in activities.items()
        if x.kind is ActivityKind.RUNNING and 0 < x.limit_s <= x.age_s
    }
    if len(overdue) > 1:
        overdue = {a for a in overdue if activities[a].age_s >= 4 * activities[a].limit_s}
    if overdue:
        assert stall is not None
        assert stall.roots[0] in overdue
        return
    ends_well = {a for a in ALL if not _is_stuck(a, activities)}
    while more := {
        a
        for a in set(ALL) - ends_well
        if activities[a].kind is ActivityKind.WAITING and activities[a].peer in ends_well
    }:
        ends_well |= more
    stuck = {a for a in set(ALL) - ends_well if activities[a].kind is ActivityKind.WAITING}
    assert (stall is not None) == bool(stuck or not ends_well)
    if stall is not None:
        assert not ends_well.intersection(stall.roots)


def _is_stuck(agent: AgentId, activities: dict[AgentId, Activity]) -> bool:
    """Whether the agent will do nothing unless another one does something."""
    found = activities.get(agent)
    if found is None or found.kind is ActivityKind.RUNNING:
        return False
    if found.kind is ActivityKind.WAITING and found.peer is None:
        return False
    return found.age_s >= 3.0


def test_agents_that_have_not_begun() -> None:
    idlers = dict.fromkeys(ALL, idle())
    stall = look(idlers)
    assert stall is not None
    assert (stall.cause, stall.roots) == (StallCause.NOT_SENT, ALL)
    assert look(idlers | {C: idle(2.9)}) is None
    assert look(idlers | {C: runs(5.0)}) is None
    assert find(idlers, ALL, wait_s=3.0, finished=ALL) is None
    left = find(idlers | {B: runs(5.0)}, ALL, wait_s=3.0, finished=(A, B))
    assert left is not None
    assert left.roots == (C, D)
