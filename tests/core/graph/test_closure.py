from dataclasses import replace

import pytest
from tests.core.graph.small import goals, name, relative

from bamboo_core.graph.closure import (
    Holdings,
    LayersLost,
    Periodic,
    TaskId,
    Transfer,
    epilogue,
    missing,
    steady,
    undisturbed,
)
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.scheduling import dry_run as verify
from bamboo_core.scheduling import schedule

ALL = Periodic(evals=3, validate_every=2, saves=True, save_every=2)
SCORED = replace(ALL, is_scored=True)


def dry_run(graph, plan, holdings):
    caps = {}
    made = schedule.build(
        graph,
        batch=plan.batch,
        costs=schedule.Costs.even(plan.cut[-1][1]),
        caps=caps,
    )
    return verify.dry_run(
        made.programs,
        batch=plan.batch,
        layers=plan.cut[-1][1],
        holdings=relative(holdings, plan.target),
    )


def ops(graph, *kinds):
    return [t for t in graph.tasks if t.instruction.op in kinds]


@pytest.mark.parametrize("pipelines", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("leaf_size", [1, 2])
@pytest.mark.parametrize("periodic", [ALL, SCORED])
def test_every_kind_of_step_passes_the_dry_run(pipelines, stages, split, leaf_size, periodic):
    options = {"split": split, "leaf_size": leaf_size, "periodic": periodic, "microbatches": 4}
    plan = goals(pipelines, stages, **options)
    assert dry_run(steady(plan), plan, undisturbed(plan)).ok
    last = goals(pipelines, stages, target=9, **options)
    assert dry_run(epilogue(last), last, undisturbed(last)).ok
    first = goals(pipelines, stages, target=0, **options)
    nothing = {a: Holdings() for a in first.wants}
    assert dry_run(missing(first, nothing), first, nothing).ok


def test_the_first_stage_has_no_input_gradient():
    graph = steady(goals(split=True))
    assert not [t for t in ops(graph, Op.I, Op.W) if t.instruction.lo == 0]
    assert not [t for t in ops(graph, Op.B) if t.instruction.lo > 0]


def test_nothing_is_missing_after_the_end_of_a_step():
    plan = goals(target=9)
    assert not missing(plan, undisturbed(plan)).tasks


def test_without_an_interval_only_the_epilogue_validates_and_saves():
    plan = goals(periodic=Periodic(evals=2, saves=True))
    assert not ops(steady(plan), Op.V, Op.SAVE, Op.SEAL)
    final = epilogue(replace(plan, target=9))
    assert {t.instruction.op for t in ops(final, Op.V, Op.SAVE, Op.SEAL)} == {
        Op.V,
        Op.SAVE,
        Op.SEAL,
    }


def test_layers_that_lie_together_are_built_at_once():
    plan = goals(1, 2, target=0, layers_per_stage=2)
    graph = missing(plan, {a: Holdings() for a in plan.wants})
    built = [(t.agent, t.instruction.lo, t.instruction.hi) for t in ops(graph, Op.INIT)]
    assert built == [(name(0, 0), 0, 4), (name(0, 1), 0, 4)]


def test_a_lost_layer_is_reported():
    plan = goals(replica=False)
    holdings = undisturbed(plan)
    del holdings[name(0, 1)], holdings[name(1, 1)]
    rest = {a: w for a, w in plan.wants.items() if a in holdings}
    rest[name(0, 0)] = ((0, 2),)
    with pytest.raises(LayersLost) as lost:
        missing(replace(plan, wants=rest), holdings)
    assert lost.value.layers == (1,)


def test_a_file_of_the_needed_version_repairs_a_lost_layer():
    plan = goals(replica=False)
    holdings = undisturbed(plan)
    rest = {name(0, 0): ((0, 2),), name(1, 0): ((0, 2),)}
    held = {a: holdings[a] for a in rest}
    assignment = {work: name(0, 0) for work in plan.assignment}
    changed = replace(plan, wants=rest, assignment=assignment)
    graph = missing(changed, held, files={1})
    loads = ops(graph, Op.LOAD)
    assert {t.agent for t in loads} == set(rest)
    assert {(t.instruction.lo, t.instruction.hi) for t in loads} == {(1, 2)}


def test_an_old_version_without_its_gradients_does_not_count():
    plan = goals(target=2)
    holdings = undisturbed(plan)
    stale = {a: replace(h, versions={x: 1 for x in h.versions}) for a, h in holdings.items()}
    with pytest.raises(LayersLost):
        missing(plan, stale)


def test_a_laggard_catches_up_with_the_gradients_of_others():
    plan = goals(target=2)
    holdings = undisturbed(plan)
    reduced = frozenset(Item.red(1, cut, z, 2) for cut in plan.cut for z in range(2))
    late = name(0, 1)
    for agent, held in holdings.items():
        holdings[agent] = replace(held, items=reduced)
    versions = dict.fromkeys(holdings[late].versions, 1)
    holdings[late] = Holdings(versions, frozenset(), frozenset({0}), 0)
    graph = missing(plan, holdings)
    older = [t for t in graph.tasks if t.instruction.step == -1]
    assert {t.instruction.op for t in older} == {Op.UPDATE, Op.END}
    assert {t.agent for t in older} == {late}
    updates = {t for t in older if t.instruction.op is Op.UPDATE}
    (end,) = set(older) - updates
    assert updates <= set(graph.tasks[end])
    assert dry_run(graph, plan, holdings).ok


def test_a_newcomer_is_complete_before_it_votes():
    plan = goals()
    holdings = undisturbed(plan)
    new = name(0, 1)
    holdings[new] = Holdings()
    graph = missing(plan, holdings)
    vote = next(t for t in ops(graph, Op.VOTE) if t.agent == new)
    copied = {w.item.lo for w in graph.tasks[vote] if isinstance(w, Transfer) and _is_version(w)}
    assert copied == {0, 1}
    assert dry_run(graph, plan, holdings).ok


def test_a_newcomer_in_the_epilogue_gets_its_layers():
    plan = goals(target=9)
    holdings = undisturbed(plan)
    holdings[name(1, 1)] = Holdings()
    graph = missing(plan, holdings)
    end = next(t for t in ops(graph, Op.END) if t.agent == name(1, 1))
    assert sum(_is_version(w) for w in graph.tasks[end] if isinstance(w, Transfer)) == 2


def _is_version(transfer):
    return transfer.item.kind is Kind.VER


def test_a_lost_boundary_is_computed_again_from_the_first_stage():
    """The last stage's sums are lost, and with them what went in; the others' survive."""
    plan = goals(1, 3, microbatches=2)
    holdings = undisturbed(plan)
    for stage in (0, 1):
        leaves = {Item.sum(1, plan.cut[stage], (leaf, leaf + 1)) for leaf in range(2)}
        agent = name(0, stage)
        holdings[agent] = replace(holdings[agent], items=frozenset(leaves))
    graph = missing(plan, holdings)
    again = {(t.instruction.op, t.instruction.lo) for t in ops(graph, *COMPUTE)}
    assert again == {(Op.F, 0), (Op.F, 1), (Op.F, 2), (Op.W, 2)}
    assert dry_run(graph, plan, holdings).ok


def test_only_the_weight_gradient_is_recomputed_if_the_input_gradient_survives():
    plan = goals(1, 3, microbatches=4)
    survivors = frozenset(Item.ingrad(plan.target, 2, m) for m in range(4))
    holdings = undisturbed(plan)
    holdings[name(0, 1)] = replace(holdings[name(0, 1)], items=survivors)
    graph = missing(plan, holdings)
    deepest = {t.instruction.op for t in ops(graph, *COMPUTE) if t.instruction.lo == 2}
    assert deepest == {Op.F, Op.W}
    assert dry_run(graph, plan, holdings).ok


def test_a_leaver_on_short_notice_hands_over_even_its_unfinished_sum():
    plan = goals(1, 2, microbatches=4, leaf_size=4, replica=True)
    leaver, new_owner = name(0, 1), name(0, 0)
    holdings = undisturbed(plan)
    cut = plan.cut[1]
    items = {Item.act(1, cut, m) for m in (2, 3)} | {Item.partial(1, cut, 0, 2)}
    items |= {Item.ingrad(1, 1, m) for m in (0, 1)}
    holdings[leaver] = replace(holdings[leaver], items=frozenset(items))
    changed = replace(
        plan,
        wants={new_owner: ((0, 2),)},
        assignment=dict.fromkeys(plan.assignment, new_owner),
        short_notice=frozenset({leaver}),
    )
    graph = missing(changed, holdings)
    deep = [t.instruction for t in ops(graph, *COMPUTE) if t.instruction.lo == 1]
    assert sorted((str(i.op), i.index) for i in deep) == [("B", 2), ("B", 3)]
    (leave,) = (t for t in graph.tasks if t.agent == leaver)
    assert leave.instruction.op is Op.EXIT
    assert [w.item for w in graph.tasks[leave]] == [Item.commit(0)]
    assert dry_run(graph, changed, holdings).ok


def folds(graph):
    return [(t.agent, t.instruction.index) for t in ops(graph, Op.FOLD) if t.instruction.lo == 1]


@pytest.mark.parametrize(
    ("ahead", "runs"), [(0, [(0, 4), (4, 8)]), (1, [(0, 2), (2, 3), (3, 4), (4, 8)])]
)
def test_the_agent_that_has_folded_most_of_a_chunk_goes_on_with_leaves_of_its_own(ahead, runs):
    plan = goals(2, 2, microbatches=4)
    holdings = undisturbed(plan)
    agents = [name(0, 1), name(1, 1)]
    for i, agent in enumerate(agents):
        folded = Item.sum(1, plan.cut[1], (0, 2 if i == ahead else 1))
        holdings[agent] = replace(holdings[agent], items=frozenset({folded}))
    graph = missing(plan, holdings)
    own = [(agents[0], 2), (agents[0], 3)] if ahead == 0 else []
    assert [x for x in folds(graph) if x[1] < 4] == own
    reduced = {t.instruction.ranges[1:] for t in ops(graph, Op.REDUCE) if t.instruction.lo == 1}
    assert reduced == {tuple(runs)}
    assert {t.instruction.index for t in ops(graph, Op.B, Op.W) if t.instruction.lo == 1} == set(
        range(2, 8)
    )
    assert dry_run(graph, plan, holdings).ok


@pytest.mark.parametrize(("own", "left", "rest"), [(1, 3, [3]), (2, 1, [2, 3]), (0, 2, [2, 3])])
def test_the_fuller_sum_of_a_chunk_counts_even_if_a_leaver_has_it(own, left, rest):
    plan = goals(1, 2, microbatches=4)
    leaver, new_owner = name(0, 1), name(0, 0)
    holdings = undisturbed(plan)
    for agent, done in ((new_owner, own), (leaver, left)):
        items = {Item.sum(1, plan.cut[1], (0, done))} if done else set()
        holdings[agent] = replace(holdings[agent], items=frozenset(items))
    changed = replace(
        plan,
        wants={new_owner: ((0, 2),)},
        assignment=dict.fromkeys(plan.assignment, new_owner),
        short_notice=frozenset({leaver}),
    )
    graph = missing(changed, holdings)
    assert folds(graph) == [(new_owner, leaf) for leaf in rest]
    assert dry_run(graph, changed, holdings).ok


def test_a_backward_waits_for_layers_that_its_agent_does_not_hold_yet():
    """The activation comes from a leaver, so no forward has waited for them."""
    plan = goals(1, 1, microbatches=2, layers_per_stage=2)
    leaver, new_owner = name(0, 0), name(0, 1)
    holdings = undisturbed(plan)
    acts = frozenset(Item.act(1, plan.cut[0], m) for m in range(2))
    holdings[leaver] = replace(holdings[leaver], items=acts)
    holdings[new_owner] = Holdings()
    changed = replace(
        plan,
        wants={new_owner: ((0, 2),)},
        assignment=dict.fromkeys(plan.assignment, new_owner),
        coordinator=new_owner,
        short_notice=frozenset({leaver}),
    )
    graph = missing(changed, holdings)
    assert not ops(graph, Op.F)
    for backward in ops(graph, Op.B):
        assert {w.item for w in graph.tasks[backward] if _is_version(w)} == {
            Item.ver(0, 0),
            Item.ver(0, 1),
        }
    assert len(ops(graph, Op.B)) == 2


def test_files_that_are_written_are_not_written_again():
    plan = goals(1, 2, layers_per_stage=2, target=9, periodic=Periodic(saves=True))
    holdings = undisturbed(plan)
    holdings[name(0, 1)] = replace(holdings[name(0, 1)], items=frozenset({Item.file(9, 0)}))
    graph = missing(plan, holdings)
    assert sorted((t.instruction.lo, t.instruction.hi) for t in ops(graph, Op.SAVE)) == [
        (1, 2),
        (2, 4),
    ]
    (seal,) = ops(graph, Op.SEAL)
    assert Transfer(Item.file(0, 0), name(0, 1), name(0, 0), None) in graph.tasks[seal]


def test_of_equal_sums_of_a_leaf_the_own_one_counts():
    plan = goals(1, 2, microbatches=4, leaf_size=4)
    leaver, new_owner = name(0, 1), name(0, 0)
    holdings = undisturbed(plan)
    begun = frozenset({Item.partial(1, plan.cut[1], 0, 2)})
    for agent in (leaver, new_owner):
        holdings[agent] = replace(holdings[agent], items=begun)
    changed = replace(
        plan,
        wants={new_owner: ((0, 2),)},
        assignment=dict.fromkeys(plan.assignment, new_owner),
        short_notice=frozenset({leaver}),
    )
    graph = missing(changed, holdings)
    moved = [w for waits in graph.tasks.values() for w in waits if isinstance(w, Transfer)]
    assert not [w for w in moved if w.item.kind is Kind.PART]
    assert dry_run(graph, changed, holdings).ok


def test_a_validation_goes_on_where_it_was_interrupted():
    plan = goals(1, 3, target=2, periodic=Periodic(evals=2, validate_every=2))
    holdings = undisturbed(plan)
    survived = frozenset({Item.eval(2, 2, 0), Item.score(2, 1)})
    holdings[name(0, 1)] = replace(holdings[name(0, 1)], items=survived)
    graph = missing(plan, holdings)
    done = [(t.instruction.lo, t.instruction.index) for t in ops(graph, Op.V)]
    assert done == [(2, 0)]
    assert dry_run(graph, plan, holdings).ok


def test_a_leaver_exits_after_the_commit():
    plan = goals(1, 2)
    leaver = name(0, 1)
    holdings = undisturbed(plan)
    rest = replace(plan, wants={name(0, 0): ((0, 2),)})
    graph = missing(rest, holdings)
    end = next(t for t in ops(graph, Op.END) if t.agent == leaver)
    leave = next(t for t in ops(graph, Op.EXIT))
    assert leave.agent == leaver
    assert end in graph.tasks[leave]


@pytest.mark.parametrize("is_on_short_notice", [False, True])
def test_no_agent_leaves_in_the_epilogue_before_all_have_finished(is_on_short_notice):
    """No commit would prove that what a leaver has sent has arrived."""
    plan = goals(1, 2, target=3, last=3)
    leaver = name(0, 1)
    short_notice = frozenset({leaver}) if is_on_short_notice else frozenset()
    rest = replace(plan, wants={name(0, 0): ((0, 2),)}, short_notice=short_notice)
    assert not ops(missing(rest, undisturbed(plan)), Op.EXIT)


@pytest.mark.parametrize("split", [False, True])
def test_update_comes_after_every_use_of_the_old_version(split):
    """Every F, B, I and V of an agent is an ancestor of its UPDATEs, through the commit."""
    plan = goals(2, 3, split=split, periodic=ALL, microbatches=2)
    graph = steady(plan)
    known = {}

    def ancestors(task):
        if task not in known:
            known[task] = set()
            for wait in graph.tasks[task]:
                before = wait if isinstance(wait, TaskId) else wait.producer
                if before is not None:
                    known[task] |= {before} | ancestors(before)
        return known[task]

    for update in ops(graph, Op.UPDATE):
        own = {t for t in ops(graph, Op.F, Op.B, Op.I, Op.V) if t.agent == update.agent}
        assert own <= ancestors(update)


def test_a_step_ends_after_every_update():
    graph = steady(goals(2, 3, periodic=ALL))
    for end in ops(graph, Op.END):
        updates = {t for t in ops(graph, Op.UPDATE) if t.agent == end.agent}
        assert len(updates) == 2
        assert updates <= set(graph.tasks[end])


def test_the_coordinator_alone_ends_a_step_after_its_checkpoint():
    plan = goals(2, 3, periodic=ALL)
    graph = steady(plan)
    (seal,) = ops(graph, Op.SEAL)
    after = {t.agent for t in ops(graph, Op.END) if seal in graph.tasks[t]}
    assert after == {plan.coordinator}


def test_a_manifest_with_a_value_follows_the_commit():
    plan = goals(2, 3, periodic=SCORED)
    graph = steady(plan)
    (seal,) = ops(graph, Op.SEAL)
    (commit,) = ops(graph, Op.COMMIT)
    assert seal.instruction.item == Item.commit(0)
    assert seal.agent == commit.agent == plan.coordinator
    assert commit in graph.tasks[seal]


def test_a_commit_that_another_agent_knows_comes_to_the_manifest():
    plan = goals(2, 2, target=8, periodic=SCORED)
    holdings = undisturbed(plan)
    other = next(a for a in holdings if a != plan.coordinator)
    reduced = frozenset(Item.red(8, cut, 0, 1) for cut in plan.cut)
    holdings[other] = replace(holdings[other], items=reduced, commits=frozenset({8}))
    graph = missing(plan, holdings)
    (seal,) = ops(graph, Op.SEAL)
    assert not ops(graph, Op.COMMIT)
    assert Transfer(Item.commit(0), other, plan.coordinator, None) in graph.tasks[seal]


def test_the_last_manifest_has_the_scores_of_the_epilogue():
    last = goals(2, 3, target=9, periodic=SCORED)
    graph = epilogue(last)
    (seal,) = ops(graph, Op.SEAL)
    assert seal.instruction.ranges == ((0, 3),)
    (commit,) = ops(graph, Op.COMMIT)
    assert seal in graph.tasks[commit]
    assert len(ops(graph, Op.V)) == 9


def test_a_suspension_seals_without_a_value():
    last = goals(2, 3, target=9, periodic=replace(SCORED, evals=0))
    (seal,) = ops(epilogue(last), Op.SEAL)
    assert (seal.instruction.item, seal.instruction.ranges) == (None, ())


def test_saves_cover_every_layer_once_and_precede_the_update():
    plan = goals(2, 3, periodic=ALL)
    graph = steady(plan)
    saved = sorted(
        x for t in ops(graph, Op.SAVE) for x in range(t.instruction.lo, t.instruction.hi)
    )
    assert saved == [0, 1, 2]
    assert all(t.instruction.every == 2 for t in ops(graph, Op.SAVE, Op.SEAL, Op.V))
    for save in ops(graph, Op.SAVE):
        updates = [t for t in ops(graph, Op.UPDATE) if t.agent == save.agent]
        assert any(save in graph.tasks[u] for u in updates)


def test_every_addition_has_a_number_of_its_own():
    """A check is due by it: two with one number would both be left out."""
    plan = goals(2, 2, microbatches=8, batch=BatchShape(16, 1, 8), assignment=halves(2, 16))
    numbers = {}
    for task in ops(steady(plan), Op.FOLD):
        numbers.setdefault(task.instruction.lo, []).append(task.instruction.index)
    assert {lo: sorted(found) for lo, found in numbers.items()} == {
        lo: [x for x in range(1, 16) if x != 8] for lo in (0, 1)
    }


def halves(stages, leaves):
    return {(s, x): name(2 * x // leaves, s) for s in range(stages) for x in range(leaves)}


def test_an_agent_sends_one_sum_for_all_that_it_makes():
    plan = goals(2, 1, microbatches=8, batch=BatchShape(16, 1, 8), assignment=halves(1, 16))
    sliced = [t.instruction.ranges for t in ops(steady(plan), Op.SLICE)]
    assert sliced == [((0, 8), (0, 2)), ((8, 16), (0, 2))]
    reduced = [t.instruction.ranges for t in ops(steady(plan), Op.REDUCE)]
    assert reduced == [((0, 2), (0, 8), (8, 16))] * 2


def test_each_slice_has_one_owner():
    plan = goals(3, 1, microbatches=4)
    owners = {}
    for task in ops(steady(plan), Op.REDUCE):
        owners.setdefault(task.instruction.index, []).append(task.agent)
    assert owners == {z: [name(z, 0)] for z in range(3)}


def stopped_with(plan, *items, agent):
    """Holdings of all agents, the items on one of them."""
    holdings = undisturbed(plan)
    holdings[agent] = replace(holdings[agent], items=frozenset(items))
    return holdings


def test_a_step_keeps_the_slices_with_which_it_began():
    plan = goals(2, 1, microbatches=4)
    pieces = [Item.piece(1, (0, 1), (0, 4), z, 3) for z in range(3)]
    graph = missing(plan, stopped_with(plan, *pieces, agent=name(0, 0)))
    assert {t.instruction.ranges[0] for t in ops(graph, Op.REDUCE)} == {(0, 3)}
    assert [t.agent for t in ops(graph, Op.REDUCE)] == [name(0, 0), name(1, 0), name(0, 0)]
    assert {t.instruction.index for t in ops(graph, Op.B)} == {4, 5, 6, 7}


def test_nothing_is_added_to_a_sum_that_was_sliced():
    """Its owner has both halves, but the first one is on its way already."""
    plan = goals(1, 1, microbatches=8, batch=BatchShape(8, 1, 8), assignment=halves(1, 8))
    plan = replace(plan, assignment={(0, x): name(0, 0) for x in range(8)})
    pieces = [Item.piece(1, (0, 1), (0, 4), z, 2) for z in range(2)]
    graph = missing(plan, stopped_with(plan, *pieces, agent=name(0, 0)))
    assert [t.instruction.ranges for t in ops(graph, Op.SLICE)] == [((4, 8), (0, 2))]
    assert ops(graph, Op.REDUCE)[0].instruction.ranges == ((0, 2), (0, 4), (4, 8))


@pytest.mark.parametrize("first", [True, False])
def test_sums_that_overlap_are_not_both_added(first):
    """After two losses one agent may hold [0, 8) and another one [4, 8): the longer one counts."""
    plan = goals(2, 1, microbatches=8, batch=BatchShape(16, 1, 16), assignment=halves(1, 16))
    long, short = Item.sum(1, (0, 1), (0, 8)), Item.sum(1, (0, 1), (4, 8))
    holdings = stopped_with(plan, long if first else short, agent=name(0, 0))
    other = short if first else long
    holdings[name(1, 0)] = replace(holdings[name(1, 0)], items=frozenset({other}))
    graph = missing(plan, holdings)
    for task in ops(graph, Op.REDUCE):
        runs = task.instruction.ranges[1:]
        assert [x for run in runs for x in range(*run)] == list(range(16))
    assert {t.instruction.index for t in ops(graph, Op.B)} == set(range(8, 16))
    assert dry_run(graph, plan, holdings).ok


def test_slices_that_exist_in_part_only_do_not_count():
    """An agent was lost while it sent its sum."""
    plan = goals(2, 1, microbatches=4)
    some = Item.piece(1, (0, 1), (0, 4), 1, 2)
    graph = missing(plan, stopped_with(plan, some, agent=name(1, 0)))
    assert {t.instruction.index for t in ops(graph, Op.B)} == set(range(8))
    both = {some, Item.red(1, (0, 1), 0, 2)}  # only slice 1 is still to be added up
    graph = missing(plan, stopped_with(plan, *both, agent=name(1, 0)))
    assert {t.instruction.index for t in ops(graph, Op.B)} == {4, 5, 6, 7}
