from dataclasses import replace

import pytest

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, parse
from bamboo_core.protocol.effects import Drop, ProtocolError, Run, SendOperator, StepEnded, Transmit
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import (
    AgentReport,
    CommitRecord,
    Continuation,
    Directive,
    Finished,
    Left,
    Stop,
)

BATCH = BatchShape(2, 1, 1)
ME, PEER = AgentId("a"), AgentId("b")
FIRST, SECOND = Fence(0, 1, 1), Fence(0, 1, 2)


def directive(resume="", *, target=0, last=9, fence=FIRST, wanted=((0, 2),)):
    return Directive(
        fence,
        target,
        last,
        parse(resume),
        wanted,
        BATCH,
        ME,
        plan_hash=f"plan of {fence}",
        has_continuation=target < last,
    )


def continuation(steady="", final="", *, fence=FIRST):
    return Continuation(fence, f"plan of {fence}", parse(steady), parse(final))


def started(resume, *, steady=None, final="", **options):
    """An agent with a plan; without its continuation, unless ``steady`` is given."""
    executor = Executor(ME, 2)
    executor.stop(Stop(options.get("fence", FIRST)))
    effects = executor.install(directive(resume, **options))
    if steady is not None:
        effects += executor.proceed(continuation(steady, final))
    return executor, effects


def reports(effects):
    return [
        e.message
        for e in effects
        if isinstance(e, SendOperator) and isinstance(e.message, AgentReport)
    ]


def runs(effects):
    return [str(e.instruction) for e in effects if isinstance(e, Run)]


def test_a_stop_is_answered_with_facts():
    executor = Executor(ME, 2, versions={0: 3})
    assert executor.is_over  # before its first program
    report = reports(executor.stop(Stop(FIRST)))[0]
    assert report.fence == FIRST
    assert report.versions == {0: 3}
    assert report.ended == -1


def test_a_stop_waits_for_the_running_instruction():
    executor, effects = started("INIT[0:1]\nF[0:1] m0")
    assert runs(effects) == ["INIT[0:1]"]
    assert executor.stop(Stop(SECOND)) == []
    effects = executor.done()
    assert reports(effects)[0].versions == {0: 0}
    assert not runs(effects)
    assert executor.fence == SECOND


def test_an_older_stop_is_ignored_and_a_repeated_one_answered_again():
    executor = Executor(ME, 2)
    assert reports(executor.stop(Stop(SECOND)))
    assert executor.stop(Stop(FIRST)) == []
    assert reports(executor.stop(Stop(SECOND)))
    executor.install(directive("RECV (out[1]) <b", fence=SECOND))
    assert executor.stop(Stop(SECOND)) == []


def test_votes_do_not_outlive_a_stop():
    executor, _ = started("VOTE")
    executor.done()
    vote = Item.vote(0, ME)
    assert executor.has(vote)
    effects = executor.stop(Stop(SECOND))
    assert Drop((vote,)) in effects
    assert vote not in reports(effects)[0].items


def test_a_vote_outlives_a_stop_of_its_own_fence_that_is_said_again():
    """Peers may have begun the plan before this agent hears the leader again."""
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    executor.arrive(Item.vote(4, PEER), FIRST)
    again = executor.stop(Stop(FIRST))
    assert [type(effect) for effect in again] == [SendOperator]
    effects = executor.install(directive("RECV (vote b) <b\nINIT[0:1]", target=4))
    assert runs(effects) == ["INIT[0:1] @4"]


def test_a_new_attempt_discards_everything_even_what_was_running():
    executor, _ = started("INIT[0:1]\nF[0:1] m0")
    executor.done()
    executor.stop(Stop(Fence(1, 1, 3)))
    report = reports(executor.done())[0]
    assert report.versions == {}
    assert report.items == frozenset()
    assert report.ended == -1


def test_data_of_the_adopted_fence_is_taken_before_the_program():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    out = Item.out(0, 1, 0)
    assert executor.accepts(out, FIRST)
    assert executor.arrive(out, FIRST) == []
    assert executor.has(out)


def test_data_of_another_fence_is_refused():
    executor = Executor(ME, 2)
    executor.stop(Stop(SECOND))
    out = Item.out(0, 1, 0)
    assert not executor.accepts(out, FIRST)
    assert executor.arrive(out, FIRST) == [Drop((out,))]


def test_a_duplicate_changes_nothing():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    out = Item.out(0, 1, 0)
    executor.arrive(out, FIRST)
    assert not executor.accepts(out, FIRST)
    assert executor.arrive(out, FIRST) == []


def test_a_copied_version_brings_its_commit():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    record = CommitRecord(2, loss=1.5)
    executor.arrive(Item.ver(3, 0), FIRST, record)
    assert executor.versions == {0: 3}
    assert executor.commits == {2: record}
    assert executor.has(Item.commit(2))


def test_an_older_version_does_not_replace_a_newer_one():
    executor = Executor(ME, 2, versions={0: 3})
    executor.stop(Stop(FIRST))
    old = Item.ver(2, 0)
    assert not executor.accepts(old, FIRST)
    assert not executor.accepts(Item.ver(3, 0), FIRST)
    assert executor.accepts(Item.ver(4, 0), FIRST)
    executor.arrive(old, FIRST)
    assert executor.versions == {0: 3}


def test_gradients_and_commit_of_the_step_just_ended_are_still_taken():
    executor = Executor(ME, 2, ended=4)
    executor.stop(Stop(FIRST))
    assert executor.accepts(Item.red(4, (0, 1), 0, 1), FIRST)
    assert not executor.accepts(Item.red(3, (0, 1), 0, 1), FIRST)
    assert not executor.accepts(Item.out(4, 1, 0), FIRST)


def test_received_boundaries_are_dropped_after_use_but_own_ones_kept():
    executor, _ = started("RECV (out[1]) <b\nF[1:2] m0\nB[1:2] m0")
    executor.versions[1] = 0
    effects = executor.arrive(Item.out(0, 1, 0), FIRST)
    assert runs(effects) == ["F[1:2] m0"]
    assert Drop((Item.out(0, 1, 0),)) in executor.done()
    executor.done()
    assert executor.has(Item.ingrad(0, 1, 0))
    assert not executor.has(Item.act(0, (1, 2), 0))


def commit(executor, step):
    return executor.arrive(Item.commit(step), executor.fence, CommitRecord(step))


def test_unwanted_layers_go_one_step_after_the_entry():
    executor, _ = started("RECV (commit) <b\nEND", steady="RECV (commit) <b\nEND", wanted=((0, 1),))
    executor.versions.update({0: 1, 1: 1})
    assert StepEnded(CommitRecord(0)) in commit(executor, 0)
    assert executor.versions.keys() == {0, 1}
    effects = commit(executor, 1)
    assert executor.versions.keys() == {0}
    dropped = [i for e in effects if isinstance(e, Drop) for i in e.items]
    assert Item.ver(1, 1) in dropped


def test_a_restarted_step_is_not_stale_for_an_agent_that_only_received_later_items():
    executor, _ = started("RECV (out[1] @1) <b", target=5)
    executor.stop(Stop(SECOND))
    executor.install(directive("RECV (out[1]) <b", fence=SECOND, target=0))
    assert executor.accepts(Item.out(0, 1, 0), SECOND)


def test_only_the_end_of_the_job_waits_for_files():
    final = "SAVE[0:2]\nSEND (file[0:1]) >b\nSEAL\nCOMMIT"
    executor, effects = started(final, target=4, last=4)
    executor.versions.update({0: 4, 1: 4})
    effects = executor.stop(Stop(SECOND))
    effects = executor.install(directive(final, fence=SECOND, target=4, last=4))
    assert runs(effects) == ["SAVE[0:2] @4"]
    assert runs(executor.done()) == ["COMMIT @4"]
    record = CommitRecord(4, validation_loss=1.0)
    assert executor.done(record) == [StepEnded(record)]
    first, second = Item.file(4, 0), Item.file(4, 1)
    assert executor.saved(first) == [Transmit(first, PEER, SECOND)]
    assert runs(executor.saved(second)) == ["SEAL @4"]
    assert executor.done() == [SendOperator(Finished(SECOND))]
    assert executor.is_over
    assert executor.arrive(Item.file(4, 1), SECOND) == []


def test_who_must_send_the_record_that_a_seal_lacks():
    """Then nobody waits for a storage, and a lost record would hold up the job for ever."""
    final = "SAVE[0:1]\nRECV (file[1:2]) <b\nSEAL"
    executor, _ = started(final, target=4, last=4)
    executor.versions.update({0: 4})
    executor.stop(Stop(SECOND))
    executor.install(directive(final, fence=SECOND, target=4, last=4))
    assert executor.awaited_record is None
    executor.done()
    assert executor.waits_for_files
    assert executor.awaited_record is None  # its own file is being written
    executor.saved(Item.file(4, 0))
    assert executor.waits_for_files
    found = executor.awaited_record
    assert (found.peer, found.item) == (PEER, Item.file(4, 1))
    assert runs(executor.arrive(Item.file(4, 1), SECOND)) == ["SEAL @4"]
    assert executor.awaited_record is None
    executor.done()
    assert not executor.waits_for_files


def test_a_leaver_waits_for_its_files():
    program = "SAVE[0:1]\nEXIT"
    executor, _ = started(program, target=4, last=4)
    executor.versions.update({0: 4})
    executor.stop(Stop(SECOND))
    executor.install(directive(program, fence=SECOND, target=4, last=9))
    executor.done()
    assert executor.waits_for_files
    assert executor.saved(Item.file(4, 0)) == [SendOperator(Left(SECOND))]
    assert not executor.waits_for_files


def test_a_file_without_a_waiting_task_is_dropped():
    executor = Executor(ME, 2)
    file = Item.file(4, 0)
    assert executor.saved(file) == [Drop((file,))]


def test_a_save_under_way_is_not_begun_again():
    executor, _ = started("", target=4, last=4)
    executor.versions.update({0: 4, 1: 4})
    for fence in (SECOND, Fence(0, 1, 3)):
        executor.stop(Stop(fence))
        effects = executor.install(directive("SAVE[0:2]", fence=fence, target=4, last=4))
        if fence == SECOND:
            assert runs(effects) == ["SAVE[0:2] @4"]
            executor.done()
    assert effects == []


def test_a_file_that_two_plans_save_keeps_its_record():
    executor, _ = started("SAVE[0:1]", target=4, last=4)
    executor.versions.update({0: 4, 1: 4})
    for fence, program in ((SECOND, "SAVE[0:1]"), (Fence(0, 1, 3), "SAVE[0:2]")):
        executor.stop(Stop(fence))
        executor.install(directive(program, fence=fence, target=4, last=4))
        executor.done()
    first, second = Item.file(4, 0), Item.file(4, 1)
    assert executor.saved(first) == []
    assert executor.saved(first) == []
    assert executor.saved(second) == [SendOperator(Finished(Fence(0, 1, 3)))]
    assert {first, second} <= executor.held.keys()


def test_files_of_a_checkpoint_that_cannot_be_read_are_written_again():
    executor, _ = started("", target=4, last=4)
    executor.versions[0] = 4
    kept, torn = (Item.file(step, 0) for step in (3, 4))
    executor.held.update({kept: False, torn: False})
    executor.stop(Stop(SECOND))
    assert executor.unsaved({4}) == [Drop((torn,))]
    assert set(executor.held) == {kept}
    effects = executor.install(directive("SAVE[0:1]", fence=SECOND, target=4, last=4))
    assert runs(effects) == ["SAVE[0:1] @4"]


def test_a_save_that_was_given_up_is_begun_again():
    executor, effects = started("SAVE[0:1]", target=4, last=4)
    executor.versions[0] = 4
    executor.stop(Stop(SECOND))
    effects = executor.install(directive("SAVE[0:1]", fence=SECOND, target=4, last=4))
    assert runs(effects) == ["SAVE[0:1] @4"]
    third = Fence(0, 1, 3)
    assert executor.stop(Stop(third)) == []
    assert executor.is_stopping
    assert [r.fence for r in reports(executor.abandon())] == [third]
    assert not executor.is_stopping
    effects = executor.install(directive("SAVE[0:1]", fence=third, target=4, last=4))
    assert runs(effects) == ["SAVE[0:1] @4"]


def test_a_seal_does_not_wait_for_the_seal_before_it():
    """Files of an older checkpoint may be slow; the newer one may be given up at once."""
    executor, _ = started("SEAL\nEND", steady="SEAL", target=4)
    assert runs(commit(executor, 4)) == []
    newer = {Item.file(5, layer) for layer in (0, 1)}
    effects = [e for item in sorted(newer) for e in executor.arrive(item, FIRST)]
    assert runs(effects) == ["SEAL @5"]
    assert runs(executor.done()) == []
    effects = [e for layer in (0, 1) for e in executor.arrive(Item.file(4, layer), FIRST)]
    assert runs(effects) == ["SEAL @4"]


def test_exit_says_left():
    _, effects = started("EXIT")
    assert effects == [SendOperator(Left(FIRST))]


def test_a_program_that_waits_for_data_does_not_wait_for_files():
    executor = Executor(ME, 2, versions={0: 4})
    executor.stop(Stop(FIRST))
    executor.install(directive("SAVE[0:1]\nRECV (out[1]) <b", target=4, last=4))
    executor.done()
    assert not executor.waits_for_files
    executor.arrive(Item.out(4, 1, 0), FIRST)
    assert executor.waits_for_files


def test_a_record_outlives_its_step_while_its_seal_waits():
    executor, _ = started("SEAL\nEND", steady="END", target=4)
    first, second = Item.file(4, 0), Item.file(4, 1)
    executor.arrive(first, FIRST)
    for step in (4, 5):
        commit(executor, step)
    assert executor.ended == 5
    assert executor.has(first)
    assert runs(executor.arrive(second, FIRST)) == ["SEAL @4"]


def test_a_leaver_stays_until_its_files_are_handed_over():
    executor, effects = started("SAVE[0:1]\nSEND (file[0:1]) >b\nEXIT")
    executor.versions[0] = 0
    executor.stop(Stop(SECOND))
    program = "SAVE[0:1]\nSEND (file[0:1]) >b\nEXIT"
    effects = executor.install(directive(program, fence=SECOND))
    assert runs(effects) == ["SAVE[0:1]"]
    assert executor.done() == []
    file = Item.file(0, 0)
    assert executor.saved(file) == [Transmit(file, PEER, SECOND), SendOperator(Left(SECOND))]


def test_what_cannot_be_performed_leaves_no_fact_and_waits_for_a_stop():
    executor, _ = started("LOAD[0:1]\nF[0:1] m0")
    assert executor.abandon() == []
    assert reports(executor.stop(Stop(SECOND)))[0].versions == {}


def test_a_save_goes_on_when_another_instruction_is_given_up():
    executor = Executor(ME, 2, versions={0: 4})
    executor.stop(Stop(FIRST))
    executor.install(directive("SAVE[0:1]\nLOAD[0:1]", target=4, last=4))
    assert runs(executor.done()) == ["LOAD[0:1] @4"]
    executor.abandon()
    file = Item.file(4, 0)
    assert executor.saved(file) == []
    assert executor.has(file)


def test_a_stop_that_came_while_it_failed_is_answered():
    executor, _ = started("LOAD[0:1]")
    executor.stop(Stop(SECOND))
    assert reports(executor.abandon())[0].fence == SECOND


def test_done_without_an_instruction_is_a_defect():
    with pytest.raises(ProtocolError, match="without a running"):
        Executor(ME, 2).done()


def test_commit_without_a_record_is_a_defect():
    executor, _ = started("COMMIT {a}")
    executor.held[Item.vote(0, ME)] = False
    executor.stop(Stop(SECOND))
    executor.install(directive("VOTE\nCOMMIT {a}", fence=SECOND))
    executor.done()
    with pytest.raises(ProtocolError, match="record"):
        executor.done()


# ---------------------------------------------------------------- the two parts of a plan


def test_an_agent_without_the_rest_of_its_plan_keeps_everything_and_waits():
    executor, _ = started("INIT[0:2]\nF[0:1] m0\nF[1:2] m0", last=2)
    executor.done()
    executor.done()
    held = {*executor.held}
    assert runs(executor.done()) == []
    assert executor.current is None
    assert held <= executor.held.keys()
    later = Item.out(1, 1, 0)
    assert executor.accepts(later, FIRST)  # from an agent that has the rest already
    assert executor.arrive(later, FIRST) == []
    assert executor.has(later)
    executor.versions = {0: 1, 1: 1}
    assert runs(executor.proceed(continuation("RECV (out[1]) <b\nF[1:2] m0"))) == ["F[1:2] m0 @1"]


def test_the_rest_that_comes_early_is_kept_and_taken_once():
    executor, _ = started("INIT[0:1]", last=2)
    rest = continuation("F[0:1] m0", "F[0:1] m1")
    executor.versions = {0: 1}
    assert executor.proceed(rest) == []
    assert not executor.takes(rest)
    assert executor.proceed(rest) == []
    executor.versions = {0: 1}
    assert runs(executor.done()) == []  # step 1 needs version 1
    executor.versions = {0: 1}
    assert runs(executor._advance()) == ["F[0:1] m0 @1"]


@pytest.mark.parametrize(
    "other",
    [continuation("INIT[0:1]", fence=SECOND), Continuation(FIRST, "another plan", (), ())],
)
def test_the_rest_of_another_plan_is_refused(other):
    executor, _ = started("", last=2)
    assert not executor.takes(other)
    assert executor.proceed(other) == []
    assert executor.continuation is None


def test_the_rest_does_not_outlive_its_plan():
    executor, _ = started("INIT[0:1]", steady="INIT[1:2]")
    executor.stop(Stop(SECOND))
    executor.done()
    assert not executor.takes(continuation("INIT[1:2]"))
    executor.install(directive("", fence=SECOND))
    assert executor.continuation is None
    assert executor.current is None
    assert runs(executor.proceed(continuation("INIT[1:2]", fence=SECOND))) == ["INIT[1:2] @1"]


def test_a_stop_ends_the_wait_for_the_rest():
    executor, _ = started("INIT[0:1]")
    assert executor.done() == []
    report = reports(executor.stop(Stop(SECOND)))[0]
    assert (report.fence, report.installed, report.versions) == (SECOND, FIRST, {0: 0})


def test_no_agent_finishes_without_the_continuation():
    executor, effects = started("", target=0, last=1)
    assert effects == []
    assert executor.proceed(continuation()) == [SendOperator(Finished(FIRST))]
    executor, effects = started("", target=1, last=1)
    assert effects == [SendOperator(Finished(FIRST))]


def test_a_copy_carries_the_commit_that_made_it_and_a_commit_its_record():
    """So an agent that copies a layer learns what is committed."""
    program = "SEND (ver[0:1]) >b\nRECV (commit) <b\nSEND (commit) >b"
    executor, _ = started("", target=3)
    executor.versions[0] = 3
    older, newer = CommitRecord(2, loss=1.5), CommitRecord(3, loss=1.4)
    executor.arrive(Item.commit(2), FIRST, older)
    executor.stop(Stop(SECOND))
    effects = executor.install(directive(program, fence=SECOND, target=3))
    assert effects == [Transmit(Item.ver(3, 0), PEER, SECOND, older)]
    effects = executor.arrive(Item.commit(3), SECOND, newer)
    assert effects == [Transmit(Item.commit(3), PEER, SECOND, newer)]


def test_a_report_names_the_known_commits_in_the_order_of_their_steps():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    for step in (3, 2):
        executor.arrive(Item.commit(step), FIRST, CommitRecord(step))
    (report,) = reports(executor.stop(Stop(SECOND)))
    assert report.commits == (CommitRecord(2), CommitRecord(3))


def test_only_the_directive_of_the_adopted_fence_is_installed_and_only_once():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    assert executor.install(directive("INIT[0:1]", fence=SECOND)) == []
    assert executor.directive is None
    assert runs(executor.install(directive("INIT[0:1]"))) == ["INIT[0:1]"]
    executor.done()
    assert executor.install(directive("INIT[0:1]")) == []
    assert executor.at == 1


def test_what_the_shell_has_performed_is_counted_over_all_plans():
    executor = Executor(ME, 2)
    assert (executor.step, executor.at, executor.completed) == (0, 0, 0)
    executor, _ = started("INIT[0:1]")
    executor.done()
    executor.stop(Stop(SECOND))
    executor.install(directive("INIT[1:2]", fence=SECOND))
    executor.done()
    assert executor.completed == 2


def test_the_coordinator_knows_the_commit_that_it_has_made():
    executor = Executor(ME, 2)
    executor.stop(Stop(FIRST))
    make = Instruction(Op.COMMIT, agents=(ME,))
    executor.arrive(Item.vote(0, ME), FIRST)
    assert executor.install(replace(directive(), resume=(make,))) == [Run(make)]
    record = CommitRecord(0, loss=1.5)
    executor.done(record)
    assert executor.commits == {0: record}
    assert executor.has(Item.commit(0))
