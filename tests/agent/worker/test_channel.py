"""The operator tells users the channel that the agents use, and why, from what an agent says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bamboo_agent.transport.process_group import groups
from bamboo_agent.worker import main
from bamboo_core.api.spec import Channel, Encryption, TransportSpec
from bamboo_core.arbiter.membership import Membership
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Hello, Ready
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_wire import decode, encode

CPU = torch.device("cpu")
AGENT = AgentId("a0")
CHANNELS = [(channel, encryption) for channel in Channel for encryption in Encryption]


def as_received(ready: Ready) -> Ready:
    """What the operator gets."""
    data = encode.agent_message(ready).SerializeToString()
    found = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
    assert isinstance(found, Ready)
    return found


@pytest.mark.parametrize(("channel", "encryption"), CHANNELS)
@pytest.mark.parametrize("nccl", ["2.29.7", ""])
@pytest.mark.parametrize("device", ["cuda:H200", "cpu:AVX2"])
def test_status_and_agents_say_the_same(channel, encryption, nccl, device, monkeypatch):
    monkeypatch.setattr(groups, "nccl_version", lambda: nccl)
    monkeypatch.setattr(main, "device_kind", lambda _: device)
    spec = replace(tiny_gpt(), transport=TransportSpec(channel, encryption))
    ready = as_received(main.make_ready(spec, *main.build_setup(AGENT, spec, CPU)))
    membership = Membership(spec)
    membership.connect(Hello(AGENT, "uid", "n", "z", "m", "n:1", "n:2"), b"key")
    assert membership.admit(AGENT, membership.agents[AGENT], ready, now=0.0) is None
    assert membership.route(spec) == main.choose_route(spec, CPU)
