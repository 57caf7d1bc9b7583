"""What carries large tensors between the agents of a job: plain tcp, or process groups beside it.

Each agent chooses for itself. All choose alike, because spec and fingerprint are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.api.spec import Channel
from bamboo_core.protocol.messages import Fingerprint

_MARK = ", NCCL "


@dataclass(frozen=True)
class Route:
    """The choice. backend: of the process groups, "gloo" or "nccl"; empty: there are none."""

    channel: Channel  # never AUTO
    backend: str
    reason: str


def choose(wanted: Channel, device: str, nccl: str) -> Route:
    """device: its kind, as in the fingerprint. nccl: the version that torch uses; empty: none.

    Whether two agents share a GPU is seen when they meet: such a pair stays on tcp.
    """
    has_gpu = device.startswith("cuda")
    can_nccl = has_gpu and bool(nccl)
    if wanted is Channel.TCP:
        return Route(Channel.TCP, "", "spec.transport.channel is Tcp")
    if can_nccl:
        asked = "spec.transport.channel is ProcessGroup and" if wanted is not Channel.AUTO else ""
        text = f"{asked} the agents have GPUs and NCCL {nccl}; two that share a GPU use tcp".strip()
        return Route(Channel.PROCESS_GROUP, "nccl", text)
    lack = "torch has no NCCL here" if has_gpu else "the agents have no GPUs"
    if wanted is Channel.AUTO:
        return Route(Channel.TCP, "", f"{lack}, and gloo is not faster than tcp")
    text = f"spec.transport.channel is ProcessGroup; {lack}, so its groups use gloo"
    return Route(Channel.PROCESS_GROUP, "gloo", text)


def torch_text(version: str, nccl: str) -> str:
    """What the fingerprint says of torch: with NCCL's version, since it must be the same, too."""
    return version + (_MARK + nccl if nccl else "")


def nccl_of(fingerprint: Fingerprint) -> str:
    """The version of NCCL in a fingerprint; empty: none."""
    return fingerprint.torch.partition(_MARK)[2]
