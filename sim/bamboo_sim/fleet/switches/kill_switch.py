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
                             gradient (B), a sum (REDUCE) or a weight (UPDATE). It is right if
                             it is computed again
    always F[0:2] m3 @17     the same, and whenever it is computed again
    always UPDATE            from now on each update of a layer gives a wrong bit, the same again
                             if it is computed again
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
from bamboo_sim.fleet.injection.effects import Count, Effect, patched

MOMENTS = ("before", "after", "sent")
HANG, FREEZE, MISCOMPUTE, ALWAYS = "hang", "freeze", "miscompute", "always"
FLIP = "flip"
_EFFECTS = {
    HANG: Effect.HUNG,
    FREEZE: Effect.FROZE,
    FLIP: Effect.FLIPPED,
    MISCOMPUTE: Effect.MISCOMPUTED,
    ALWAYS: Effect.MISCOMPUTED,
}
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
"""Operation -> the function that computes its results."""


def arm(path: Path, moment: str, instruction: str) -> None:
    """Arm the kill switch of an agent, whose worker has mapped the file by :func:`install`."""
    text = f"{moment} {instruction}".encode()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as page:
        page[1 : 1 + len(text)] = text
        page[0] = len(text)  # last: the worker checks this byte


def effect_of(moment: str) -> Effect:
    """The effect that a switch armed with this moment has."""
    return _EFFECTS.get(moment, Effect.DIED)


def create(path: Path) -> None:
    """Create the file of a kill switch that is not armed."""
    path.write_bytes(bytes(_SIZE))


def triggered_at(path: Path) -> float:
    """time.monotonic() of the death or standstill; 0 if the switch was not triggered."""
    instant: float = _INSTANT.unpack_from(path.read_bytes(), _INSTANT_AT)[0]
    return instant


class KillSwitch:
    """The worker's end of the file in ``path``."""

    def __init__(self, path: Path, supervisor: int, count: Count) -> None:
        """supervisor: its process id; count: called with each effect."""
        self.count = count
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _SIZE)
        self._supervisor = supervisor

    def is_armed(self, text: str) -> bool:
        """Whether the switch waits for this moment."""
        armed = self._page[1 : 1 + self._page[0]]
        return bool(armed) and armed == text.encode()

    def disarm(self) -> None:
        """It waits for nothing any more."""
        self._page[0] = 0

    def die_if_armed(self, text: str) -> None:
        """End worker and supervisor with SIGKILL if the switch waits for this moment."""
        if self.is_armed(text):
            self.note_instant()
            self.count(Effect.DIED)
            self.send(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop worker and supervisor."""
        self.note_instant()
        self.count(Effect.FROZE)
        self.send(signal.SIGSTOP)

    def hang(self) -> None:
        """Never return."""
        self.note_instant()
        self.count(Effect.HUNG)
        self.wait()

    def wait(self) -> None:
        """Wait for ever."""
        threading.Event().wait()

    def send(self, number: signal.Signals) -> None:
        """Send the supervisor a signal, and then this process."""
        os.kill(self._supervisor, number)
        os.kill(os.getpid(), number)

    def note_instant(self) -> None:
        """For :func:`triggered_at`."""
        _INSTANT.pack_into(self._page, _INSTANT_AT, time.monotonic())


class KillSwitchWorker(Worker):
    """A worker that can kill itself and its supervisor with SIGKILL."""

    switch: KillSwitch

    def _is_armed(self, moment: str, instruction: Instruction) -> bool:
        return self.switch.is_armed(f"{moment} {instruction}")

    def _stand_still_if_armed(self, instruction: Instruction) -> None:
        if self.switch.is_armed(f"{HANG} {ANY}") or self._is_armed(HANG, instruction):
            self.switch.hang()
        elif self._is_armed(FREEZE, instruction):
            self.switch.freeze()

    def _run(self, instruction: Instruction) -> None:
        super()._run(instruction)
        self.switch.die_if_armed(f"sent {instruction}")

    def _do(self, instruction: Instruction) -> CommitRecord | None:
        self.switch.die_if_armed(f"before {instruction}")
        self._stand_still_if_armed(instruction)
        with self._wrong_if_armed(instruction):
            commit = super()._do(instruction)
        self.switch.die_if_armed(f"after {instruction}")
        if self._is_armed(FLIP, instruction):
            self.switch.disarm()  # the step may be trained again
            self._flip_bit(instruction.lo)
            self.switch.count(Effect.FLIPPED)
        return commit

    @contextmanager
    def _wrong_if_armed(self, instruction: Instruction) -> Iterator[None]:
        is_update = self.switch.is_armed(f"{ALWAYS} {Op.UPDATE}") and instruction.op is Op.UPDATE
        is_once = self._is_armed(MISCOMPUTE, instruction)
        if not is_update and not is_once and not self._is_armed(ALWAYS, instruction):
            yield
            return
        self.switch.note_instant()
        if is_once:
            self.switch.disarm()
        module, name = _COMPUTES[instruction.op]
        compute = getattr(module, name)

        def wrong(*arguments: Any, **options: Any) -> Any:
            result = compute(*arguments, **options)
            if is_update:  # another number in each step, so that no flip undoes another
                _flip(arguments[0].parameters[0], instruction.step)
            else:
                patched(module, name, compute)
                _flip(self._first_result(instruction, options, result))
            self.switch.count(Effect.MISCOMPUTED)
            return result

        patched(module, name, wrong)
        try:
            yield
        finally:
            patched(module, name, compute)

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


def _flip(tensor: torch.Tensor, index: int = 0) -> None:
    words = tensor.detach().view(-1).view(torch.int32)
    words[index % words.numel()] ^= 1


def install(switch: KillSwitch) -> type[Worker]:
    """The worker class with the kill switch."""
    KillSwitchWorker.switch = switch
    return KillSwitchWorker
