"""Malformed messages are refused with the name of the field."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol import messages as m
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode
from bamboo_wire.errors import WireError

DIRECTIVE = m.Directive(Fence(1, 2, 3), 4, 9, (), ((0, 2),), BatchShape(4, 1, 2), AgentId("a-0"))
REPORT = m.AgentReport(Fence(1), Fence(1), {0: 3}, frozenset(), (m.CommitRecord(2),))


def directive(change: Callable[[Any], object]) -> Any:
    message = encode.operator_message(DIRECTIVE)
    change(message.directive)
    return message


def changed(message: m.AgentMessage, change: Callable[[Any], object]) -> Any:
    wrapped = encode.agent_message(message)
    change(getattr(wrapped, wrapped.WhichOneof("body")))
    return wrapped


def add_metrics(names: list[str], progress: Any) -> None:
    for name in names:
        progress.commit.metrics[name] = 0.5


def test_the_unchanged_messages_are_valid() -> None:
    assert decode.operator_message(directive(lambda d: None)) == DIRECTIVE
    assert decode.agent_message(changed(REPORT, lambda r: None)) == REPORT


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.ClearField("fence"), "directive.fence"),
        (lambda d: setattr(d, "target", -1), "directive.target"),
        (lambda d: setattr(d, "last", 3), "directive.last"),
        (lambda d: setattr(d, "resume", "JUMP"), "directive.resume"),
        (lambda d: d.wanted.add(lo=2, hi=2), "directive.wanted[1]"),
        (lambda d: d.ClearField("batch"), "directive.batch"),
        (lambda d: setattr(d.batch, "chunks", 3), "directive.batch"),
        (lambda d: setattr(d.batch, "leaf_size", 0), "directive.batch"),
        (lambda d: setattr(d, "coordinator", ""), "directive.coordinator"),
        (lambda d: d.peers.add(), "directive.peers[0].agent"),
        (lambda d: d.voters.append(""), "directive.voters[0]"),
        (lambda d: setattr(d.manifest, "step", -3), "directive.manifest.step"),
    ],
)
def test_a_bad_directive(change: Callable[[Any], object], field: str) -> None:
    with pytest.raises(WireError) as caught:
        decode.operator_message(directive(change))
    assert caught.value.field == field
    assert str(caught.value).startswith(field + ": ")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda c: c.ClearField("fence"), "continuation.fence"),
        (lambda c: setattr(c, "steady", "F[0:2] m0 rubbish"), "continuation.steady"),
        (lambda c: setattr(c, "final", "SEND (rubbish[1] m0) >a-0"), "continuation.final"),
        (lambda c: c.peers.add(), "continuation.peers[0].agent"),
    ],
)
def test_a_bad_continuation(change: Callable[[Any], object], field: str) -> None:
    message = encode.operator_message(m.Continuation(Fence(1, 2, 3), "hash", (), ()))
    change(message.continuation)
    with pytest.raises(WireError) as caught:
        decode.operator_message(message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "change", "field"),
    [
        (REPORT, lambda r: r.ClearField("fence"), "report.fence"),
        (REPORT, lambda r: r.ClearField("installed"), "report.installed"),
        (REPORT, lambda r: r.items.append("nonsense"), "report.items[0]"),
        (REPORT, lambda r: r.versions.update({7: -1}), "report.versions[7]"),
        (REPORT, lambda r: setattr(r, "ended", -2), "report.ended"),
        (REPORT, lambda r: setattr(r.commits[0], "step", -1), "report.commits[0].step"),
        (m.Listed(), lambda x: x.manifests.add(step=-1), "listed.manifests[0].step"),
        (m.Left(Fence()), lambda x: x.ClearField("fence"), "left.fence"),
        (m.Progress(m.CommitRecord(3)), lambda p: p.ClearField("commit"), "progress.commit"),
        (
            m.Progress(m.CommitRecord(3)),
            lambda p: setattr(p.commit, "step", -1),
            "progress.commit.step",
        ),
        (
            m.Progress(m.CommitRecord(3)),
            lambda p: setattr(p.commit, "targets", -1),
            "progress.commit.targets",
        ),
        *(
            (m.Progress(m.CommitRecord(3)), partial(add_metrics, names), "progress.commit.metrics")
            for names in ([f"m{i}" for i in range(17)], [""], ["a b"], ["9"], ["a" * 41])
        ),
        (
            m.Sealed(m.Manifest(1, 2, "p", "d")),
            lambda s: s.ClearField("manifest"),
            "sealed.manifest",
        ),
        (m.Heartbeat(1, 2, 3), lambda h: setattr(h, "step", -2), "heartbeat.step"),
        (m.Notice(1.0, "x"), lambda n: setattr(n, "lead_ms", -1), "notice.lead_ms"),
        (
            m.Suspicion(AgentId("a"), m.Cause.CHANNEL_BROKEN, Fence()),
            lambda s: setattr(s, "cause", 0),
            "suspicion.cause",
        ),
        (
            m.Suspicion(AgentId("a"), m.Cause.CHANNEL_BROKEN, Fence()),
            lambda s: setattr(s, "agent", ""),
            "suspicion.agent",
        ),
        (m.Ready(m.Fingerprint(), 2, 1, 1), lambda r: setattr(r, "layers", 0), "ready.layers"),
        (
            m.Ready(m.Fingerprint(), 2, 1, 1),
            lambda r: r.ClearField("fingerprint"),
            "ready.fingerprint",
        ),
        (
            m.Hello(AgentId("a"), "u", "n", "z", "m", "", ""),
            lambda h: setattr(h, "agent", ""),
            "hello.agent",
        ),
    ],
)
def test_a_bad_agent_message(
    message: m.AgentMessage, change: Callable[[Any], object], field: str
) -> None:
    with pytest.raises(WireError) as caught:
        decode.agent_message(changed(message, change))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("convert", "empty"),
    [
        (decode.agent_message, pb.AgentMessage()),
        (decode.operator_message, pb.OperatorMessage()),
    ],
)
def test_a_message_without_a_body(convert: Callable[[Any], object], empty: Any) -> None:
    with pytest.raises(WireError, match="has no body"):
        convert(empty)


def test_bytes_that_are_not_a_message() -> None:
    with pytest.raises(WireError, match=r"AgentMessage: 3 bytes"):
        decode.parse_bytes(pb.AgentMessage, b"\xff\xff\xff")


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    with suppress(WireError):
        decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
    with suppress(WireError):
        decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data))


@pytest.mark.parametrize(
    "message",
    [m.Release(2**40, "far too large"), m.Notice(-1e30, "unbounded"), m.Stop(Fence(-1, 0, 0))],
)
def test_a_number_that_does_not_fit_is_refused_when_encoding(message: Any) -> None:
    table = encode.agent_message if isinstance(message, m.Notice) else encode.operator_message
    with pytest.raises(WireError, match=type(message).__name__):
        table(message)
