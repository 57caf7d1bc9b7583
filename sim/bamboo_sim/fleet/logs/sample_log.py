"""A log of the samples that each worker of a fleet computes with, written before each use."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from bamboo_agent.data.batches import Data
from bamboo_sim.fleet.injection.effects import patched

SampleLog = dict[tuple[int, int], str]
"""(step, micro-batch) -> digest of its inputs and targets."""


def install(path: Path) -> None:
    """Log the samples of this process into ``path`` from now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    fetch = Data.training

    def training(self: Data, step: int, microbatch: int) -> tuple[Any, Any]:
        pair = fetch(self, step, microbatch)
        os.write(file, f"{step} {microbatch} {_digest(pair)}\n".encode())
        return pair

    patched(Data, "training", training)


def _digest(pair: tuple[Any, Any]) -> str:
    return hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in pair)).hexdigest()[:16]


def read(folder: Path, steps: int) -> SampleLog:
    """The samples of the first steps, by all workers that logged into the folder.

    AssertionError if two workers computed a micro-batch with different samples.
    """
    ledger: SampleLog = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            step, microbatch, digest = line.split()
            if int(step) < steps:
                known = ledger.setdefault((int(step), int(microbatch)), digest)
                assert known == digest, f"{path.name}: different samples in {line}"
    return ledger
