"""Settings of torch that make equal inputs give equal bits, and whether users keep them."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import torch

from bamboo_agent.device import precision as precisions
from bamboo_agent.model import FactoryError
from bamboo_core.api import texts
from bamboo_core.api.spec import Precision

THREADS_VARIABLE = "BAMBOO_THREADS"
_MOST_DIGITS = 4


def make_deterministic() -> None:
    """Make equal inputs give equal bits. FactoryError if the number of threads is none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(_threads())
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:  # that would import torch's compiler to tell it, which takes almost as long as torch
        torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    precisions.set_products(Precision.FLOAT32)
    # filling new memory takes time and changes nothing that is read
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _threads() -> int:
    text = os.environ.get(THREADS_VARIABLE) or "1"
    is_number = len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()
    if not is_number or int(text) == 0:
        raise FactoryError(
            f"{THREADS_VARIABLE} in spec.worker.env is {texts.cut(text, 40)!r}; set a whole number"
            f" of at most {_MOST_DIGITS} digits, the same for all agents"
        )
    return int(text)


class Settings(NamedTuple):
    """How deterministic torch is set to be, and how it computes products in fp32."""

    mode: int
    is_fixed: bool  # which algorithms are used
    rounds: tuple[bool | None, bool | None]  # to TF32; see precision.rounds_products


def settings() -> Settings:
    """Those of now."""
    is_fixed = not torch.backends.cudnn.benchmark
    return Settings(torch.get_deterministic_debug_mode(), is_fixed, precisions.rounds_products())


def check_deterministic(before: Settings) -> None:
    """FactoryError if code that ran since has undone it. before: the settings then."""
    now = settings()
    if now.mode < before.mode:
        raise FactoryError(
            "the job's code has turned torch's deterministic algorithms off, so that equal work"
            " gives unequal bits: remove its call of torch.use_deterministic_algorithms or"
            " torch.set_deterministic_debug_mode"
        )
    if now.is_fixed < before.is_fixed:
        raise FactoryError(
            "the job's code has set torch.backends.cudnn.benchmark, which chooses algorithms by"
            " their speed on each agent: leave it False"
        )
    if now.rounds != before.rounds:
        raise FactoryError(
            "the job's code has set how products of fp32 numbers are computed (TF32), which may"
            " begin in the middle of a step: remove its call of torch.set_float32_matmul_precision"
            " or its settings in torch.backends, and set spec.training.precision to TF32"
        )
