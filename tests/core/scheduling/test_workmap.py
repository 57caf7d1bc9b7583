"""The work map: own leaves stay, orphans go where the policy says, loads are balanced."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.scheduling.sharing import dealing

from .steps import name, step

SHADOW, PEERS, DIFFUSE = RecoveryPolicy.SHADOW, RecoveryPolicy.PEERS, RecoveryPolicy.DIFFUSE
BATCH = BatchShape(32, 2, 2)


def assigned(policy, lost, *, batch=BATCH, pipelines=2, stages=4, mode=RedundancyMode.REPLICA):
    shape = step(batch, pipelines, stages, lost, policy=policy, mode=mode)
    return shape.work()


def moved(work, *, batch=BATCH, pipelines=2):
    """(stage, leaf) -> agent, where the agent is not the one in the seat."""
    return {
        (s, leaf): a
        for (s, leaf), a in work.items()
        if a != name(workmap.pipeline_of(leaf, leaves=batch.leaves, pipelines=pipelines), s)
    }


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
    if policy is not DIFFUSE:
        kept = {
            (s, leaf)
            for s, leaf in work
            if shape.seats[workmap.pipeline_of(leaf, leaves=leaves, pipelines=pipelines)][s]
        }
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
    work = workmap.assign(
        batch=BATCH, seats=shape.seats, holders=shape.holders(), policy=DIFFUSE, pinned=pinned
    )
    assert {key: work[key] for key in pinned} == pinned


def test_remaining_time_is_balanced_not_number_of_leaves():
    """Pipeline 0 has less left to do, so it takes what pipeline 1 has lost."""
    shape = step(BATCH, 2, 2, ((1, 0),))
    weight = {(s, x): (0.0 if x < 8 else 6.0) for s in range(2) for x in range(16)}
    work = workmap.assign(
        batch=BATCH, seats=shape.seats, holders=shape.holders(), policy=DIFFUSE, weight=weight
    )
    load = Counter()
    for key, agent in work.items():
        load[agent] += weight[key]
    assert max(load.values()) - min(load.values()) <= 6
    assert all(work[s, x] == name(0, s) for s in range(2) for x in range(8))


def test_other_load_is_taken_into_account():
    shape = step(BATCH, 2, 4, ((1, 2),))
    busy = {a: 0.0 for a in shape.live} | {name(0, 2): 100.0, name(0, 1): 100.0}
    work = workmap.assign(
        batch=BATCH, seats=shape.seats, holders=shape.holders(), policy=PEERS, base=busy
    )
    assert set(moved(work).values()) == {name(0, 2)}
    work = workmap.assign(
        batch=BATCH, seats=shape.seats, holders=shape.holders(), policy=DIFFUSE, base=busy
    )
    assert name(0, 2) not in moved(work).values()


def test_pipelines_may_have_unequal_numbers_of_leaves():
    batch = BatchShape(7, 1, 2)
    counts = Counter(workmap.pipeline_of(x, leaves=7, pipelines=3) for x in range(batch.leaves))
    assert sorted(counts.values()) == [2, 2, 3]
    work = step(batch, 3, 2).work()
    assert not moved(work, batch=batch, pipelines=3)


def test_a_stage_without_a_holder_is_rejected():
    with pytest.raises(ValueError, match="stage 1 has no live holder: restore it"):
        workmap.assign(
            batch=BATCH, seats=step(BATCH, 1, 2).seats, holders=[[AgentId("a")], []], policy=DIFFUSE
        )


def lose_one(transfer, *, policy=DIFFUSE, **options):
    """The leaves of one lost agent of 4 x 4; each leaf of a stage takes 3."""
    batch = BatchShape(32, 1, 4)
    shape = step(batch, 4, 4, ((1, 2),))
    work = workmap.assign(
        batch=batch,
        seats=shape.seats,
        holders=shape.holders(),
        policy=policy,
        weight={(s, x): 3.0 for s in range(4) for x in range(32)},
        transfer=transfer,
        **options,
    )
    return work, moved(work, batch=batch, pipelines=4)


def test_over_a_slow_network_one_agent_gets_all_leaves_of_a_chunk():
    """Others would have to send it a sum for each leaf, which takes longer than to compute it."""
    for transfer in (3.5, 1000.0):
        _, found = lose_one([transfer] * 4)
        assert set(found) == {(2, x) for x in range(8, 16)}
        assert set(found.values()) == {name(1, 1)}
    _, found = lose_one([3.5] * 4, policy=PEERS)
    assert len(set(found.values())) == 1


def test_over_a_fast_network_loads_are_as_even_as_over_none():
    tops = []
    for transfer in ((), [0.0] * 4, [0.01] * 4):
        work, found = lose_one(transfer)
        assert len(set(found.values())) > 3
        tops.append(max(Counter(work.values()).values()))
    assert tops[0] == tops[1] == tops[2]
    assert lose_one(()) == lose_one([0.0] * 4)


def test_only_the_sums_of_large_stages_stay():
    """Stage 2 is large: nobody shares its leaves. Stage 1 is not, so others relieve the agent."""
    work, found = lose_one([0.01, 0.01, 3.5, 0.01])
    taker = {a for (s, _), a in found.items() if s == 2}
    assert taker == {name(1, 1)}
    assert {s for s, _ in found} > {2}
    assert Counter(work.values())[name(1, 1)] < 16


def test_the_agent_that_gets_a_chunk_is_not_the_busiest():
    busy = {name(1, 1): 50.0}
    base = {a: busy.get(a, 0.0) for a in step(BATCH, 4, 4).live}
    _, found = lose_one([3.5] * 4, base=base)
    assert name(1, 1) not in found.values()
    assert len(set(found.values())) == 1


@pytest.mark.parametrize(("pipelines", "chunks"), [(2, 4), (2, 8), (4, 4)])
def test_spread_over_time_no_leaf_leaves_its_chunk(pipelines, chunks):
    """A grid that has lost a pipeline sums several chunks in each of its pipelines."""
    batch = BatchShape(32, 1, chunks)
    shape = step(batch, pipelines, 4, ((0, 2),))
    work = workmap.assign(
        batch=batch,
        seats=shape.seats,
        holders=shape.holders(),
        policy=DIFFUSE,
        weight={(s, x): 3.0 for s in range(4) for x in range(32)},
        transfer=[3.5] * 4,
    )
    takers = {c: {work[2, x] for x in batch.leaves_of(c)} for c in range(chunks)}
    assert all(len(agents) == 1 for agents in takers.values())
