"""Properties of the device that an agent computes on."""

from __future__ import annotations

import torch


def choose_device() -> torch.device:
    """The first GPU, or the CPU if there is none."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def device_kind(device: torch.device) -> str:
    """Kind of device for the fingerprint: equal kinds give equal bits."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.get_device_name(device)}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability()}"


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; 0 on a CPU, where memory does not limit the planner."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
