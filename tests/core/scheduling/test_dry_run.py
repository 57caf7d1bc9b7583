"""The dry run reports what is wrong with a set of programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import Instruction, Op, parse
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.dry_run import Blocked, Message, dry_run

from .steps import step

A, B, C, D = AgentId("a"), AgentId("b"), AgentId("c"), AgentId("d")
BATCH = BatchShape(2, 1, 1)
HELD = {agent: {Item.ver(0, x) for x in (0, 1)} for agent in (A, B)}


def run(a, b, **options):
    programs = {A: parse(a.replace(";", "\n")), B: parse(b.replace(";", "\n"))}
    report = dry_run(programs, batch=BATCH, layers=2, holdings=HELD, **options)
    fast = dry_run(programs, batch=BATCH, layers=2, holdings=HELD, measures=False, **options)
    assert faults(fast) == faults(report)
    return report


def faults(report):
    return report.ok, report.deadlock, report.unmatched, report.disorder


def out(m):
    return Item.out(0, 1, m)


def test_a_good_pair_passes():
    report = run("F[0:1] m0; SEND (out[1]) >b", "RECV (out[1]) <a; F[1:2] m0")
    assert report.ok
    assert str(report) == "ok"
    assert report.length == 2
    assert report.busy == {A: 1.0, B: 1.0}
    assert report.bubbles == 2.0
    assert report.activations == {A: 1, B: 1}
    assert report.boundaries == {A: 1, B: 1}


def test_messages_take_their_latency():
    report = run(
        "F[0:1] m0; SEND (out[1]) >b",
        "RECV (out[1]) <a; F[1:2] m0",
        costs=Costs.even(2, latency=0.5),
    )
    assert report.length == 2.5


def test_an_interface_sends_one_item_after_the_other():
    report = run(
        "F[0:1] m0; SEND (out[1]) >b; F[0:1] m1; SEND (out[1] m1) >b",
        "RECV (out[1]) <a; RECV (out[1] m1) <a; F[1:2] m0; F[1:2] m1",
        wire=lambda item: 3.0,
        costs=Costs.even(2, latency=0.5),
    )
    # sent from 1 to 4 and from 4 to 7
    assert report.length == report.end == 7.5 + 2


def test_a_boundary_tensor_does_not_wait_for_a_gradient():
    """The gradient takes until 11, the tensor that is sent after it no time."""
    reduced = Item.red(0, (0, 1), 0, 1)
    programs = {
        A: parse("F[0:1] m0\nSEND (red[0:1] 0/1) >b\nSEND (out[1]) >b"),
        B: parse("RECV (out[1]) <a\nF[1:2] m0\nRECV (red[0:1] 0/1) <a"),
    }
    report = dry_run(
        programs, batch=BATCH, layers=2, holdings={A: {*HELD[A], reduced}, B: HELD[B]},
        wire=lambda item: 10.0 if item == reduced else 0.0,
    )  # fmt: skip
    assert report.ok  # each lane is in order
    assert (report.length, report.end) == (2.0, 11.0)


def test_an_interface_receives_one_item_after_the_other():
    programs = {
        A: parse("F[0:1] m0\nSEND (out[1]) >c"),
        B: parse("F[0:1] m1\nSEND (out[1] m1) >c"),
        C: parse("RECV (out[1]) <a\nRECV (out[1] m1) <b\nF[1:2] m0\nF[1:2] m1"),
    }
    held = {agent: HELD[A] for agent in programs}
    report = dry_run(programs, batch=BATCH, layers=2, holdings=held, wire=lambda item: 3.0)
    # both are sent from 1 to 4
    assert report.length == 7.0 + 2


def test_an_interface_receives_items_as_they_come_not_as_they_are_asked_for():
    """The first item that the program asks for comes last: from 4 on, the interface receives the
    others, one of which came at 1 and one at 2."""
    programs = {
        A: parse("F[0:1] m0\nF[0:1] m0\nF[0:1] m0\nF[0:1] m0\nSEND (out[1]) >c"),
        B: parse("F[0:1] m1\nSEND (out[1] m1) >c"),
        D: parse("F[0:1] m2\nF[0:1] m2\nSEND (out[1] m2) >c"),
        C: parse("RECV (out[1]) <a\nRECV (out[1] m1) <b\nRECV (out[1] m2) <d\nF[1:2] m0"),
    }
    held = {agent: HELD[A] for agent in programs}
    report = dry_run(programs, batch=BATCH, layers=2, holdings=held, wire=lambda item: 3.0)
    # received from 1 to 4, from 4 to 7, from 7 to 10
    assert report.length == 10.0 + 1


def test_small_items_go_first_and_delay_large_ones():
    """As in the transport: the gradient takes from 0 to 10, and the tensor of 2 s comes at 1."""
    reduced = Item.red(0, (0, 1), 0, 1)
    programs = {
        A: parse("SEND (red[0:1] 0/1) >b\nF[0:1] m0\nSEND (out[1]) >b\nSEND (red[0:1] 0/1) >c"),
        B: parse("RECV (out[1]) <a\nF[1:2] m0\nRECV (red[0:1] 0/1) <a"),
        C: parse("RECV (red[0:1] 0/1) <a"),
    }
    report = dry_run(
        programs, batch=BATCH, layers=2, holdings={A: {*HELD[A], reduced}, B: HELD[B], C: HELD[B]},
        wire=lambda item: 10.0 if item == reduced else 2.0,
    )  # fmt: skip
    assert report.ok
    assert report.length == 1.0 + 2.0 + 1
    assert report.end == 10.0 + 2.0 + 10.0  # the second gradient leaves at 12


def test_what_has_come_before_is_not_received_again():
    """The item that the program asks for last came first, while the interface had no other work."""
    programs = {
        A: parse("F[0:1] m0\nF[0:1] m0\nF[0:1] m0\nF[0:1] m0\nSEND (out[1]) >c"),
        B: parse("F[0:1] m1\nSEND (out[1] m1) >c"),
        C: parse("RECV (out[1]) <a\nRECV (out[1] m1) <b\nF[1:2] m0"),
    }
    held = {agent: HELD[A] for agent in programs}
    report = dry_run(programs, batch=BATCH, layers=2, holdings=held, wire=lambda item: 2.0)
    assert report.length == 4.0 + 2.0 + 1
    free = dry_run(programs, batch=BATCH, layers=2, holdings=held, wire=lambda item: 0.0)
    assert free.length == 4.0 + 1


def test_the_end_is_that_of_the_last_instruction():
    report = run("F[0:1] m0; SEND (out[1]) >b", "RECV (out[1]) <a", wire=lambda item: 3.0)
    assert (report.length, report.end) == (1.0, 4.0)


def test_a_message_that_no_agent_sends_is_a_deadlock():
    report = run("F[0:1] m0", "RECV (out[1]) <a; F[1:2] m0")
    assert report.deadlock == {B: Blocked(0, parse("RECV (out[1]) <a")[0], out(0))}
    assert str(report) == "b is stuck at #0 RECV (out[1]) <a lacks out[1]"


def test_agents_that_wait_for_each_other_are_both_reported():
    first = "RECV (ingrad[1]) <b; F[0:1] m0; SEND (out[1]) >b"
    report = run(first, "RECV (out[1]) <a; F[1:2] m0; B[1:2] m0; SEND (ingrad[1]) >a")
    assert set(report.deadlock) == {A, B}


def test_use_of_an_input_before_its_receipt_is_found():
    report = run("F[0:1] m0; SEND (out[1]) >b", "F[1:2] m0; RECV (out[1]) <a")
    assert report.deadlock[B].item == out(0)


def test_messages_that_are_never_received_are_reported():
    report = run("F[0:1] m0; SEND (out[1]) >b; SEND (out[1]) >c", "F[0:1] m0")
    assert report.unmatched == (Message(out(0), A, B), Message(out(0), A, AgentId("c")))
    assert "a sends out[1] to b, which never receives it" in str(report)


def test_messages_between_two_agents_must_be_received_in_order():
    report = run(
        "F[0:1] m0; F[0:1] m1; SEND (out[1]) >b; SEND (out[1] m1) >b",
        "RECV (out[1] m1) <a; F[1:2] m1; RECV (out[1]) <a; F[1:2] m0",
    )
    assert not report.deadlock
    assert report.disorder == (Message(out(1), A, B),)
    assert "b receives out[1] m1 from a out of order" in str(report)


def test_a_copy_after_the_update_lacks_the_old_version():
    report = run("UPDATE[0:1] 0:1 0:1; SEND (ver[0:1]) >b", "")
    assert report.deadlock[A].instruction.op is Op.UPDATE
    held = {A: {*HELD[A], Item.red(0, (0, 1), 0, 1), Item.commit(0)}, B: set()}
    programs = {A: parse("UPDATE[0:1] 0:1 0:1\nSEND (ver[0:1]) >b"), B: parse("RECV (ver[0:1]) <a")}
    report = dry_run(programs, batch=BATCH, layers=2, holdings=held)
    assert report.deadlock[A].item == Item.ver(0, 0)


def test_a_received_boundary_is_gone_after_its_use():
    report = run(
        "F[0:1] m0; SEND (out[1]) >b",
        "RECV (out[1]) <a; F[1:2] m0; SEND (out[1]) >a",
    )
    assert report.deadlock[B].instruction.op is Op.SEND


@pytest.mark.parametrize("op", ["F", "B", "RECV", "FOLD", "REDUCE", "VOTE", "COMMIT", "UPDATE"])
def test_a_program_that_lacks_an_instruction_fails(op):
    shape = step(BatchShape(4, 1, 2), 2, 2)
    programs = dict(shape.build().programs)
    for agent, program in programs.items():
        found = next((i for i, x in enumerate(program) if x.op == op), None)
        if found is None:
            continue
        broken = {**programs, agent: program[:found] + program[found + 1 :]}
        report = shape.dry_run(broken)
        if op == "UPDATE":  # of a replica: no agent needs its new version within the step
            assert report.ok
        else:
            assert not report.ok, (agent, program[found])


def test_swapped_receipts_are_found():
    shape = step(BatchShape(8, 1, 2), 2, 2)
    programs = dict(shape.build().programs)
    agent = shape.seats[0][1]
    program = list(programs[agent])
    first, second = [i for i, x in enumerate(program) if x.op is Op.RECV][:2]
    program[first], program[second] = program[second], program[first]
    report = shape.dry_run({**programs, agent: tuple(program)})
    assert report.disorder or report.deadlock


def messages(op, peer, *shared):
    """As the planner makes them: both ends name one and the same object."""
    return tuple(Instruction(op, item=item, peer=peer) for item in shared)


def shared_run(a, b, held):
    return dry_run({A: a, B: b}, batch=BATCH, layers=2, holdings={A: held, B: HELD[B]})


def test_a_second_send_of_an_item_needs_it_again():
    """Its backward consumes the activation between two sends."""
    act = Item.act(0, (1, 2), 0)
    backward = parse("B[1:2] m0")
    twice = (*messages(Op.SEND, B, act), *backward, *messages(Op.SEND, B, act))
    report = shared_run(twice, messages(Op.RECV, A, act, act), {*HELD[A], act})
    assert report.deadlock[A] == Blocked(2, twice[2], act)
    assert report.deadlock[B].item == act


def test_a_second_send_of_a_version_needs_it_again():
    """Another version of the layer has come between two sends."""
    old, new = Item.ver(0, 1), Item.ver(1, 1)
    first = (
        *messages(Op.SEND, B, old),
        *messages(Op.RECV, B, new),
        *messages(Op.SEND, B, old),
    )
    other = (*messages(Op.SEND, A, new), *messages(Op.RECV, A, old))
    report = dry_run(
        {A: first, B: other}, batch=BATCH, layers=2,
        holdings={A: HELD[A], B: {Item.ver(1, 1), Item.ver(0, 0)}},
    )  # fmt: skip
    assert report.deadlock[A] == Blocked(2, first[2], old)


def test_messages_of_one_object_are_in_order_too():
    reduced = [Item.red(0, (0, 1), z, 2) for z in range(2)]
    sends = messages(Op.SEND, B, *reduced)
    assert shared_run(sends, messages(Op.RECV, A, *reduced), {*HELD[A], *reduced}).ok
    report = shared_run(sends, messages(Op.RECV, A, *reversed(reduced)), {*HELD[A], *reduced})
    assert report.disorder == (Message(reduced[1], A, B),)


def test_what_is_sent_and_received_at_once_is_sent_to_all():
    reduced = Item.red(0, (0, 1), 0, 1)
    sends = (*messages(Op.SEND, B, reduced), *messages(Op.SEND, AgentId("c"), reduced))
    programs = {A: sends, B: messages(Op.RECV, A, reduced), "c": messages(Op.RECV, A, reduced)}
    assert dry_run(programs, batch=BATCH, layers=2, holdings={A: {reduced}}).ok
    del programs["c"]
    report = dry_run(programs, batch=BATCH, layers=2, holdings={A: {reduced}})
    assert report.unmatched == (Message(reduced, A, AgentId("c")),)


def test_sums_are_counted_alike_with_and_without_bytes():
    """Slices of sums are taken many at once, unless each has a size."""
    batch = choose(microbatches=16, pipelines_max=4)
    shape = step(batch, 4, 2, lost=[(1, 1)])
    programs = shape.build().programs

    def run(**options):
        return dry_run(
            programs,
            batch=batch,
            layers=shape.stages,
            holdings=shape.holdings(),
            costs=shape.timing,
            **options,
        )

    plain, sized = run(), run(bytes_of=lambda item: 1)
    assert plain.ok
    assert plain.gradients == sized.gradients
    assert max(plain.gradients.values()) > 1
    assert replace(sized, bytes={}) == plain
