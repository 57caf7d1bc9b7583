"""Compares the final states of two runs: their last checkpoints, layer by layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import Job


@dataclass(frozen=True)
class Comparison:
    """The final state compared with an undisturbed run's."""

    layers: int
    differing: tuple[int, ...]  # layers whose bits differ
    undisturbed_loss: Sequence[tuple[int, float]] = ()  # (committed steps, training loss)


def final_hashes(job: Job) -> tuple[str, ...]:
    """SHA-256 of each layer's weights and optimizer state after the last step.

    Raises CommandError if the job has no checkpoint of that step on this machine.
    """
    if job.checkpoint_step != job.steps:
        raise CommandError(
            f"{job.name} has no checkpoint of step {job.steps}; its newest is of step"
            f" {job.checkpoint_step}. Is spec.checkpoint set?"
        )
    path = Path(job.checkpoint_path.removeprefix("file://"))
    try:
        files = json.loads(path.read_text())["files"]
        return tuple(entry["sha256"] for entry in files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{path} is not a readable checkpoint manifest: {error}") from error


def digest(hashes: Sequence[str]) -> str:
    """A short name of all layers' bits, to compare two runs by eye."""
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


def differing_layers(one: tuple[str, ...], other: tuple[str, ...]) -> list[int]:
    """Layers whose bits differ; all layers if their number differs."""
    if len(one) != len(other):
        return list(range(max(len(one), len(other))))
    return [layer for layer, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
