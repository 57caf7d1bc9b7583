"""The judge of restores knows what lives, what files there are, and who cannot be reached."""

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventFact, EventReason, RestoreCause, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Fork
from bamboo_core.arbiter_state.events import Record
from bamboo_core.protocol.messages import Manifest
from bamboo_sim.protocol.checker.restores import check_newest, check_restore, check_suspended
from bamboo_sim.protocol.exploration.time_budget import SAVING, TURNING
from bamboo_sim.protocol.histories.history import History, advance, apply, replay
from bamboo_sim.protocol.parts.network import OPERATOR
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.simulation import Simulation


@pytest.fixture
def world():
    """2 x 2 without copies, two steps committed and both saved; as if it had begun anew."""
    world = Simulation(SAVING, 1, "fifo")
    while len(world.operators.durable.manifests) < 2:
        assert world.step()
    return world


def restored(world, cause=RestoreCause.LAYER_LOST, base=None, **facts):
    """Let the checker judge a restore from the base, or to the start."""
    before = replace(world.operators.durable, **facts)
    fork = Fork(1, base.step if base is not None else 0)
    world.arbiter.state.out.durable = replace(before, manifest=base, forks=(fork,))
    facts_of_event = {EventFact.CAUSE: cause}
    record = Record(Severity.WARNING, EventReason.RESTORING, "attempt 1", facts_of_event)
    check_restore(world, before, record)


def newest(world):
    """The newest checkpoint of the facts."""
    return max(world.operators.durable.manifests, key=lambda m: m.step)


def kill(world, *names):
    for name in names:
        world.kill(name)


def test_nothing_is_lost_while_every_layer_lives(world):
    with pytest.raises(Violation, match=r"restored, but no layer is lost: .*needed is version"):
        restored(world, manifests=())


def test_a_layer_without_a_holder_is_lost(world):
    plan = world.plan
    kill(world, *(pipeline[0] for pipeline in plan.pipelines))
    restored(world, manifests=())


def test_a_file_of_the_needed_version_keeps_it(world):
    kill(world, *(pipeline[0] for pipeline in world.plan.pipelines))
    needed = 1 + max(k for node in world.nodes.values() for k in node.executor.commits)
    manifests = (Manifest(0, needed, f"0/{needed}", ""),)
    world.sealed[0, needed] = None
    restored(world, manifests=manifests)
    world.sealed[0, needed] = (1, 2)
    older = Manifest(0, needed - 1, "older", "")
    restored(world, base=older, manifests=(older,))
    restored(world, base=older, manifests=manifests, forks=(Fork(1, needed - 1),))
    with pytest.raises(Violation, match="no layer is lost"):
        restored(world, manifests=manifests)


def test_holdings_of_an_unreachable_agent_do_not_count(world):
    first = [pipeline[0] for pipeline in world.plan.pipelines]
    kill(world, first[0])
    apply(world, ("cut", (first[1], ""), ("", first[1])))
    restored(world, manifests=())


def test_a_restore_after_a_false_suspicion_is_marked(world):
    first = [pipeline[0] for pipeline in world.plan.pipelines]
    kill(world, first[0])
    with pytest.raises(Violation, match="no layer is lost"):
        restored(world, manifests=())
    world.mislead()
    restored(world, manifests=())
    assert world.has_given_up


def test_leaving_agents_keep_nothing_if_none_stays(world):
    world.sealed[0, 0] = (1, 2)  # what a plan that nobody knows any more began with
    world.noticed = frozenset(world.nodes)
    restored(world, manifests=(Manifest(0, 0, "0/0", ""),), target=0)
    assert world.has_given_up


def test_agents_that_have_left_by_the_plan_keep_nothing_once_the_others_are_dead():
    """The plan is of one agent. The other three have ended their last step when it dies."""
    faults = (52, ("regrid", 1, 1)), (108, ("regrid", 2, 2)), (3, ("kill", "a03", 0))
    history = History(TURNING, 251115, "fifo", faults)
    left = Simulation(history.job, history.seed, history.policy)
    for gap, fault in faults[:2]:
        assert advance(left, gap)
        apply(left, fault)
    nodes = dict(left.nodes)
    del nodes["a03"]
    assert all(node.executor.is_over for node in nodes.values())
    with pytest.raises(Violation, match="no layer is lost"):
        restored(left)  # a03 is alive
    assert replay(history).has_given_up


def test_the_deadline_is_for_unreachable_voters(world):
    with pytest.raises(Violation, match="can be reached"):
        restored(world, RestoreCause.NO_VOTER)
    kill(world, *world.plan.live)
    restored(world, RestoreCause.NO_VOTER, newest(world))


def test_no_restore_begins_behind_a_whole_checkpoint(world):
    older, last = sorted(world.operators.durable.manifests, key=lambda m: m.step)
    mark = last.attempt, last.step
    kill(world, *world.plan.live)
    with pytest.raises(Violation, match=rf"from step {older.step}, though .* is only out of reach"):
        restored(world, RestoreCause.NO_VOTER, older)
    world.sealed.missing = frozenset({mark})  # absent says nothing
    with pytest.raises(Violation, match="is only out of reach"):
        restored(world, RestoreCause.NO_VOTER, older, bad=(mark,))
    restored(world, RestoreCause.USER_REQUESTED, older)
    world.sealed.misread[mark] = 1
    with pytest.raises(Violation, match="is only out of reach"):
        restored(world, RestoreCause.NO_VOTER, older)
    world.sealed.misread[mark] = 2
    restored(world, RestoreCause.NO_VOTER, older)
    world.sealed.misread.clear()
    world.sealed.refused = frozenset({mark})
    restored(world, RestoreCause.NO_VOTER, older)
    world.sealed.refused = frozenset()
    world.sealed[mark] = None
    restored(world, RestoreCause.NO_VOTER, older)


def test_only_a_suspended_job_is_resumed(world):
    restored(world, RestoreCause.RESUMED, newest(world), outcome=Outcome.SUSPENDED)
    with pytest.raises(Violation, match="a job that is not suspended is resumed"):
        restored(world, RestoreCause.RESUMED)


def test_checkpoints_are_listed_though_a_suspect_stays_connected_until_the_wait_is_over():
    """The job waits for the suspect's copy first, and then restored without a look at the files."""
    quiet = History(SAVING, 321950151, "fifo").then(230, ("kill silently", "a00", 2))
    world = replay(quiet.then(3, ("kill", "a01", 2)))
    assert world.operators.durable.attempt == 1


def test_a_new_attempt_begins_with_the_newest_file_that_may_be_read(world):
    operator = world.operators.running[world.operators.leader]
    first, second = sorted(step for _, step in world.sealed)
    older, newest = (Manifest(0, step, f"0/{step}", "") for step in (first, second))
    begun = {"attempt": 1, "forks": (Fork(1, first),), "manifest": older, "voters": (), "bad": ()}

    def check(**facts):
        before = world.operators.durable
        operator.arbiter.state.out.durable = replace(before, **begun | facts)
        check_newest(world, operator)

    with pytest.raises(Violation, match=rf"attempt 1 begins from step {first}; {second} is sealed"):
        check()
    with pytest.raises(Violation, match="begins from step 0"):
        check(manifest=None)
    check(manifest=newest)
    check(attempt=0)
    check(voters=("a00",))
    check(bad=((0, second),))
    later = {"attempt": 2, "forks": (Fork(1, first), Fork(2, first))}
    with pytest.raises(Violation, match="attempt 2 begins"):
        check(**later)
    world.computed = frozenset({1})
    check(**later)
    world.computed, world.rolled_back = frozenset(), {1: first}
    check(**later)
    with pytest.raises(Violation, match="attempt 1 has left it behind"):
        check(**later, manifest=newest)
    world.rolled_back = {}
    apply(world, ("stand still", "storage", OPERATOR, 5.0))
    check()
    operator.arbiter.state.listing.is_here = True
    with pytest.raises(Violation, match="is sealed"):
        check()
    world.sealed[0, second] = None
    check()


def test_a_seal_that_is_heard_at_once_with_the_end_counts():
    """The leader was uncertain for a moment, so it hears all at once."""
    history = History(SAVING, 730868149, "fifo").then(132, ("suspend",))
    uncertain = ("stand still", "lease", OPERATOR, 0.5)
    assert replay(history.then(49, uncertain)).outcome == "suspended"


def test_a_job_that_could_go_on_is_not_suspended_before_its_steps_are_saved(world):
    before = world.operators.durable
    saved = newest(world).step
    world.newest = (0, saved)
    after = replace(before, outcome=Outcome.SUSPENDED)
    with pytest.raises(Violation, match=f"step {saved} is committed, and {saved} are saved"):
        check_suspended(world, before, after)
    more = (*before.manifests, Manifest(0, saved + 1, "next", ""))
    check_suspended(world, before, replace(after, manifests=more))
    bad = ((0, saved + 1),)
    with pytest.raises(Violation, match=f"step {saved} is committed, and {saved} are saved"):
        check_suspended(world, before, replace(after, manifests=more, bad=bad))
