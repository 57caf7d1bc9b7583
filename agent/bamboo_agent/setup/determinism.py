"""Settings of torch that make equal inputs give equal bits."""

from __future__ import annotations

import os
import sys

import torch

THREADS_VARIABLE = "BAMBOO_THREADS"


def make_deterministic() -> None:
    """Make equal inputs give equal bits."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:  # that would import torch's compiler to tell it, which takes almost as long as torch
        torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    # filling new memory takes time and changes nothing that is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
