"""Settings of torch that make equal inputs give equal bits, and whether users keep them."""

from __future__ import annotations

import os
import sys

import torch

from bamboo_agent.model import FactoryError
from bamboo_core.api import texts

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
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
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


def settings() -> tuple[int, bool]:
    """How deterministic torch is set to be now."""
    return torch.get_deterministic_debug_mode(), not torch.backends.cudnn.benchmark


def check_deterministic(before: tuple[int, bool]) -> None:
    """FactoryError if code that ran since has undone it. before: the settings then."""
    mode, is_fixed = settings()
    if mode < before[0]:
        raise FactoryError(
            "the job's code has turned torch's deterministic algorithms off, so that equal work"
            " gives unequal bits: remove its call of torch.use_deterministic_algorithms or"
            " torch.set_deterministic_debug_mode"
        )
    if is_fixed < before[1]:
        raise FactoryError(
            "the job's code has set torch.backends.cudnn.benchmark, which chooses algorithms by"
            " their speed on each agent: leave it False"
        )
