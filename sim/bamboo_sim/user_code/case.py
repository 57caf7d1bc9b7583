"""The form of a case: what a user hands in, and what must come out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_sim.user_code.training import MICROBATCHES, SAVE_EVERY, SIZE, STEPS

_PACKAGE = "bamboo_sim.user_code"


@dataclass(frozen=True)
class Refused:
    """The set-up refuses the job. words: patterns that its line has: the place, and the remedy.

    or_equal: the job may also train with equal bits; what it must not be is silently wrong.
    """

    words: tuple[str, ...]
    or_equal: bool = False


@dataclass(frozen=True)
class Equal:
    """All runs have equal bits. like: an optimizer with which the weights become the same."""

    like: str = ""


@dataclass(frozen=True)
class Unlike:
    """Two agents have different fingerprints, so that no job takes both."""


Expected = Refused | Equal | Unlike


@dataclass(frozen=True)
class Case:
    """``source``: the report or review that it comes from. model, data and optimizer: factories in
    this package, or of torch; each with its arguments. has_own_interpreters: workers are not
    forked, so that hashes of strings may differ."""

    name: str
    source: str
    expected: Expected
    model: str = "models:perceptron"
    model_args: dict[str, Any] = field(default_factory=dict)
    data: str = "data_sets:Points"
    data_args: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "torch.optim:AdamW"
    optimizer_args: dict[str, Any] = field(default_factory=lambda: {"lr": 0.01})
    has_own_interpreters: bool = False

    def job(self, folder: Path) -> JobSpec:
        """Its checkpoints go into ``folder``."""
        return JobSpec(
            model=ModelSpec(_full(self.model), self.model_args),
            data=DataSpec(_full(self.data), self.data_args),
            training=TrainingSpec(
                steps=STEPS,
                global_batch_size=MICROBATCHES * SIZE,
                micro_batch_size=SIZE,
                optimizer=OptimizerSpec(_full(self.optimizer), self.optimizer_args),
                clip_norm=0.5,
            ),
            pipelines=PipelinesSpec(1, 1, max=2),
            worker=WorkerSpec("none"),
            checkpoint=CheckpointSpec(f"file://{folder}/checkpoints", SAVE_EVERY, keep=99),
            seed=7,
        )

    def like(self, optimizer: str) -> Case:
        """The same with another optimizer."""
        return replace(self, optimizer=optimizer, optimizer_args={})


def _full(factory: str) -> str:
    return factory if factory.startswith("torch.") else f"{_PACKAGE}.{factory}"
