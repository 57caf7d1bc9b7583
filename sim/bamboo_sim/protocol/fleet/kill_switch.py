"""A kill switch: the fleet names an instruction, and the worker dies when it gets there.

The fleet writes a moment and an instruction with its absolute step, as the event log shows it:

    before F[0:2] m3 @17     before it runs
    after F[0:2] m3 @17      it has completed, its results were not sent
    sent F[0:2] m3 @17       its results were handed to the network

Instead of a kill, a bit can flip, or the worker stands still for ever:

    flip UPDATE[0:2] 0:2 @17 flip a bit of layer 0's optimizer state after it
    hang F[0:2] m3 @17       it never ends
    hang *                   the next instruction never ends
    freeze F[0:2] m3 @17     worker and supervisor get SIGSTOP before it
    miscompute B[0:2] m3 @17 the first result in it has a wrong bit: an output (F), a weight's
                             gradient (B), a sum (REDUCE) or a weight (UPDATE)
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from bamboo_agent.compute import optim, stage, sums
from bamboo_agent.worker.shell import Worker
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import CommitRecord

MOMENTS = ("before", "after", "sent")
HANG, FREEZE, MISCOMPUTE = "hang", "freeze", "miscompute"
ANY = "*"
_SIZE = 4096
_INSTANT = struct.Struct("d")
_INSTANT_AT = 2048
_COMPUTES: dict[Op, tuple[ModuleType, str]] = {
    Op.F: (stage, "run_layers"),
    Op.B: (stage, "backward"),
    Op.REDUCE: (sums, "add_tree"),
    Op.UPDATE: (optim, "update"),
}
"""What computes the results of an instruction."""


def arm(path: Path, moment: str, instruction: str) -> None:
    """Arm the kill switch of an agent, whose worker has mapped the file by :func:`install`."""
    text = f"{moment} {instruction}".encode()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as page:
        page[1 : 1 + len(text)] = text
        page[0] = len(text)  # last: the worker checks this byte


def create(path: Path) -> None:
    """Create the file of a kill switch that is not armed."""
    path.write_bytes(bytes(_SIZE))


def triggered_at(path: Path) -> float:
    """time.monotonic() of the death or standstill; 0 if the switch was not triggered."""
    instant: float = _INSTANT.unpack_from(path.read_bytes(), _INSTANT_AT)[0]
    return instant


class KillSwitchWorker(Worker):
    """A worker that can kill itself and its supervisor with SIGKILL."""

    page: mmap.mmap
    supervisor: int

    def _is_armed(self, moment: str, instruction: Instruction) -> bool:
        armed = self.page[1 : 1 + self.page[0]]
        return bool(armed) and armed == f"{moment} {instruction}".encode()

    def _stand_still_if_armed(self, instruction: Instruction) -> None:
        if self.page[1 : 1 + self.page[0]] == f"{HANG} {ANY}".encode() or self._is_armed(
            HANG, instruction
        ):
            self._note_instant()
            threading.Event().wait()
        elif self._is_armed(FREEZE, instruction):
            self._note_instant()
            os.kill(self.supervisor, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)

    def _note_instant(self) -> None:
        _INSTANT.pack_into(self.page, _INSTANT_AT, time.monotonic())

    def _die_if_armed(self, moment: str, instruction: Instruction) -> None:
        if self._is_armed(moment, instruction):
            self._note_instant()
            os.kill(self.supervisor, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _run(self, instruction: Instruction) -> None:
        super()._run(instruction)
        self._die_if_armed("sent", instruction)

    def _do(self, instruction: Instruction) -> CommitRecord | None:
        self._die_if_armed("before", instruction)
        self._stand_still_if_armed(instruction)
        with self._wrong_if_armed(instruction):
            commit = super()._do(instruction)
        self._die_if_armed("after", instruction)
        if self._is_armed("flip", instruction):
            self._flip_bit(instruction.lo)
        return commit

    @contextmanager
    def _wrong_if_armed(self, instruction: Instruction) -> Iterator[None]:
        if not self._is_armed(MISCOMPUTE, instruction):
            yield
            return
        self._note_instant()
        module, name = _COMPUTES[instruction.op]
        compute = getattr(module, name)

        def wrong_once(*arguments: Any, **options: Any) -> Any:
            result = compute(*arguments, **options)
            setattr(module, name, compute)
            _flip(self._first_result(instruction, options, result))
            return result

        setattr(module, name, wrong_once)
        try:
            yield
        finally:
            setattr(module, name, compute)

    def _first_result(
        self, instruction: Instruction, options: dict[str, Any], result: Any
    ) -> torch.Tensor:
        weight = self.backend.layers[instruction.lo].parameters[0]
        first: torch.Tensor | None
        if instruction.op is Op.F:
            (first, *_) = result
        elif instruction.op is Op.REDUCE:
            first = options["out"]
        else:
            first = weight if instruction.op is Op.UPDATE else weight.grad
        assert first is not None
        return first

    def _flip_bit(self, layer: int) -> None:
        optimizer = self.backend.layers[layer].optimizer
        assert optimizer is not None
        moments = next(iter(optimizer.state.values()))["exp_avg"]
        _flip(moments)


def _flip(tensor: torch.Tensor) -> None:
    tensor.detach().view(-1).view(torch.int32)[0] ^= 1


def install(path: Path, supervisor: int) -> type[Worker]:
    """The worker class with the kill switch in ``path``."""
    with path.open("r+b") as file:
        KillSwitchWorker.page = mmap.mmap(file.fileno(), _SIZE)
    KillSwitchWorker.supervisor = supervisor
    return KillSwitchWorker
