"""A log of the samples that each worker of a fleet computes with, written before each use."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from bamboo_agent.data.batches import Data
from bamboo_agent.data.needs import Part
from bamboo_sim.fleet.injection.effects import patched

SampleLog = dict[tuple[int, int], dict[str, str]]
"""(step, micro-batch) -> digests of its inputs and its targets, by the name of the part."""


def install(path: Path) -> None:
    """Log the samples of this process into ``path`` from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fetch = Data.part

    def logged(self: Data, part: Part, step: int | None, microbatch: int) -> Any:
        found = fetch(self, part, step, microbatch)
        if step is not None:
            line = f"{step} {microbatch} {part.name} {_digest(found)}\n"
            os.write(file, line.encode())
        return found

    patched(Data, "part", logged)


def _digest(value: Any) -> str:
    return hashlib.sha256(value.cpu().numpy().tobytes()).hexdigest()[:16]


def read(folder: Path, steps: int) -> SampleLog:
    """The samples of the first steps, by all workers that logged into the folder.

    AssertionError if two workers computed a micro-batch with different samples.
    """
    ledger: SampleLog = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            step, microbatch, part, digest = line.split()
            if int(step) < steps:
                parts = ledger.setdefault((int(step), int(microbatch)), {})
                known = parts.setdefault(part, digest)
                assert known == digest, f"{path.name}: different samples in {line}"
    return ledger
