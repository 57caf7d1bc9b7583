"""Small jobs for a local fleet, with everything that makes exactness hard."""

from __future__ import annotations

from pathlib import Path

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    WorkerSpec,
)

TEXT = "bamboo_agent.datasets.text:build"


def tiny_gpt(
    folder: Path,
    *,
    steps: int = 8,
    pipelines: int = 1,
    stages: int = 2,
    least: int = 1,
    most: int = 2,
    mode: RedundancyMode = RedundancyMode.NONE,
    microbatches: int = 24,
    every_steps: int = 0,
    width: int = 32,
) -> JobSpec:
    """A GPT of 6 layers with dropout and clipping; checkpoints go into ``folder``.

    Runs that are compared need the same ``most``, because it affects the choice of leaves.
    """
    limits = {"context": 16, "limit_bytes": 20_000}
    return JobSpec(
        model=ModelSpec(
            "bamboo_agent.models.gpt:build",
            {"layers": 4, "width": width, "heads": 2, "context": 16, "dropout": 0.1},
        ),
        data=DataSpec(TEXT, limits, FactorySpec(TEXT, {**limits, "split": "validation"})),
        training=TrainingSpec(
            steps=steps,
            global_batch_size=2 * microbatches,
            micro_batch_size=2,
            optimizer=OptimizerSpec("torch.optim:AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
            clip_norm=0.5,
        ),
        pipelines=PipelinesSpec(pipelines, stages, min=least, max=most),
        worker=WorkerSpec("none"),
        checkpoint=CheckpointSpec(f"file://{folder / 'checkpoints'}", every_steps=every_steps),
        redundancy=RedundancySpec(mode),
        seed=7,
    )
