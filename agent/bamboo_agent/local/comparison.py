"""Compares the last checkpoint of a run with what a plain loop of the same layers ends with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.local.operator import JOB_UID
from bamboo_agent.local.plain_loop import PlainLoop
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, batch_shape
from bamboo_core.model.counts import counted
from bamboo_core.protocol.messages import Manifest


@dataclass(frozen=True)
class Final:
    """The newest checkpoint."""

    step: int
    folder: str
    digest: str  # as the quick start's report shows it
    records: tuple[LayerRecord, ...]
    best: str  # the best checkpoint and its value, in words; empty: there is none

    @classmethod
    def read(cls, spec: JobSpec, *, layers: int) -> Final | None:
        """None if there is no checkpoint. CheckpointError if it is wrong."""
        assert spec.checkpoint is not None
        checkpoints = Checkpoints(spec.checkpoint.uri, JOB_UID)
        good = checkpoints.scan().good
        if not good:
            return None
        newest = max(good, key=lambda manifest: (manifest.step, manifest.attempt))
        records = tuple(checkpoints.read_layer(newest, layer) for layer in range(layers))
        hashes = "".join(checkpoints.hashes(newest))
        digest = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        folder = checkpoints.folder(newest.attempt, newest.step)
        return cls(newest.step, folder, digest, records, _best(spec, checkpoints, good))


def left(last: Final | None, committed: int) -> str:
    """Say which work a run leaves that has ended by itself, and how to go on; empty: it had
    committed nothing. committed: its newest step, or -1."""
    if committed < 0:
        return ""
    step = last.step if last is not None else 0
    lost = max(0, committed + 1 - step)
    since = f"the checkpoint of step {step}" if last is not None else "the start"
    text = f"{counted(lost, 'committed step')} since {since} are lost" if lost else ""
    if last is None:
        return f"{text}: no checkpoint is written yet"
    done = (
        f"{counted(step, 'committed step')} in {since}, {last.folder}: spec.checkpoint.from begins"
        " a job with it, and accept: [Code, Data] there, or one of them, takes what you have"
        " repaired"
    )
    return "; ".join(filter(None, [text, done]))


def _best(spec: JobSpec, checkpoints: Checkpoints, good: list[Manifest]) -> str:
    found = checkpoints.best(good)
    if found is None or spec.best is None:
        return ""
    where = checkpoints.folder(found.attempt, found.step)
    return f"step {found.step}, {spec.best.metric} {found.value:.6g}, in {where}"


def compare(spec: JobSpec, setup: TrainingSetup, last: Final) -> local_run.Compared:
    """Train a plain loop to the same step, and compare all tensors bit for bit."""
    loop = PlainLoop(setup, batch_shape(spec))
    for _ in loop.run(last.step):
        pass
    count, differs = 0, ""
    for index, ours in enumerate(last.records):
        plain = loop.record(index)
        count += len(plain.tensors)
        differs = differs or _difference(index, ours, plain)
    return local_run.Compared(last.step, count, differs)


def _difference(index: int, ours: LayerRecord, plain: LayerRecord) -> str:
    """The first tensor that differs, and by how much."""
    if ours.tensors.keys() != plain.tensors.keys():
        names = ", ".join(sorted(ours.tensors.keys() ^ plain.tensors.keys()))
        return f"layer {index}: only one of both has {names}"
    for name, tensor in plain.tensors.items():
        other = ours.tensors[name]
        if tensor.shape != other.shape or not have_equal_bits(tensor, other):
            return f"layer {index}, {name}: {_how_much(tensor, other)}"
    if ours.extra != plain.extra:
        return f"layer {index}: other values beside its tensors: {ours.extra} and {plain.extra}"
    return ""


def _how_much(plain: torch.Tensor, ours: torch.Tensor) -> str:
    if plain.shape != ours.shape or plain.dtype != ours.dtype:
        return f"{plain.dtype} {tuple(plain.shape)} in the loop, {ours.dtype} {tuple(ours.shape)}"
    apart = (plain.double() - ours.double()).abs().max()
    return f"the largest of its {plain.numel()} numbers' differences is {float(apart):g}"
