"""Every core message survives encoding to proto bytes and back."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api import texts
from bamboo_core.api.progress import Ahead, Goodput, Hosted, PeerRate, Sent
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Instruction, Op, Program
from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode
from bamboo_wire.errors import WireError

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
STEP = st.integers(0, 2**62)
SMALL = st.integers(0, 300)
TEXT = st.text(max_size=12)
NUMBER = st.floats(allow_nan=False)
SECONDS = st.integers(0, 2**31).map(lambda ms: ms / 1000)
AGENT = st.from_regex(r"[a-z]{2}[a-z0-9.-]{0,6}-[0-9]", fullmatch=True).map(AgentId)
FENCE = st.builds(Fence, U32, U64, U64)
RANGE = st.tuples(SMALL, st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1]))


@st.composite
def items(draw: st.DrawFn) -> Item:
    lo, hi = draw(st.one_of(st.just((0, 0)), RANGE, SMALL.map(lambda lo: (lo, 0))))
    return Item(
        kind=draw(st.sampled_from(Kind)),
        step=draw(st.integers(-1, 2**40)),
        lo=lo,
        hi=hi,
        index=draw(SMALL),
        part=draw(SMALL),
        agent=draw(st.one_of(st.just(AgentId("")), AGENT)),
    )


@st.composite
def instructions(draw: st.DrawFn) -> Instruction:
    op, step = draw(st.sampled_from(Op)), draw(st.integers(-1, 1))
    if op in (Op.SEND, Op.RECV):
        return Instruction(op, step, item=draw(items()), peer=draw(AGENT))
    if op is Op.COMMIT:
        return Instruction(op, step, agents=tuple(draw(st.lists(AGENT, min_size=1, max_size=3))))
    if op in (Op.VOTE, Op.UPDATE):
        ranges = tuple(draw(st.lists(RANGE, min_size=1, max_size=3)))
        return Instruction(op, step, ranges=ranges)
    lo, hi = draw(RANGE)
    indexed = op in (Op.F, Op.B, Op.I, Op.W, Op.V, Op.FOLD, Op.REDUCE)
    every = draw(st.sampled_from((0, 7)))
    return Instruction(op, step, lo, hi, draw(SMALL) if indexed else 0, every=every)


PROGRAM: st.SearchStrategy[Program] = st.lists(instructions(), max_size=6).map(tuple)
BATCH = st.builds(
    lambda leaf, chunks, leaves: BatchShape(leaf * leaves * chunks, leaf, chunks),
    st.integers(1, 4),
    st.sampled_from((1, 2, 4)),
    st.integers(1, 4),
)
METRICS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), NUMBER, max_size=16
)
COMMIT = st.builds(
    m.CommitRecord,
    STEP,
    NUMBER,
    NUMBER,
    st.booleans(),
    st.none() | NUMBER,
    st.integers(-1, 99),
    U32,
    U32,
    st.none() | U32,
    METRICS,
    METRICS,
)
MANIFEST = st.builds(m.Manifest, U32, STEP, TEXT, TEXT)
PEER = st.builds(m.Peer, AGENT, TEXT, TEXT, st.binary(max_size=8), TEXT, TEXT)
PEERS = st.lists(PEER, max_size=3).map(tuple)
COST = st.builds(m.LayerCost, NUMBER, NUMBER, U64, U64, NUMBER, NUMBER, st.booleans(), U64)
SUSPICION = st.builds(m.Suspicion, AGENT, st.sampled_from(m.Cause), FENCE)
ACTIVITY = st.builds(
    m.Activity, st.sampled_from(m.ActivityKind), NUMBER, NUMBER, TEXT, st.none() | AGENT
)
PRINT = st.builds(m.Fingerprint, TEXT, TEXT, TEXT, TEXT, U32, TEXT, TEXT, TEXT, TEXT)

CLAIM = st.builds(m.Claim, AGENT, U64, U64, U64)
DISPUTE = st.builds(
    m.Dispute, U32, U32, st.integers(-1, 2**31 - 1), st.lists(CLAIM, max_size=3).map(tuple)
)
QUESTION = st.builds(m.Question, STEP, DISPUTE)
MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    m.Hello: st.builds(m.Hello, AGENT, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, FENCE, st.booleans()),
    m.Ready: st.builds(
        m.Ready,
        PRINT,
        st.integers(1, 99),
        U64,
        U64,
        st.lists(COST, max_size=3).map(tuple),
        TEXT,
        U64,
        ties=st.lists(st.builds(m.Tie, st.lists(U32, max_size=3).map(tuple)), max_size=2).map(
            tuple
        ),
    ),
    m.Heartbeat: st.builds(
        m.Heartbeat,
        U64,
        st.integers(-1, 2**62),
        U64,
        FENCE,
        st.none() | ACTIVITY,
        st.lists(SUSPICION, max_size=2).map(tuple),
    ),
    m.AgentReport: st.builds(
        m.AgentReport,
        FENCE,
        FENCE,
        st.dictionaries(U32, STEP, max_size=4),
        st.frozensets(items(), max_size=5),
        st.lists(COMMIT, max_size=3).map(tuple),
        st.integers(-1, 2**62),
    ),
    m.Progress: st.builds(m.Progress, COMMIT, FENCE, NUMBER, NUMBER, U64),
    m.Suspicion: SUSPICION,
    m.Notice: st.builds(m.Notice, SECONDS, TEXT, TEXT, st.booleans()),
    m.Failure: st.builds(m.Failure, TEXT, TEXT, st.booleans(), st.integers(-255, 255)),
    m.Halted: st.builds(m.Halted, FENCE, TEXT),
    m.Sealed: st.builds(m.Sealed, MANIFEST, st.booleans(), TEXT),
    m.BadCheckpoint: st.builds(m.BadCheckpoint, U32, STEP, TEXT, TEXT, st.none() | FENCE),
    m.Listed: st.builds(
        m.Listed,
        st.lists(MANIFEST, max_size=2).map(tuple),
        FENCE,
        st.booleans(),
        TEXT,
        st.none() | st.builds(m.Mark, U32, STEP),
    ),
    m.Disputed: st.builds(m.Disputed, FENCE, STEP, st.lists(DISPUTE, max_size=2).map(tuple)),
    m.Left: st.builds(m.Left, FENCE),
    m.Finished: st.builds(m.Finished, FENCE),
    m.Welcome: st.builds(m.Welcome, U64, TEXT, TEXT, TEXT, SECONDS, SECONDS, SECONDS, SECONDS),
    m.Stop: st.builds(m.Stop, FENCE, st.booleans(), FENCE, st.none() | MANIFEST),
    m.Directive: st.integers(0, 2**40).flatmap(
        lambda target: st.builds(
            m.Directive,
            FENCE,
            st.just(target),
            st.integers(target, 2**41),
            PROGRAM,
            st.lists(RANGE, max_size=3).map(tuple),
            BATCH,
            AGENT,
            st.lists(AGENT, max_size=3).map(tuple),
            PEERS,
            st.binary(max_size=8),
            st.none() | MANIFEST,
            TEXT,
            st.booleans(),
            PROGRAM,
            U32,
            st.booleans(),
            st.booleans(),
            st.lists(RANGE, max_size=2).map(tuple),
            st.none() | QUESTION,
            st.lists(st.builds(m.Fork, U32, STEP), max_size=2).map(tuple),
            st.lists(st.builds(m.Mark, U32, STEP), max_size=2).map(tuple),
            TEXT,
            NUMBER,
        )
    ),
    m.Continuation: st.builds(m.Continuation, FENCE, TEXT, PROGRAM, PROGRAM, PEERS, PROGRAM),
    m.Release: st.builds(m.Release, st.integers(0, 255), TEXT),
    m.Reconnect: st.builds(m.Reconnect, SECONDS),
}

EMPTY: tuple[Any, ...] = (0, "", b"", (), {}, None, frozenset())
ONE = Fence(1, 2, 3)
SAVED = m.Manifest(1, 2, "path", "digest")
UNSURE = m.Question(4, m.Dispute(2, 4, 1, (m.Claim(AgentId("a-0"), 5, 7, 6),)))
DONE = m.CommitRecord(1, 2.0, 3.0, True, 4.0, 5, 6, 7, 8, {"top_1": 9.0}, {"top_1": 10.0})
OTHER = m.Peer(AgentId("b-0"), "10.0.0.2:1", "10.0.0.2:2", b"key", "zone", "node")
LINE = (Instruction(Op.F, 0, 1, 2, 3),)
SUSPECTED = m.Suspicion(AgentId("b-0"), m.Cause.LIVENESS_SILENT, ONE)
STUCK = m.Activity(m.ActivityKind.WAITING, 1.5, 30.0, "RECV", AgentId("b-0"))
COSTED = m.LayerCost(0.1, 0.2, 3, 4, 0.3, 0.4, can_split=True, activation_bytes=5)
PRINTED = m.Fingerprint("c", "d", "t", "cpu", 2, "s", "w", "o", "p")
FULL: tuple[Any, ...] = (
    m.Hello(
        AgentId("a-0"), "uid", "node", "zone", "machine", "1.2.3.4:5", "1.2.3.4:6", ONE, True, 7
    ),
    m.Ready(PRINTED, 3, 4, 5, (COSTED,), "x", 6, "2.29.7", (m.Tie((0, 5)),)),
    m.Heartbeat(1, 2, 3, ONE, STUCK, (SUSPECTED,)),
    m.AgentReport(
        ONE, Fence(1, 1, 1), {1: 2}, frozenset({Item.out(1, 2, 0)}), (DONE,), 3
    ),
    m.Progress(
        DONE, ONE, 1.0, 0.5, 6, Ahead(1, 2, 3, 4, 0.5, 5, 6), Hosted(1, 2, 3, 0.5),
        (Sent("zone", 1, 2, 3, 4),),
        Goodput(1.5, 2.5, (PeerRate(AgentId("a-1"), 0.5),), (PeerRate(AgentId("a-2"), 0.25),)),
        (m.HookWarning(1, "x raised"),),
    ),
    SUSPECTED,
    m.Notice(1.5, "preempted", "Gce", is_hint=True),
    m.Failure("Reason", "message", True, 2, "F[0:4] m3 @9"),
    m.Halted(ONE, "sample 3 of step 4 raises"),
    m.Sealed(SAVED, is_seen_once=True, unseen="0/2 is not seen from node b"),
    m.BadCheckpoint(1, 2, "torn", "disk full", ONE),
    m.Listed((SAVED,), ONE, True, "0/2 is not there", m.Mark(1, 2)),
    m.Disputed(ONE, 4, (m.Dispute(2, 4, 1, (m.Claim(AgentId("a-0"), 5, 2**52 - 1, 6),)),)),
    m.Left(ONE),
    m.Finished(ONE),
    m.Welcome(1, "ns/job", "uid", "{}", 0.5, 60.0, 600.0, 30.0),
    m.Stop(ONE, True, ONE, SAVED),
    m.Directive(
        ONE, 4, 9, LINE, ((0, 2),), BatchShape(4, 2, 2), AgentId("a-0"),
        (AgentId("a-0"), AgentId("b-0")), (OTHER,), b"own", SAVED, "hash", True, LINE, 3, True,
        True, ((0, 1),),
        UNSURE, (m.Fork(1, 4),), (m.Mark(0, 2),), "node", 7.5,
    ),
    m.Continuation(ONE, "hash", LINE, LINE, (OTHER,), LINE),
    m.Release(3, "Fenced"),
    m.Reconnect(2.5),
)  # fmt: skip

AGENT_MESSAGES = st.one_of([MESSAGES[kind] for kind in get_args(m.AgentMessage)])
OPERATOR_MESSAGES = st.one_of([MESSAGES[kind] for kind in get_args(m.OperatorMessage)])


@given(AGENT_MESSAGES)
def test_agent_messages_round_trip(message: Any) -> None:
    data = encode.agent_message(message).SerializeToString()
    assert decode.agent_message(decode.parse_bytes(pb.AgentMessage, data)) == message


@given(OPERATOR_MESSAGES)
def test_operator_messages_round_trip(message: Any) -> None:
    data = encode.operator_message(message).SerializeToString()
    assert decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data)) == message


@given(OPERATOR_MESSAGES)
def test_the_bytes_of_an_operator_message_hold_the_same(message: Any) -> None:
    data = encode.operator_bytes(message)
    assert pb.OperatorMessage.FromString(data) == encode.operator_message(message)


def test_directives_share_what_names_others() -> None:
    """Thousands of other peers come between: what is kept is that of the same object."""
    (directive,) = (x for x in FULL if isinstance(x, m.Directive))
    for n in range(3000):
        peer = m.Peer(AgentId(f"b-{n}"), f"10.0.0.{n}:1", "", b"key", "zone")
        told = replace(directive, peers=(peer, OTHER), voters=(AgentId(f"b-{n}"),))
        found = decode.operator_message(
            decode.parse_bytes(pb.OperatorMessage, encode.operator_bytes(told))
        )
        assert found == told


@pytest.mark.parametrize(
    "part",
    [
        {"voters": (AgentId("\ud800"),)},
        {"peers": (m.Peer(AgentId("\ud800"), "", "", b"key", "zone"),)},
        {"target": 2**63},
    ],
)
def test_what_is_no_field_of_a_directive_has_no_bytes(part: dict[str, Any]) -> None:
    (directive,) = (x for x in FULL if isinstance(x, m.Directive))
    with pytest.raises(WireError, match="Directive"):
        encode.operator_bytes(replace(directive, **part))


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_every_field_round_trips(message: Any) -> None:
    assert all(getattr(message, field.name) not in EMPTY for field in fields(message))
    if isinstance(message, get_args(m.AgentMessage)):
        assert decode.agent_message(encode.agent_message(message)) == message
    else:
        assert decode.operator_message(encode.operator_message(message)) == message


NOT_UTF_8 = os.fsdecode(b"/data/caf\xe9.jpg")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (m.Failure("SetUpFailed", NOT_UTF_8, True, 2), "/data/caf\\udce9.jpg"),
        (m.BadCheckpoint(1, 2, "torn", NOT_UTF_8), "/data/caf\\udce9.jpg"),
        (m.Ready(m.Fingerprint(), 1, 2, 3, (), "\ud800"), "\\ud800"),
        (m.Notice(1.5, "\ud83d!"), "\\ud83d!"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_text_that_is_not_utf_8_arrives_with_escapes(message: Any, expected: str) -> None:
    data = encode.agent_message(message).SerializeToString()
    got = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
    (changed,) = (
        field.name
        for field in fields(message)
        if getattr(message, field.name) != getattr(got, field.name)
    )
    assert getattr(got, changed) == expected


@given(st.text(st.characters(codec=None), max_size=12))
def test_no_text_of_an_error_is_lost(text: str) -> None:
    data = encode.agent_message(m.Failure("SetUpFailed", text, True, 2)).SerializeToString()
    got = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
    assert got == m.Failure("SetUpFailed", texts.valid(text), True, 2)


def test_what_is_none_stays_none() -> None:
    beat = m.Heartbeat(1, 2, 3, ONE, m.Activity(m.ActivityKind.IDLE, 1.5))
    assert decode.agent_message(encode.agent_message(beat)) == beat


def test_there_is_a_full_example_of_every_message() -> None:
    assert {type(message) for message in FULL} == set(MESSAGES)


def test_not_a_number_survives() -> None:
    sent = m.Progress(m.CommitRecord(3, math.nan, math.inf, finite=False))
    got = decode.agent_message(encode.agent_message(sent))
    assert isinstance(got, m.Progress)
    assert math.isnan(got.commit.loss)
    assert got.commit.grad_norm == math.inf


def test_an_agent_of_the_version_before_sends_no_metrics() -> None:
    """Nor does it count targets: that is no 0, which would be a batch without any."""
    before = encode.agent_message(m.Progress(m.CommitRecord(3)))
    for name in ("targets", "metrics", "validation_metrics"):
        before.progress.commit.ClearField(name)
    got = decode.agent_message(before)
    assert isinstance(got, m.Progress)
    assert (got.commit.targets, got.commit.metrics, got.commit.validation_metrics) == (None, {}, {})


def test_a_batch_without_targets_stays_one() -> None:
    sent = m.Progress(m.CommitRecord(3, finite=False, targets=0))
    assert decode.agent_message(encode.agent_message(sent)) == sent


def test_an_agent_of_the_version_before_sends_no_digests() -> None:
    """Its fingerprint says that it does not know them."""
    told = pb.Fingerprint(code="c", data="d", torch="t", device="cpu", threads=2, spec="s")
    before = pb.AgentMessage(ready=pb.Ready(fingerprint=told, layers=1))
    got = decode.agent_message(before)
    assert isinstance(got, m.Ready)
    assert got.fingerprint == m.Fingerprint("c", "d", "t", "cpu", 2, "s", "", "", "")
