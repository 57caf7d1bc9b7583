"""The job that the tests of the agent train: a tiny GPT of 6 layers on real text."""

from __future__ import annotations

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)

MICROBATCHES = 24
TEXT = "bamboo_agent.datasets.text:build"


def tiny_gpt(
    *,
    steps: int = 3,
    microbatches: int = MICROBATCHES,
    uri: str = "",
    save_every: int = 0,
    keep: int = 2,
) -> JobSpec:
    """Micro-batches of 2 windows of 16 bytes; dropout, clipping, weight decay, validation."""
    limits = {"context": 16, "limit_bytes": 1600}
    return JobSpec(
        model=ModelSpec(
            "bamboo_agent.models.gpt:build",
            {"layers": 4, "width": 32, "heads": 2, "context": 16, "dropout": 0.1},
        ),
        data=DataSpec(TEXT, limits, FactorySpec(TEXT, {**limits, "split": "validation"})),
        training=TrainingSpec(
            steps=steps,
            global_batch_size=2 * microbatches,
            micro_batch_size=2,
            optimizer=OptimizerSpec("torch.optim:AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
            clip_norm=0.5,
            validate_every=2,
        ),
        pipelines=PipelinesSpec(1, 1),
        worker=WorkerSpec("none"),
        checkpoint=CheckpointSpec(uri, save_every, keep) if uri else None,
        seed=7,
    )
