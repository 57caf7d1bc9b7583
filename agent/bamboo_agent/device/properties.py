"""Properties of the device that an agent computes on."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from bamboo_core.api import quantities

SIMULATED_VARIABLE = "SIMULATED_DEVICES"
"""Environment variable with resources that are only numbers for the scheduler, separated by commas.
The development cluster sets it in containers that ask for a GPU."""


class GpuUnsupportedError(Exception):
    """A GPU was asked for, and this torch can use none: the image is at fault."""


class GpuMissingError(Exception):
    """A GPU was asked for, and torch sees none: the node is at fault."""


def choose_device(asks: Mapping[str, object]) -> torch.device:
    """The first GPU, or the CPU if there is none and none was asked for.

    asks: resource -> quantity, as in ``spec.worker.resources``. GpuUnsupportedError and
    GpuMissingError if a GPU was asked for and none is seen: the CPU would train, and nobody would
    know. A resource that :data:`SIMULATED_VARIABLE` names is no GPU.
    """
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    gpus = {name: amount for name, amount in asks.items() if _is_gpu(name) and _is_any(amount)}
    for name in os.environ.get(SIMULATED_VARIABLE, "").split(","):
        gpus.pop(name, None)
    asked = next((f"{name} {amount}" for name, amount in sorted(gpus.items())), "")
    if not asked:
        return torch.device("cpu")
    text = f"spec.worker.resources asks for {asked}, but torch {torch.__version__}"
    if torch.version.cuda is None and torch.version.hip is None:
        raise GpuUnsupportedError(
            f"{text} in spec.worker.image is built without CUDA and ROCm: use an image with a torch"
            " that can use the GPU, or ask for none"
        )
    raise GpuMissingError(
        f"{text} sees no GPU on this node: look at nvidia-smi in the pod, and at the driver and the"
        " device plugin of the node"
    )


def _is_gpu(resource: str) -> bool:
    return resource.endswith("/gpu") or resource.startswith("nvidia.com/")


def _is_any(quantity: object) -> bool:
    try:
        return quantities.parse(str(quantity)) > 0
    except (ValueError, ArithmeticError):
        return True  # the API server took it


def device_kind(device: torch.device) -> str:
    """Kind of device for the fingerprint: equal kinds give equal bits."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.get_device_name(device)}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability()}"


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; 0 on a CPU, where memory does not limit the planner."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
