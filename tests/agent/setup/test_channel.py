"""The operator tells users the channel that the agents use, and why, from what an agent says."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from select import select

import pytest
import torch
from tests.agent.supervisor.fake_operator import WELCOME

from bamboo_agent.device import properties
from bamboo_agent.ipc.pipe import Pipe
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.setup.channel import choose_route
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import make_ready
from bamboo_agent.transport.process_group import groups
from bamboo_agent.worker import main
from bamboo_core.api.spec import Channel, Encryption, TransportSpec, to_json
from bamboo_core.arbiter_state.membership import Membership
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Hello, Ready
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import context
from bamboo_wire import decode, encode

CPU = torch.device("cpu")
AGENT = AgentId("a0")
CHANNELS = [(channel, encryption) for channel in Channel for encryption in Encryption]


def as_received(ready: Ready) -> Ready:
    """The message as the operator gets it."""
    data = encode.agent_message(ready).SerializeToString()
    found = decode.agent_message(decode.parse_bytes(pb.AgentMessage, data))
    assert isinstance(found, Ready)
    return found


@pytest.mark.parametrize(("channel", "encryption"), CHANNELS)
@pytest.mark.parametrize("nccl", ["2.29.7", ""])
@pytest.mark.parametrize("device", ["cuda:H200", "cpu:AVX2"])
def test_status_and_agents_say_the_same(channel, encryption, nccl, device, monkeypatch):
    monkeypatch.setattr(groups, "nccl_version", lambda: nccl)
    monkeypatch.setattr(properties, "device_kind", lambda _: device)
    spec = replace(tiny_gpt(), transport=TransportSpec(channel, encryption))
    ready = as_received(make_ready(spec, *build_setup(AGENT, spec, CPU)))
    membership = Membership(spec)
    membership.connect(Hello(AGENT, "uid", "n", "z", "m", "n:1", "n:2"), b"key")
    assert membership.admit(AGENT, membership.agents[AGENT], ready, now=0.0) is None
    assert membership.route(spec) == choose_route(spec, CPU)


def work(control: socket.socket, listening: socket.socket, log: Path) -> None:
    """A worker as its supervisor starts it, with its standard error in a file."""
    descriptors = {
        "--fd": control.detach(),
        "--data-fd": listening.detach(),
        "--progress-fd": SharedProgress.create().fd,
    }
    with log.open("w") as sys.stderr:
        main.main(["--agent", AGENT, *(str(x) for pair in descriptors.items() for x in pair)])


def test_the_log_of_a_worker_in_a_pod_names_the_channel(tmp_path):
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = theirs, listening, tmp_path / "log"
        process = context().Process(target=work, args=arguments, daemon=True)
        process.start()
    theirs.close()
    pipe = Pipe(ours)
    spec = replace(tiny_gpt(), transport=TransportSpec(Channel.PROCESS_GROUP))
    welcome = replace(WELCOME, spec_json=to_json(spec))
    pipe.send(encode.operator_message(welcome).SerializeToString())
    while not pipe.receive():
        select([pipe], [], [], 60)
    pipe.close()
    process.join(60)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    (line,) = (x for x in lines if x["message"].startswith("channel ProcessGroup"))
    assert (line["level"], line["agent"], line["fence"]) == ("info", AGENT, "0.0.0")
