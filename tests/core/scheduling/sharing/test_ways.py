"""Ways to share lost work: own leaves stay, orphans go where the policy says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.scheduling.steps import name, step

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape, fewest
from bamboo_core.planning import comparison
from bamboo_core.scheduling.candidates import ALLOWED, WAYS, candidates, likeliest
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.sharing.dealing import pipelines_of
from bamboo_core.scheduling.sharing.orders import positions
from bamboo_core.scheduling.sharing.step_work import StepWork

AUTO, SHADOW, PEERS, DIFFUSE = RecoveryPolicy
BATCH = BatchShape(32, 2, 2)


def assigned(policy, lost, *, batch=BATCH, pipelines=2, stages=4, mode=RedundancyMode.REPLICA):
    shape = step(batch, pipelines, stages, lost, policy=policy, mode=mode)
    return shape.work()


def moved(work, *, batch=BATCH, pipelines=2):
    """(stage, leaf) -> agent, where the agent is not the one in the seat."""
    dealt = pipelines_of(batch, pipelines)
    return {(s, leaf): a for (s, leaf), a in work.items() if a != name(dealt[leaf], s)}


@pytest.mark.parametrize("policy", list(RecoveryPolicy))
def test_without_a_loss_all_agents_keep_their_leaves(policy):
    assert not moved(assigned(policy, ()))


def test_shadow_gives_everything_to_the_ring_predecessor():
    work = moved(assigned(SHADOW, ((1, 2),)))
    assert len(work) == 8
    assert set(work.values()) == {name(1, 1)}
    assert set(moved(assigned(SHADOW, ((1, 0),))).values()) == {name(1, 3)}


def test_shadow_falls_back_to_any_holder_when_the_shadow_is_lost_too():
    work = assigned(SHADOW, ((1, 1), (1, 2)))
    takers = {a for (s, leaf), a in moved(work).items() if s == 2}
    assert takers <= {name(0, 2), name(0, 1)}


def test_peers_shares_among_the_same_stage_of_other_pipelines():
    batch = BatchShape(48, 2, 4)
    work = assigned(PEERS, ((1, 2),), batch=batch, pipelines=3)
    takers = Counter(moved(work, batch=batch, pipelines=3).values())
    assert takers == {name(0, 2): 4, name(2, 2): 4}


def test_peers_falls_back_to_a_replica_when_no_peer_is_left():
    work = moved(assigned(PEERS, ((0, 2), (1, 2))))
    assert set(work.values()) == {name(0, 1), name(1, 1)}


def test_diffuse_balances_the_load_over_all_agents():
    batch = BatchShape(128, 2, 4)
    work = assigned(DIFFUSE, ((1, 3),), batch=batch, pipelines=4, stages=8)
    loads = Counter(work.values())
    assert max(loads.values()) == -(-64 * 8 // 31)
    assert min(loads.values()) >= max(loads.values()) - 1


def test_without_replicas_only_agents_of_the_same_stage_can_help():
    work = assigned(DIFFUSE, ((1, 2),), mode=RedundancyMode.NONE)
    assert set(moved(work).values()) == {name(0, 2)}


@given(
    pipelines=st.integers(1, 4),
    stages=st.integers(1, 6),
    leaves=st.integers(4, 24),
    size=st.integers(1, 3),
    policy=st.sampled_from(list(RecoveryPolicy)),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_every_leaf_goes_to_a_holder_and_survivors_keep_their_leaves(
    pipelines, stages, leaves, size, policy, data
):
    batch = BatchShape(leaves * size, size, 4)
    grid = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = tuple(data.draw(st.lists(st.sampled_from(grid), max_size=len(grid) - 1, unique=True)))
    shape = step(batch, pipelines, stages, lost, policy=policy)
    holders = shape.holders()
    if not all(holders):
        with pytest.raises(ValueError, match="has no live holder"):
            shape.work()
        return
    work = shape.work()
    assert set(work) == {(s, leaf) for s in range(stages) for leaf in range(leaves)}
    assert all(a in holders[s] for (s, _), a in work.items())
    assert work == shape.work()
    if policy in (SHADOW, PEERS):
        dealt = pipelines_of(batch, pipelines)
        kept = {(s, leaf) for s, leaf in work if shape.seats[dealt[leaf]][s]}
        assert not kept & set(moved(work, batch=batch, pipelines=pipelines))


@given(lost=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_diffuse_is_never_more_uneven_than_the_other_policies(lost):
    batch = BatchShape(96, 1, 4)
    top = {}
    for policy in RecoveryPolicy:
        shape = step(batch, 4, 6, tuple(sorted(lost)), policy=policy)
        if not all(shape.holders()):
            return
        top[policy] = max(Counter(shape.work().values()).values())
    assert top[DIFFUSE] <= min(top.values()) + 1  # the start-up offset may cost a leaf


def test_pinned_leaves_do_not_move():
    shape = step(BATCH, 2, 4, ((1, 2),))
    pinned = {(2, 9): name(0, 2), (0, 0): name(1, 0), **{(2, x): name(1, 1) for x in (10, 11)}}
    work = likeliest(StepWork(BATCH, shape.seats, shape.holders(), pinned=pinned), DIFFUSE).work
    assert {key: work[key] for key in pinned} == pinned


def test_remaining_time_is_balanced_not_number_of_leaves():
    """Pipeline 0 has less left to do, so it takes what pipeline 1 has lost."""
    shape = step(BATCH, 2, 2, ((1, 0),))
    weight = {(s, x): (0.0 if x < 8 else 6.0) for s in range(2) for x in range(16)}
    work = likeliest(StepWork(BATCH, shape.seats, shape.holders(), weight=weight), DIFFUSE).work
    load = Counter()
    for key, agent in work.items():
        load[agent] += weight[key]
    assert max(load.values()) - min(load.values()) <= 6
    assert all(work[s, x] == name(0, s) for s in range(2) for x in range(8))


def test_other_load_is_taken_into_account():
    shape = step(BATCH, 2, 4, ((1, 2),))
    busy = {a: 0.0 for a in shape.live} | {name(0, 2): 100.0, name(0, 1): 100.0}
    work = likeliest(StepWork(BATCH, shape.seats, shape.holders(), base=busy), PEERS).work
    assert set(moved(work).values()) == {name(0, 2)}
    work = likeliest(StepWork(BATCH, shape.seats, shape.holders(), base=busy), DIFFUSE).work
    assert name(0, 2) not in moved(work).values()


def test_a_stage_without_a_holder_is_rejected():
    with pytest.raises(ValueError, match="stage 1 has no live holder: restore it"):
        StepWork(BATCH, step(BATCH, 1, 2).seats, [[AgentId("a")], []])


@pytest.mark.parametrize("way", list(WAYS))
def test_each_policy_allows_only_its_ways_and_auto_all(way):
    assert way in ALLOWED[AUTO]
    assert set(ALLOWED) == set(RecoveryPolicy)
    assert {x for policy in (SHADOW, PEERS, DIFFUSE) for x in ALLOWED[policy]} < set(WAYS)


def test_one_peer_adds_all_up_with_its_own_leaves():
    batch = BatchShape(64, 1, 16)
    shape = step(batch, 4, 4, ((1, 2),))
    work = WAYS["OnePeer"](shape.step_work)
    assert set(moved(work, batch=batch, pipelines=4).values()) == {name(0, 2)}
    own = [leaf for (s, leaf), a in work.items() if s == 2 and a == name(0, 2)]
    assert len(fewest(batch, own)) == 1  # a node and its sibling


def test_peers_have_aligned_shares():
    batch = BatchShape(128, 1, 32)
    work = WAYS["Peers"](step(batch, 4, 4, ((1, 2),)).step_work)
    found = moved(work, batch=batch, pipelines=4)
    for agent, size in Counter(found.values()).items():
        assert 10 <= size <= 12
        assert len(fewest(batch, [x for (_, x), a in found.items() if a == agent])) <= 3


def test_what_is_finished_counts_in_no_share():
    batch = BatchShape(128, 1, 32)
    shape = step(batch, 4, 4, ((1, 2),))
    weight = {(s, x): float(not 32 <= x < 52) for s in range(4) for x in range(128)}
    work = WAYS["Peers"](replace(shape.step_work, weight=weight))
    takers = Counter(work[2, x] for x in range(52, 64))
    assert takers == {name(0, 2): 4, name(2, 2): 4, name(3, 2): 4}


def test_peers_and_holders_have_one_sum_each():
    batch = BatchShape(128, 1, 32)
    shape = step(batch, 4, 4, ((1, 2),))
    found = moved(WAYS["PeersAndHolders"](shape.step_work), batch=batch, pipelines=4)
    shares = [[x for (_, x), a in found.items() if a == agent] for agent in set(found.values())]
    assert [len(x) for x in shares] == [8] * 4
    assert all(len(fewest(batch, x)) == 1 for x in shares)
    alone = replace(shape, mode=RedundancyMode.NONE)
    assert WAYS["PeersAndHolders"](alone.step_work) is None


@pytest.mark.parametrize("lost", [((1, 2),), ((0, 2), (1, 2)), ((1, 1), (2, 3))])
def test_at_most_four_agents_share_a_stage_of_a_pipeline(lost):
    batch = BatchShape(128, 1, 32)
    work = WAYS["DiffuseChunks"](step(batch, 4, 4, lost).step_work)
    dealt = pipelines_of(batch, 4)
    owners: dict[tuple[int, int], set[AgentId]] = {}
    for (s, leaf), agent in work.items():
        owners.setdefault((s, dealt[leaf]), set()).add(agent)
    assert max(map(len, owners.values())) <= 4
    for s in range(4):
        for chunk in range(batch.chunks):
            assert len({work[s, leaf] for leaf in batch.leaves_of(chunk)}) == 1


def test_fewer_pipelines_leave_no_gap_wherever_the_seats_are_empty():
    batch = BatchShape(128, 1, 32)
    shape = step(batch, 4, 4, ((1, 2), (3, 0)))
    work = WAYS["FewerPipelines"](shape.step_work)
    dealt = pipelines_of(batch, 3)
    for s in range(4):
        rows = [{work[s, x] for x in range(128) if dealt[x] == d} for d in range(3)]
        assert [len(row) for row in rows] == [1, 1, 1]
        assert len(set.union(*rows)) == 3
        assert all(int(a.split("-")[1]) == s for row in rows for a in row)
    assert WAYS["FewerPipelines"](step(batch, 1, 4, ((0, 2),)).step_work) is None
    begun = replace(shape.step_work, pinned={(0, 0): name(0, 0)})
    assert WAYS["FewerPipelines"](begun) is None


@st.composite
def steps_with_losses(draw):
    """Steps of small grids over any network, with whole leaves or leaves that have begun."""
    pipelines, stages = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    leaves = draw(st.integers(max(4, pipelines), 24))
    batch = BatchShape(leaves, 1, draw(st.sampled_from([1, 2, 4])))
    grid = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = draw(st.lists(st.sampled_from(grid), min_size=1, max_size=4, unique=True))
    transfer = (draw(st.sampled_from([0.0, 0.5, 3.0, 20.0])),) * stages
    shape = step(batch, pipelines, stages, lost, transfer=transfer, split=True, extra=8)
    if len(lost) == len(grid) or not all(shape.holders()):
        shape = replace(shape, lost=())
    return shape


@given(shape=steps_with_losses(), data=st.data())
@settings(max_examples=100, deadline=None)
def test_each_way_covers_every_leaf_once_with_holders_and_is_deterministic(shape, data):
    given = shape.step_work
    if data.draw(st.booleans()):
        works = st.tuples(st.integers(0, shape.stages - 1), st.integers(0, shape.batch.leaves - 1))
        pinned = {
            x: data.draw(st.sampled_from(sorted(given.holders[x[0]])))
            for x in data.draw(st.sets(works, max_size=6))
        }
        given = replace(given, pinned=pinned)
    every = {(s, leaf) for s in range(shape.stages) for leaf in range(shape.batch.leaves)}
    found = candidates(given, AUTO)
    assert found == candidates(given, AUTO)
    for shared in found:
        assert set(shared.work) == every, shared.way
        assert all(
            a in given.holders[s] or given.pinned.get((s, leaf)) == a
            for (s, leaf), a in shared.work.items()
        )
        assert {x: shared.work[x] for x in given.pinned} == given.pinned
        order = positions(shape.batch, shared.work, shared.pipelines)
        for chunk in range(shape.batch.chunks):
            of = pipelines_of(shape.batch, shared.pipelines)
            for d in range(shared.pipelines):
                places = [order[x] for x in shape.batch.leaves_of(chunk) if of[x] == d]
                assert places == sorted(places)


@given(shape=steps_with_losses())
@settings(max_examples=25, deadline=None)
def test_no_single_way_is_shorter_than_what_is_taken(shape):
    if not shape.lost:
        return
    every = candidates(shape.step_work, AUTO)
    ends = {x.way: shape.build(None, x) for x in every}
    found = comparison.shortest(every, lambda x: ends[x.way])
    assert found.made.end <= min(x.end for x in ends.values()) * 1.02
    times = {x.way: x for x in (found.comparison.taken, *found.comparison.others)}
    assert times.keys() == ends.keys()
    assert all(x.step_s <= ends[x.way].end + 1e-9 for x in times.values())
    for shared in every:
        report = shape.dry_run(ends[shared.way].programs)
        assert report.ok, f"{shared.way}: {report}"


def sums_of(batch, work):
    """Sums of gradients that agents have in a work map."""
    own = {}
    for (stage, leaf), agent in work.items():
        own.setdefault((stage, agent), []).append(leaf)
    return sum(len(fewest(batch, leaves)) for leaves in own.values())


def test_the_network_decides_which_way_is_taken():
    """Where sums take no time all agents help; where they take long, hardly anything is sent."""
    batch, taken = BatchShape(64, 1, 16), {}
    sums = {}
    for transfer in (0.0, 300.0):
        shape = step(batch, 4, 4, ((1, 2),), split=True, extra=8, transfer=(transfer,) * 4)
        every = candidates(shape.step_work, AUTO)
        best = comparison.shortest(every, lambda x, shape=shape: shape.build(None, x))
        taken[transfer] = best.shared.way
        sums[transfer] = {x.way: sums_of(batch, x.work) for x in every}
    assert taken[0.0] == "Diffuse"
    assert sums[300.0][taken[300.0]] < sums[300.0]["Diffuse"]


def test_small_sums_are_made_first():
    """Three pipelines have a large node and small ones each."""
    batch = BatchShape(64, 1, 16)
    shape = step(batch, 3, 2)
    order = positions(batch, shape.work(), 3)
    dealt = pipelines_of(batch, 3)
    for d in range(3):
        own = [x for x in range(64) if dealt[x] == d]
        sizes = [hi - lo for lo, hi in fewest(batch, own) for _ in range(lo, hi)]
        by_time = [size for _, size in sorted(zip([order[x] for x in own], sizes, strict=True))]
        assert by_time == sorted(sizes)
    assert sorted(order[x] for x in range(64) if dealt[x] == 0) == list(range(dealt.count(0)))


def test_shares_are_aligned_in_number_and_alternate_in_time():
    batch = BatchShape(128, 1, 32)
    shape = step(batch, 4, 4, ((1, 2),))
    every = {x.way: x for x in candidates(shape.step_work, AUTO)}
    shared = every["PeersAndHolders"]
    order = positions(batch, shared.work, shared.pipelines)
    own = [x for x in range(128) if pipelines_of(batch, 4)[x] == 1]
    in_time = [shared.work[2, x] for x in sorted(own, key=order.__getitem__)]
    for at in range(0, 32, 4):
        assert len(set(in_time[at : at + 4])) == 4


def test_over_a_network_a_guess_counts_sums_and_the_busiest_interface():
    batch = BatchShape(128, 1, 32)
    shape = step(batch, 4, 4, ((1, 2),), transfer=(2.0,) * 4, costs=Costs.even(4))
    shared = candidates(shape.step_work, AUTO)
    every = {x.way: x.estimate for x in shared}
    sums = {x.way: sums_of(batch, x.work) for x in shared}
    assert sums["OnePeer"] == sums["Shadow"] - 1 == 15
    assert every["Diffuse"].top < every["PeersAndHolders"].top < every["OnePeer"].top
    assert sums["Diffuse"] > sums["PeersAndHolders"] > sums["OnePeer"]
    assert all(x.bound <= x.guess for x in every.values())


def test_chunks_make_no_chain_of_moves_that_gains_less_than_its_sums_take():
    """The last stages begin late. Where sums take time, their agents still compute a chunk more
    than others, and no agent of the first stages takes any of it."""
    shape = step(BatchShape(128, 1, 32), 4, 8, ((1, 7),))
    makers = {}
    for network, time in (("slow", 15.0), ("fast", 0.001)):
        work = WAYS["DiffuseChunks"](replace(shape.step_work, transfer=(time,) * 8))
        pairs = {(stage, agent) for (stage, _), agent in work.items()}
        makers[network] = len(pairs)
        most = max(Counter(work.values()).values())
        assert most == 36  # of 33 in the mean: chunks have four leaves
    assert makers["slow"] < makers["fast"]


@pytest.mark.parametrize("way", WAYS)
def test_leaves_that_are_all_finished_are_shared_too(way):
    """Their sums are added up after a loss at the end of a step."""
    batch = BatchShape(32, 1, 16)
    whole = step(batch, 2, 4, ((1, 2),)).step_work
    work = WAYS[way](replace(whole, weight=dict.fromkeys(whole.weight, 0.0)))
    assert work is None or work.keys() == whole.weight.keys()
