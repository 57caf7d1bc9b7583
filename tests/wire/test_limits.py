"""The largest times that a job may ask for reach the agents. Agents' messages have limits, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.protocol.messages import Welcome
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode, limits
from bamboo_wire.errors import WireError

ROOT = Path(__file__).resolve().parents[2]


def longest_s() -> int:
    """The CRD's limit."""
    crd: Any = yaml.safe_load((ROOT / "crds/bamboojobs.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    policy = spec["properties"]["runPolicy"]["properties"]
    limit = policy["startDeadlineSeconds"]["maximum"]
    assert isinstance(limit, int)
    return limit


@pytest.mark.parametrize("field", ["start_s", "lease_s"])
def test_the_longest_time_survives_the_wire(field: str) -> None:
    sent = replace(Welcome(1, "ns/job", "uid", "{}"), **{field: float(longest_s())})
    data = encode.operator_message(sent).SerializeToString()
    found = decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data))
    assert getattr(found, field) == longest_s()
    assert found == sent


def test_every_message_of_an_agent_has_a_limit() -> None:
    fields = pb.AgentMessage.DESCRIPTOR.fields
    assert limits.BYTES.keys() == {field.name for field in fields}
    assert max(field.number for field in fields) < 16  # the first byte tells the kind
    assert max(limits.BYTES.values()) == limits.MOST_BYTES


def encoded(**body: Any) -> bytes:
    data: bytes = pb.AgentMessage(**body).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (encoded(hello=pb.Hello(node="x" * 9000)), "hello: has 9"),
        (encoded(notice=pb.Notice(reason="x" * 70000)), "notice: has 7"),
        # A second body replaces the first one: the limits of both hold.
        (encoded(report=pb.AgentReport()) + encoded(hello=pb.Hello(node="x" * 9000)), "hello"),
        (
            encoded(left=pb.Left()) + encoded(report=pb.AgentReport(items=["x" * 70000])),
            "left: has",
        ),
        (encoded(report=pb.AgentReport(commits=[pb.CommitRecord()] * 1025)), "report.commits"),
        (
            encoded(progress=pb.Progress(goodput=pb.Goodput(slowest_to=[pb.PeerRate()] * 3))),
            "progress.goodput.slowest_to: has 3 entries",
        ),
        (
            encoded(progress=pb.Progress(goodput=pb.Goodput(slowest_from=[pb.PeerRate()] * 3))),
            "progress.goodput.slowest_from: has 3 entries",
        ),
        (
            encoded(progress=pb.Progress(warnings=[pb.HookWarning()] * 9)),
            "progress.warnings: has 9 entries",
        ),
        (encoded(ready=pb.Ready(costs=[pb.LayerCost()] * 16385)), "ready.costs"),
        (encoded(ready=pb.Ready(fingerprint=pb.Fingerprint(), layers=1 << 31)), "ready.layers"),
        (b"", "has no body"),
        (b"\x82\x01\x00", "does not begin with a body"),
        (b"\x08\x01", "does not begin with a body"),
        (b"\xff" * 100, "does not begin with a body"),
        (b"\x0a\xff", "are not such a message"),
    ],
)
def test_what_is_too_long_is_not_decoded(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode.agent_bytes(data)


def test_a_large_report_is_within_the_limits() -> None:
    """A stage of 64 layers that holds 8 items of each of 4,096 micro-batches."""
    items = [f"out[{layer}] m{m} @123456" for m in range(4096) for layer in range(8)]
    versions = dict.fromkeys(range(64), 123456)
    report = pb.AgentReport(fence=pb.Fence(), installed=pb.Fence(), items=items, versions=versions)
    assert len(decode.agent_bytes(encoded(report=report)).items) == len(items)  # type: ignore[union-attr]
