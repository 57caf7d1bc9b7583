"""What a hook is told of a committed step."""

from __future__ import annotations

from dataclasses import dataclass, field

from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.messages import Progress

NOT_TOLD = "was not told"
NOT_CLOSED = "did not return from close()"
"""In the warning of an agent that ends. Its termination message has it, too, and from there the
job's condition: no event can, since the job is over."""


@dataclass(frozen=True)
class StepRecord:
    """A committed step. (attempt, step) names it: a record may come again, with the same values.

    step counts from 0. After the last one, step ``steps`` has the last validation loss, and no loss
    and no gradient. A restore makes a new attempt, which does steps again.
    """

    job: str  # namespace/name
    attempt: int
    step: int
    steps: int  # of the whole job
    loss: float | None  # mean over the global batch
    grad_norm: float | None  # before clipping
    finite: bool = True  # False: the step changed no layer
    validation_loss: float | None = None  # of the weights with which the step began
    step_s: float = 0.0  # how long the step took on this agent; 0: not known
    samples_per_s: float = 0.0  # 0: not known
    agents: int = 0  # that train
    # beside the loss, by name; those of the validation begin with "validation_"
    metrics: dict[str, float] = field(default_factory=dict)


def record_of(job: str, spec: JobSpec, progress: Progress, agents: int) -> StepRecord:
    """The record of what a worker has reported. agents: in the plan."""
    commit, training = progress.commit, spec.training
    is_step = commit.step < training.steps
    step_s = max(0.0, progress.step_s) if is_step else 0.0
    validation = {f"validation_{name}": x for name, x in commit.validation_metrics.items()}
    return StepRecord(
        job=job,
        attempt=progress.fence.attempt,
        step=commit.step,
        steps=training.steps,
        loss=commit.loss if is_step else None,
        grad_norm=commit.grad_norm if is_step else None,
        finite=commit.finite,
        validation_loss=commit.validation_loss,
        step_s=step_s,
        samples_per_s=training.global_batch_size / step_s if step_s > 0 else 0.0,
        agents=agents,
        metrics={**commit.metrics, **validation},
    )
