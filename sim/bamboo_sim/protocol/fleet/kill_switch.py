"""Death at an exact instruction: the fleet writes it down, the worker obeys when it gets there.

An order is a moment and an instruction with its absolute step, as the event log shows it:

    before F[0:2] m3 @17     nothing of it has happened
    after F[0:2] m3 @17      it has completed, nobody knows
    sent F[0:2] m3 @17       what follows from it has been handed to the network

Or, instead of death, memory that forgets:

    flip UPDATE[0:2] 0:2 @17 a bit of the optimizer's state of layer 0 changes after it
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from pathlib import Path

import torch

from bamboo_agent.worker.shell import Worker
from bamboo_core.model.program import Instruction
from bamboo_core.protocol.messages import CommitRecord

MOMENTS = ("before", "after", "sent")
_SIZE = 4096
_INSTANT = struct.Struct("d")
_INSTANT_AT = 2048


def arm(path: Path, moment: str, instruction: str) -> None:
    """Write an order into an agent's file, which :func:`install` has mapped."""
    text = f"{moment} {instruction}".encode()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as page:
        page[1 : 1 + len(text)] = text
        page[0] = len(text)  # last: the worker looks at this byte only


def create(path: Path) -> None:
    """Make an empty file of orders."""
    path.write_bytes(bytes(_SIZE))


def died_at(path: Path) -> float:
    """time.monotonic() of the death that was ordered; 0 if it has not come."""
    instant: float = _INSTANT.unpack_from(path.read_bytes(), _INSTANT_AT)[0]
    return instant


class KillSwitchWorker(Worker):
    """A worker that takes its supervisor along, both by SIGKILL."""

    page: mmap.mmap
    supervisor: int

    def _is_ordered(self, moment: str, instruction: Instruction) -> bool:
        ordered = self.page[1 : 1 + self.page[0]]
        return bool(ordered) and ordered == f"{moment} {instruction}".encode()

    def _die_if_ordered(self, moment: str, instruction: Instruction) -> None:
        if self._is_ordered(moment, instruction):
            _INSTANT.pack_into(self.page, _INSTANT_AT, time.monotonic())
            os.kill(self.supervisor, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _run(self, instruction: Instruction) -> None:
        super()._run(instruction)
        self._die_if_ordered("sent", instruction)

    def _do(self, instruction: Instruction) -> CommitRecord | None:
        self._die_if_ordered("before", instruction)
        commit = super()._do(instruction)
        self._die_if_ordered("after", instruction)
        if self._is_ordered("flip", instruction):
            self._flip_bit(instruction.lo)
        return commit

    def _flip_bit(self, layer: int) -> None:
        optimizer = self.backend.layers[layer].optimizer
        assert optimizer is not None
        moments = next(iter(optimizer.state.values()))["exp_avg"]
        moments.view(-1).view(torch.int32)[0] ^= 1


def install(path: Path, supervisor: int) -> type[Worker]:
    """The worker class that obeys the orders in ``path``."""
    with path.open("r+b") as file:
        KillSwitchWorker.page = mmap.mmap(file.fileno(), _SIZE)
    KillSwitchWorker.supervisor = supervisor
    return KillSwitchWorker
