"""In what layers compute: strict fp32, fp32 with TF32 products, or bfloat16 by torch's autocast.

Autocast is turned on for one layer at a time, so a layer computes the same whatever runs before and
after it. It keeps no casts. With torch's cache, a leaf that is used twice is cast once, and its two
gradients are added in bfloat16; the input of a stage is a leaf, that of a layer in its middle is
not, so the cut would change bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from bamboo_agent.model import FactoryError
from bamboo_core.api.spec import Precision

_SHORT = (torch.bfloat16, torch.float16)


def set_products(precision: Precision) -> None:
    """Whether products of fp32 numbers on a GPU round their factors to TF32: for the process."""
    rounds = precision is Precision.TF32
    torch.backends.cuda.matmul.allow_tf32 = rounds
    torch.backends.cudnn.allow_tf32 = rounds


def rounds_products() -> tuple[bool | None, bool | None]:
    """Whether products of matrices, and convolutions, are set to TF32 now. None: in part."""
    return _read(torch.backends.cuda.matmul), _read(torch.backends.cudnn)


def _read(backend: Any) -> bool | None:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # torch has another way to set it, for each operation
        return None


def check_supported(precision: Precision, device: torch.device) -> None:
    """FactoryError names the device and the remedy."""
    if precision is not Precision.BFLOAT16 or device.type != "cuda":
        return  # a CPU computes it slowly, and with TF32 an older GPU computes in fp32
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise FactoryError(
            f"spec.training.precision is BFloat16, which {name} does not compute: use GPUs of"
            " NVIDIA's Ampere (A10, A100) or newer, or another precision"
        )


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """While a layer's forward runs."""
    if precision is not Precision.BFLOAT16:
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def in_float32(value: torch.Tensor) -> torch.Tensor:
    """The value in fp32, if it is in bfloat16 or half precision."""
    return value.float() if value.dtype in _SHORT else value
