"""A data set that draws, collates by itself, and does what a file tells it to do at a sample."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

COUNT, WIDTH = 97, 6


class Faulty:
    """folder: has a file for each sample at which something happens: its text says what."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        file = self._folder / str(index)
        if file.exists():
            order = json.loads(file.read_text())
            if order.get("once"):
                file.unlink()
            _do(order)
        drawn = torch.rand(WIDTH), np.random.rand(), random.random()
        return index, drawn

    def collate(self, samples: list[Any]) -> dict[str, Any]:
        """Masks some of it at random, and keeps a layout that is not contiguous."""
        values = torch.stack([drawn[0] + index for index, drawn in samples])
        mask = torch.rand(values.shape) < 0.5
        more = torch.tensor([[drawn[1], drawn[2]] for _, drawn in samples])
        return {
            "x": values.t(),
            "more": (more.masked_fill(mask[:, :2], 0.0), None, "text", 0.1),
            "labels": torch.tensor([index for index, _ in samples]),
        }


def build(folder: str) -> Faulty:
    file = Path(folder) / "factory"
    if file.exists():
        raise RuntimeError(file.read_text())
    return Faulty(folder)


class OfProcess(Faulty):
    """Another data set in each process."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return index, (torch.full((WIDTH,), float(os.getpid())), 0.0, 0.0)


def of_process(folder: str) -> OfProcess:
    return OfProcess(folder)


def _do(order: dict[str, Any]) -> None:
    match order["do"]:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(600)
        case "raise":
            raise ValueError("no such text")
        case "break":
            raise OSError(5, "Input/output error")
