"""A log of the state that each worker of a fleet computes: a hash of every layer's weights and
optimizer state after some steps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bamboo_agent.compute.backend import Backend
from bamboo_agent.compute.layers import Layer
from bamboo_core.model.program import Instruction, Op
from bamboo_core.protocol.messages import CommitRecord
from bamboo_sim.fleet.injection.effects import patched

FOLDER_VARIABLE = "BAMBOO_FLEET_STATES"
EVERY = 4
"""Steps between two hashes."""


class LayerState(NamedTuple):
    """One line of a log: a layer's state after the update of ``step``."""

    step: int
    layer: int
    digest: str


def install(path: Path) -> None:
    """Log the states of this process into ``path`` from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    run = Backend.run

    def logged(self: Backend, instruction: Instruction) -> CommitRecord | None:
        record = run(self, instruction)
        if instruction.op is Op.UPDATE and instruction.step % EVERY == 0:
            layers = range(instruction.lo, instruction.hi)
            lines = [f"{instruction.step} {x} {digest(self.layers[x])}\n" for x in layers]
            os.write(file, "".join(lines).encode())
        return record

    patched(Backend, "run", logged)


def digest(layer: Layer) -> str:
    """A hash of weights, buffers and optimizer state."""
    return digest_of(layer.record())


def digest_of(state: Any) -> str:
    """The same of a layer's record, such as one that a file holds."""
    found = hashlib.blake2b(state.extra.encode(), digest_size=8)
    for name, tensor in sorted(state.tensors.items()):
        found.update(name.encode())
        found.update(tensor.reshape(-1).numpy().tobytes())
    return found.hexdigest()


class StateLogs:
    """Reads the logs of all workers of a fleet while they grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._at: dict[Path, int] = {}

    def read(self) -> Iterator[LayerState]:
        """Lines that are new and complete."""
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                lines, end, _ = file.read().rpartition(b"\n")
            self._at[path] = self._at.get(path, 0) + len(lines) + len(end)
            for line in lines.decode().splitlines():
                step, layer, text = line.split()
                yield LayerState(int(step), int(layer), text)
