"""Slices that are gathered: the same messages as a transfer for each pair, in a valid order."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RecoveryPolicy, RedundancyMode
from bamboo_core.graph.closure import Periodic
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.model.program import Instruction, Messages, Op, Packed, parse, parts_of, to_text
from bamboo_core.protection import interrupted
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.costs import Costs

from .steps import name, step

EXCHANGED = (Kind.PIECE, Kind.RED)


def exchanged(program, op):
    """Slices of gradients that the program sends or receives, in order."""
    return [(x.item, x.peer) for x in program if x.op is op and x.item.kind in EXCHANGED]


def turns(messages):
    """Item -> its peers, in order."""
    out = {}
    for item, peer in messages:
        out.setdefault(item, []).append(peer)
    return out


@st.composite
def shapes(draw):
    """Full and degraded grids; more chunks than pipelines, or fewer, or as many."""
    pipelines, stages = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    batch = choose(
        microbatches=pipelines * draw(st.integers(1, 6)),
        pipelines_max=pipelines,
    )
    seats = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = draw(st.lists(st.sampled_from(seats), max_size=pipelines - 1, unique=True))
    shape = step(
        batch,
        pipelines,
        stages,
        lost,
        split=draw(st.booleans()),
        mode=draw(st.sampled_from(list(RedundancyMode))),
        policy=draw(st.sampled_from(list(RecoveryPolicy))),
        periodic=Periodic(evals=1, validate_every=3, saves=draw(st.booleans()), save_every=5),
        costs=Costs.even(stages, latency=draw(st.sampled_from([0.0, 0.25]))),
        relays=False,
    )
    return replace(shape, lost=tuple(lost) if all(shape.holders()) else ())


@given(shape=shapes())
@settings(max_examples=150, deadline=None)
def test_the_same_messages_are_sent_in_the_same_turns(shape):
    pairs = shape.build().programs
    gathered = replace(shape, gathers=True).build().programs
    assert gathered.keys() == pairs.keys()
    for agent, program in gathered.items():
        assert Counter(program) == Counter(pairs[agent])
        one, other = exchanged(program, Op.SEND), exchanged(pairs[agent], Op.SEND)
        if not shape.timing.latency:  # else tasks may follow each other in another order
            assert one == other
        assert turns(one) == turns(other)


def run(shape, programs, held, **options):
    return dry_run.dry_run(
        programs,
        batch=shape.batch,
        layers=shape.cut[-1][1],
        holdings=held,
        costs=shape.timing,
        **options,
    )


@given(shape=shapes(), periodic=st.booleans(), lane_limit=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_they_can_run_and_the_dry_run_finds_the_same_in_both_forms(shape, periodic, lane_limit):
    made = replace(shape, gathers=True).build()
    options = {
        "periodic": periodic,
        "lanes": shape.lanes(made.programs) if lane_limit else {},
        "lane_limit": lane_limit,
    }
    packed = run(shape, made.programs, shape.holdings(), **options)
    assert packed.ok, str(packed)
    assert made.forced == 0
    flat = {agent: tuple(program) for agent, program in made.programs.items()}
    assert run(shape, flat, shape.holdings(), **options) == packed
    del options["periodic"]
    both = (made.programs, flat)
    timed = [run(shape, x, shape.holdings(), wire=lambda item: 0.1, **options) for x in both]
    assert timed[0] == timed[1]
    until = packed.length / 2
    rest = [
        dry_run.stopped(
            x,
            until=until,
            batch=shape.batch,
            layers=shape.cut[-1][1],
            holdings=shape.holdings(),
            costs=shape.timing,
            lanes=options["lanes"],
            lane_limit=lane_limit,
        )
        for x in both
    ]
    assert rest[0] == rest[1]
    for agent, program in made.programs.items():
        assert isinstance(program, Packed)
        assert all(x.items for x in parts_of(program) if isinstance(x, Messages))
        assert parse(to_text(program)) == flat[agent] == program
        assert to_text(program) == to_text(flat[agent])


def damaged(programs, data):
    """Without one part of an agent's program, or with two parts of it exchanged."""
    agent = data.draw(st.sampled_from([a for a, x in sorted(programs.items()) if len(x)]))
    parts = list(parts_of(programs[agent]))
    at, other = (data.draw(st.integers(0, len(parts) - 1)) for _ in range(2))
    if at == other:
        del parts[at]
    else:
        parts[at], parts[other] = parts[other], parts[at]
    return {**programs, agent: Packed(parts)}


@given(shape=shapes(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_dry_run_finds_the_same_faults_whether_it_measures_or_not(shape, data):
    programs = damaged(replace(shape, gathers=True).build().programs, data)
    flat = {agent: tuple(program) for agent, program in programs.items()}
    found = [
        run(shape, x, shape.holdings(), measures=measures)
        for x in (programs, flat)
        for measures in (True, False)
    ]
    # Agents may meet several faults in another order.
    texts = {tuple(sorted(str(x).splitlines())) for x in found}
    assert len(texts) == 1
    kinds = [(frozenset(x.deadlock), frozenset(x.unmatched), frozenset(x.disorder)) for x in found]
    assert len(set(kinds)) == 1


@given(
    until=st.integers(0, 60),
    lost=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=3),
    again=st.integers(0, 20),
    split=st.booleans(),
    leaves=st.sampled_from([BatchShape(16, 2, 4), BatchShape(16, 1, 8), BatchShape(16, 4, 2)]),
)
@settings(max_examples=150, deadline=None)
def test_a_step_continues_wherever_it_was_stopped_and_again(until, lost, again, split, leaves):
    """Some slices of a stage may exist, and those of another one be gathered."""
    whole = step(leaves, 4, 3, split=split, gathers=True)
    first, *others = sorted(lost) or [(0, 0)]
    after = replace(whole, lost=(first,))
    stopped = interrupted.stop(whole, at=min(until, whole.build().length - 0.5)).holdings
    made, report, _ = interrupted.rest(after, {a: stopped[a] for a in after.live})
    assert report.ok, str(report)
    last = replace(after, lost=(first, *others))
    if not all(last.holders()):
        return
    stopped = interrupted.stop(after, at=again, programs=made.programs).holdings
    made, report, _ = interrupted.rest(last, {a: stopped[a] for a in last.live})
    assert report.ok, str(report)
    flat = {agent: tuple(program) for agent, program in made.programs.items()}
    assert all(isinstance(x, Packed | tuple) for x in made.programs.values())
    assert {agent: parse(to_text(x)) for agent, x in made.programs.items()} == flat


def test_a_whole_step_gathers_all_slices():
    """The plan of a large grid has one part for each group of messages, and not one for each."""
    shape = step(BatchShape(32, 2, 8), 8, 2, gathers=True)
    for program in shape.build().programs.values():
        single = [x for x in parts_of(program) if not isinstance(x, Messages)]
        assert not [x for x in single if x.item is not None and x.item.kind in EXCHANGED]


# ---------------------------------------------------------------- the dry run of packed programs

A, B, C = name(0, 0), name(0, 1), name(0, 2)
VER = [Item.ver(0, x) for x in range(3)]


def packed(*parts):
    return Packed(parts)


def send(items, *peers):
    return Messages(Op.SEND, tuple(items), peers)


def receive(items, *peers):
    return Messages(Op.RECV, tuple(items), peers)


def tried(programs, held):
    """The report, which must be the same for the same programs as tuples."""
    shape = step(BatchShape(4, 2, 2), 1, 3)
    found = run(shape, programs, held)
    assert found == run(shape, {a: tuple(x) for a, x in programs.items()}, held)
    return found


ONE, TWO = Item.red(0, (0, 1), 0, 2), Item.red(0, (0, 1), 1, 2)


def test_a_message_that_nobody_receives():
    found = tried(
        {A: packed(send([ONE, ONE], B, C)), B: packed(receive([ONE], A)), C: ()}, {A: [ONE]}
    )
    assert found.unmatched == (dry_run.Message(ONE, A, C),)


def test_a_message_to_nobody():
    found = tried({A: packed(send([ONE, ONE], B, C)), B: packed(receive([ONE], A))}, {A: [ONE]})
    assert found.unmatched == (dry_run.Message(ONE, A, C),)


def test_messages_to_several_that_are_not_there_are_told_in_order():
    peers = [name(d, 1) for d in range(9)]
    found = tried({A: packed(send([ONE] * 9, *peers))}, {A: [ONE]})
    assert [m.target for m in found.unmatched] == peers


def test_a_message_that_nobody_sends():
    programs = {
        A: packed(send([ONE], C)),
        B: (),
        C: packed(receive([ONE, TWO], A, B)),
    }
    found = tried(programs, {A: [ONE]})
    assert found.deadlock == {
        C: dry_run.Blocked(1, Instruction(Op.RECV, item=TWO, peer=B), TWO),
    }


def test_an_item_that_the_sender_lacks():
    programs = {A: packed(send([ONE, TWO], B, B)), B: packed(receive([ONE, TWO], A, A))}
    found = tried(programs, {A: [ONE]})
    assert found.deadlock[A] == dry_run.Blocked(1, Instruction(Op.SEND, item=TWO, peer=B), TWO)
    assert found.deadlock[B].at == 1


@pytest.mark.parametrize("alone", [False, True], ids=["in one group", "one by one"])
def test_messages_that_are_received_in_another_order(alone):
    sends = [send([ONE], B), send([TWO], B)] if alone else [send([ONE, TWO], B, B)]
    found = tried({A: packed(*sends), B: packed(receive([TWO, ONE], A, A))}, {A: [ONE, TWO]})
    assert found.disorder == (dry_run.Message(TWO, A, B),)


def test_single_messages_between_groups_keep_their_order():
    mixed = packed(send([ONE], B), Instruction(Op.SEND, item=TWO, peer=B), send([VER[0]], B))
    single = (
        Instruction(Op.RECV, item=ONE, peer=A),
        Instruction(Op.RECV, item=TWO, peer=A),
        Instruction(Op.RECV, item=VER[0], peer=A),
    )
    held = {A: [ONE, TWO, VER[0]]}
    assert tried({A: mixed, B: single}, held).ok
    assert tried({A: mixed, B: packed(receive([ONE, TWO], A, A), single[2])}, held).ok
    found = tried({A: mixed, B: packed(receive([TWO, ONE], A, A), single[2])}, held)
    assert found.disorder == (dry_run.Message(TWO, A, B),)


def test_a_packed_program_is_its_instructions():
    first = Instruction(Op.END)
    program = packed(first, send([ONE, TWO], B, C), first)
    flat = (
        first,
        Instruction(Op.SEND, item=ONE, peer=B),
        Instruction(Op.SEND, item=TWO, peer=C),
        first,
    )
    assert tuple(program) == flat
    assert program == flat
    assert flat == program
    assert hash(program) == hash(flat)
    assert len(program) == 4
    assert (program[2], program[-1], program[1:3]) == (flat[2], flat[-1], flat[1:3])
    assert program != flat[1:]
    assert program != "x"
    assert repr(program) == f"Packed({flat!r})"
    copy = pickle.loads(pickle.dumps(program))
    assert copy == program
    assert copy._hash is None  # names have other hashes in other processes
