"""The channel of large tensors between the agents of a job: plain tcp, or process groups beside it.

Each agent chooses for itself, and the operator chooses again from what an agent says of itself, for
the status. All choose alike, because spec and fingerprint are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.api.spec import Channel, Encryption, TransportSpec


@dataclass(frozen=True)
class Route:
    """The choice. backend: of the process groups, "gloo" or "nccl"; empty: there are none."""

    channel: Channel  # never AUTO
    backend: str
    reason: str
    is_encrypted: bool = False


def choose(wanted: TransportSpec, device: str, nccl: str) -> Route:
    """device: its kind, as in the fingerprint. nccl: the version that torch has; empty: none.

    Whether two agents share a GPU is seen when they meet: such a pair stays on tcp.
    """
    encrypts = wanted.encryption is Encryption.AUTO
    has_gpu = device.startswith("cuda")
    can_nccl = has_gpu and bool(nccl)
    lack = "torch has no NCCL here" if has_gpu else "the agents have no GPUs"
    if wanted.channel is Channel.TCP:
        return Route(Channel.TCP, "", "spec.transport.channel is Tcp", encrypts)
    if wanted.channel is Channel.PROCESS_GROUP:
        asked = "spec.transport.channel is ProcessGroup"
        if can_nccl:
            return _groups("nccl", f"{asked} and {_found(nccl)}")
        return _groups("gloo", f"{asked}; {lack}, so its groups use gloo")
    if not can_nccl:
        return Route(Channel.TCP, "", f"{lack}, and gloo is not faster than tcp", encrypts)
    if encrypts:
        text = f"{_found(nccl)}, but only tcp encrypts: see spec.transport.encryption"
        return Route(Channel.TCP, "", text, encrypts)
    return _groups("nccl", _found(nccl))


def _found(nccl: str) -> str:
    return f"the agents have GPUs and NCCL {nccl}"


def _groups(backend: str, reason: str) -> Route:
    shared = "; two that share a GPU use tcp" if backend == "nccl" else ""
    return Route(Channel.PROCESS_GROUP, backend, f"{reason}{shared}; groups do not encrypt")


def torch_text(version: str, nccl: str) -> str:
    """The fingerprint's text for torch. nccl: the version, if the job uses NCCL; else empty."""
    return f"{version}, NCCL {nccl}" if nccl else version
