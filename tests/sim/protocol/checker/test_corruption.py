"""A layer changes in an agent's memory: the judge, and what the arbiter does about it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause, Severity
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model import sampling
from bamboo_core.model.items import Item
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Manifest
from bamboo_sim.protocol.checker.claims import check_silence
from bamboo_sim.protocol.checker.corruption import (
    check_blame,
    check_copies,
    check_told,
    note_dispute,
)
from bamboo_sim.protocol.checker.restores import check_restore
from bamboo_sim.protocol.exploration.time_budget import (
    ALTERED_AHEAD,
    ALTERED_AHEAD_TWICE,
    ALTERED_PAIR,
    ALTERED_THREE,
    CHECKED_FILES,
    CHECKED_TWICE,
    OWN,
    OWN_SELDOM,
)
from bamboo_sim.protocol.histories.history import History, apply, replay
from bamboo_sim.protocol.parts.symbolic import Flip, Vote
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.planted import rules_bits
from bamboo_sim.protocol.running.simulation import Simulation


def saved(job, step):
    """A world in which the checkpoint of this step is complete, and the step committed."""
    world = Simulation(job, 1, "fifo")
    while (0, step) not in world.sealed or world.newest < (0, step):
        assert world.step()
    return world


def test_the_odd_one_of_three_is_left_out_and_the_result_is_right():
    world = saved(ALTERED_THREE, 2)
    apply(world, ("alter", "a01", 0))
    assert world.finish() == "restored"
    facts = world.operators.durable
    assert facts.rollbacks == 1
    assert facts.forks[-1].step == 2
    assert "a01" not in world.nodes
    assert not facts.suspects


def test_both_of_two_stay_and_the_result_is_right():
    world = saved(ALTERED_PAIR, 2)
    apply(world, ("alter", "a01", 1))
    assert world.finish() == "restored"
    assert world.operators.durable.rollbacks == 1
    assert "a01" in world.operators.durable.suspects
    assert set(ALTERED_PAIR.at_start) == set(world.nodes)


def test_what_changes_after_the_last_comparison_is_not_seen():
    world = saved(ALTERED_PAIR, 2)
    while world.newest < (0, ALTERED_PAIR.steps - 1):
        assert world.step()
    apply(world, ("alter", "a00", 0))
    assert world.finish() == "unseen"


def test_a_commit_of_different_copies_is_a_violation():
    world = saved(ALTERED_PAIR, 2)
    node = world.nodes["a00"]
    for agent, held in (("a00", {0: 1, 1: 2}), ("a01", {1: 3})):
        node.worker.backend.store[Item.vote(4, agent)] = Vote({}, {}, frozenset(), held)
    with pytest.raises(Violation, match="step 4 is committed, but a01's layer 1 differs"):
        check_copies(world, node, 4)
    check_copies(world, node, 3)


def added_wrong(job, lasts):
    """Outcomes of histories in which a sum of two runs of an agent is wrong, in the first or in the
    second step."""
    outcomes = set()
    for agent, events in product(job.at_start, (0, 160)):
        world = Simulation(job, 1, "fifo")
        for _ in range(events):
            assert world.step()
        apply(world, ("flip", agent, "FOLD", lasts))
        outcomes.add(world.finish())
    return outcomes


@pytest.mark.parametrize("lasts", [False, True])
def test_a_wrong_sum_is_found_before_it_is_sent_when_it_has_its_turn(lasts):
    assert added_wrong(OWN, lasts) == {"complete"}
    assert added_wrong(OWN_SELDOM, lasts) == {"complete", "unseen"}
    assert added_wrong(replace(OWN, check_every=0), lasts) == {"unseen"}


def test_a_wrong_sum_that_had_its_turn_must_not_be_committed(monkeypatch):
    monkeypatch.setattr(sampling, "is_task_due", rules_bits.no_merge)
    with pytest.raises(Violation, match=r"is committed with .*, which was wrong in its turn"):
        added_wrong(OWN, False)


def restoring():
    facts = {EventFact.CAUSE: RestoreCause.CORRUPTION}
    return Record(Severity.WARNING, EventReason.RESTORING, "what is wrong is committed", facts)


def test_a_restore_must_begin_before_the_forward_in_dispute():
    world = saved(CHECKED_FILES, 2)
    before = world.operators.durable
    world.arbiter.state.out.save(manifest=Manifest(0, 2, "0/2", ""))
    world.sealed[0, 2] = (1, 2, 3)
    world.flips = {"a01": Flip(Op.F, False)}
    for step in (3, 2):  # step 2 begins with this checkpoint
        world.told = frozenset({(0, step)})
        check_restore(world, before, restoring())
    world.told = frozenset({(0, 1)})
    with pytest.raises(Violation, match="the checkpoint of step 2 is restored, but it is wrong"):
        check_restore(world, before, restoring())
    world.flips = {"a01": Flip(Op.F, True)}
    check_restore(world, before, restoring())  # nobody can know how often it was wrong


def test_a_restore_must_begin_with_right_bits():
    world = saved(ALTERED_PAIR, 2)
    apply(world, ("alter", "a01", 1))
    before = world.operators.durable
    world.arbiter.state.out.save(manifest=Manifest(0, 2, "0/2", ""))
    check_restore(world, before, restoring())
    world.sealed[0, 2] = (1, 2, 3)
    with pytest.raises(Violation, match="the checkpoint of step 2 is restored, but it is wrong"):
        check_restore(world, before, restoring())
    world.kill("a01")  # it may have written the file before it died
    check_restore(world, before, restoring())
    assert world.spoiled == (0, 2)


def test_a_wrong_result_does_not_stay_once_the_operator_knows_of_it():
    def wrong(_):
        raise Violation("wrong weights")

    world = saved(ALTERED_PAIR, 2)
    world.spoiled = 0, 1
    check_told(world, wrong)
    store = world.operators.store
    store.durable = replace(store.durable, voided=(1,))
    with pytest.raises(Violation, match="wrong weights"):
        check_told(world, wrong)
    world.spoiled = 7, 1
    check_told(world, wrong)


def test_only_the_agent_with_the_wrong_layer_is_blamed():
    world = saved(ALTERED_PAIR, 2)
    apply(world, ("alter", "a01", 1))
    facts = {EventFact.AGENTS: "a01", EventFact.CAUSE: "Corruption"}
    check_blame(world, Record(Severity.WARNING, EventReason.WORKER_FAILED, "because", facts))
    facts = {**facts, EventFact.AGENTS: "a00"}
    with pytest.raises(Violation, match="compute right bits, but are blamed"):
        check_blame(world, Record(Severity.WARNING, EventReason.WORKER_FAILED, "because", facts))


def test_a_sound_agent_is_blamed_only_without_a_majority_and_only_if_it_has_differed():
    facts = {EventFact.AGENTS: "a00", EventFact.CAUSE: "Corruption"}
    blamed = Record(Severity.WARNING, EventReason.WORKER_FAILED, "nobody knows who is right", facts)
    world = saved(ALTERED_THREE, 2)
    node = world.nodes["a00"]

    def vote(*gradients):
        for number, gradient in enumerate(gradients):
            said = Vote({0: gradient}, {}, frozenset(), {})
            node.worker.backend.store[Item.vote(4, f"a{number:02d}")] = said
        note_dispute(world, node, 4)

    world.flips = {"a01": Flip(Op.VOTE, True)}
    vote(1, 2, 1)
    assert world.differing == {"a00", "a01", "a02"}
    with pytest.raises(Violation, match="compute right bits, but are blamed"):
        check_blame(world, blamed)
    del node.worker.backend.store[Item.vote(4, "a02")]
    vote(1, 2)
    assert world.tied == {"a00", "a01"}
    check_blame(world, blamed)
    assert not world.is_misled
    assert "a00" in world.noticed  # it has to go
    world.flips = {"a01": Flip(Op.VOTE, False)}
    with pytest.raises(Violation, match="compute right bits, but are blamed"):
        check_blame(world, blamed)


@pytest.mark.parametrize("lasts", [False, True])
def test_a_wrong_vote_costs_its_agent_only_if_it_is_repeated(lasts):
    world = saved(ALTERED_THREE, 2)
    apply(world, ("flip", "a01", "VOTE", lasts))
    assert world.finish() == "complete"
    assert world.operators.durable.voided
    assert ("a01" in world.nodes) != lasts


def test_silence_that_is_found_too_late_is_a_violation():
    world = saved(ALTERED_PAIR, 2)
    apply(world, ("beat every", 3.2))
    apply(world, ("kill silently", "a01", 0))
    check_silence(world)
    world.now += 10.0
    check_silence(world)
    world.now += 0.1
    with pytest.raises(Violation, match="have been silent since"):
        check_silence(world)


HISTORIES = {
    # a01 alone holds its layer from then on, and a02 had computed with the right one
    "the sound one of two dies": (
        History(ALTERED_AHEAD, 11, "slow-control"),
        ((29, ("alter", "a01", 5)), (31, ("kill", "a02", 2))),
    ),
    # a02 computes the same forward again with another layer, and a01 has a00's result as input
    "the maker of an input has died": (
        History(ALTERED_AHEAD, 11, "slow-control"),
        ((47, ("alter", "a02", 0)), (50, ("kill", "a00", 2))),
    ),
    # a00 alone knew a commit, so the others have inputs of its next step; a02 does that again
    "the maker of an input was a step ahead": (
        History(ALTERED_AHEAD, 14192750, "late"),
        ((157, ("alter", "a02", 0)), (0, ("kill", "a00", 1))),
    ),
    # a00 has sent results of its wrong layer before it contradicts itself
    "the altered one ends after it has sent wrong results": (
        History(ALTERED_AHEAD_TWICE, 41, "fifo"),
        ((89, ("alter", "a00", 3)), (24, ("kill", "a03", 0))),
    ),
    # a00 is wrong again, and nobody computes that forward in what is left of the step
    "another agent dies in the step that is void": (
        History(CHECKED_TWICE, 3, "slow-control"),
        ((99, ("flip", "a00", "F", True)), (94, ("kill", "a01", 1))),
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_once_a_dispute_is_known_the_result_is_right(name):
    base, script = HISTORIES[name]
    world = replay(replace(base, script=script))
    assert world.told
    assert not world.spoiled


def test_nobody_sees_a_device_that_is_always_wrong_if_only_another_fault_is_told():
    """The step is void because of a02's vote, and nobody else computes what a07 computes."""
    job = replace(ALTERED_PAIR, pipelines=4, stages=2, microbatches=2, replica=False, steps=2)
    script = ((0, ("flip", "a07", "F", True)), (0, ("flip", "a02", "VOTE", False)))
    world = replay(History(job, 404251549, "fifo", script))
    assert world.told == {(0, 0)}
    assert world.spoiled == (0, 0)
    alone = replay(History(job, 404251549, "fifo", script[:1]))
    assert not alone.told
    assert alone.spoiled
