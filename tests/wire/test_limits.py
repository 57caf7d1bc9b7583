"""The largest times that a job may ask for reach the agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_core.protocol.messages import Welcome
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_wire import decode, encode

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
