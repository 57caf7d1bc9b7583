"""What carries large tensors, by the spec's wish and what the agents have."""

from __future__ import annotations

import pytest

from bamboo_core.api.spec import Channel, Encryption, TransportSpec
from bamboo_core.protocol.channels import choose, torch_text

AUTO, TCP, GROUP = Channel.AUTO, Channel.TCP, Channel.PROCESS_GROUP


@pytest.mark.parametrize(
    ("wanted", "device", "nccl", "channel", "backend", "why"),
    [
        (AUTO, "cuda:H200", "2.29.7", GROUP, "nccl", "the agents have GPUs and NCCL 2.29.7"),
        (AUTO, "cuda:H200", "", TCP, "", "torch has no NCCL here"),
        (AUTO, "cpu:AVX2", "2.29.7", TCP, "", "the agents have no GPUs"),
        (TCP, "cuda:H200", "2.29.7", TCP, "", "spec.transport.channel is Tcp"),
        (GROUP, "cuda:H200", "2.29.7", GROUP, "nccl", "spec.transport.channel is ProcessGroup"),
        (GROUP, "cuda:H200", "", GROUP, "gloo", "torch has no NCCL here, so its groups use gloo"),
        (GROUP, "cpu:AVX2", "", GROUP, "gloo", "the agents have no GPUs, so its groups use gloo"),
    ],
)
def test_the_choice(wanted, device, nccl, channel, backend, why):
    route = choose(TransportSpec(wanted, Encryption.OFF), device, nccl)
    assert (route.channel, route.backend, route.is_encrypted) == (channel, backend, False)
    assert why in route.reason


@pytest.mark.parametrize(
    ("wanted", "device", "nccl", "channel", "why"),
    [
        (AUTO, "cuda:H200", "2.29.7", TCP, "but only tcp encrypts: see spec.transport.encryption"),
        (AUTO, "cuda:H200", "", TCP, "torch has no NCCL here"),
        (AUTO, "cpu:AVX2", "", TCP, "the agents have no GPUs"),
        (TCP, "cuda:H200", "2.29.7", TCP, "spec.transport.channel is Tcp"),
        (GROUP, "cuda:H200", "2.29.7", GROUP, "groups do not encrypt"),
        (GROUP, "cpu:AVX2", "", GROUP, "groups do not encrypt"),
    ],
)
def test_tcp_is_encrypted_unless_that_is_off(wanted, device, nccl, channel, why):
    route = choose(TransportSpec(wanted), device, nccl)
    assert (route.channel, route.is_encrypted) == (channel, channel is TCP)
    assert why in route.reason


def test_the_version_of_nccl_is_in_the_fingerprint():
    assert torch_text("2.13.0", "") == "2.13.0"
    assert torch_text("2.13.0", "2.29.7") == "2.13.0, NCCL 2.29.7"
