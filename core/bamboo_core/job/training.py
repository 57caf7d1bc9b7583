"""What an arbiter's status means for reconcile, and what the cluster means for the arbiter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.spec import JobSpec, PipelinesSpec, RunPolicy
from bamboo_core.arbiter.durable import Durable
from bamboo_core.arbiter.events import ArbiterPhase, ArbiterStatus
from bamboo_core.controller.view import ClusterView, Losses, TrainingView
from bamboo_core.model.ids import AgentId

_STOPPED = frozenset(
    {ArbiterPhase.COLLECTING, ArbiterPhase.PLANNING, ArbiterPhase.HOLDING, ArbiterPhase.RETURNING}
)


@dataclass(frozen=True)
class LastReported:
    """What users have been told so far: at first what the job's status said when we began to lead
    it. committed: step, -1 for none; loss: its loss, if it is known."""

    losses: Losses = field(default_factory=Losses)
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    checkpoint_error: str = ""


def view(
    status: ArbiterStatus,
    durable: Durable,
    *,
    dismissed: frozenset[AgentId],
    departing: frozenset[AgentId],
    losses: Losses,
    told: LastReported,
    checkpoint_error: str,
) -> TrainingView:
    told = follow(told, status, durable)
    planned = bool(durable.pipelines) and status.phase is not ArbiterPhase.WAITING
    grid = status.plan.pipelines if status.plan is not None else durable.pipelines
    checkpoint = status.checkpoint
    return TrainingView(
        epoch=durable.plan.epoch,
        attempt=durable.attempt,
        planned=planned and status.phase is not ArbiterPhase.OVER,
        recovering=planned and status.phase in _STOPPED,
        detail=status.detail,
        pipelines=len(grid) if planned else 0,
        connected=frozenset(status.connected),
        members=frozenset(status.members),
        dismissed=dismissed,
        departing=departing,
        copies=tuple(status.copies[layer] for layer in sorted(status.copies)),
        progress=told.progress,
        checkpoint_step=checkpoint.step if checkpoint is not None else -1,
        checkpoint_path=checkpoint.path if checkpoint is not None else "",
        checkpoint_error=checkpoint_error,
        losses=losses,
        outcome=status.outcome,
        reason=status.reason,
        message=status.message,
    )


def follow(told: LastReported, status: ArbiterStatus, durable: Durable) -> LastReported:
    """Agents' word; else what was told before, unless a restore has undone it."""
    known, new = told.progress, status.progress
    if new.validation_loss is None:
        new = replace(new, validation_loss=known.validation_loss)
    if new.committed >= 0:
        return replace(told, progress=new)
    committed, loss = known.committed, known.loss
    is_undone = durable.plan.attempt != durable.attempt
    if committed < durable.committed or (is_undone and committed > durable.committed):
        committed, loss = durable.committed, None
    return replace(told, progress=replace(new, committed=committed, loss=loss))


def mark(status: ArbiterStatus) -> object:
    """Differs when a user should hear of it at once; the step that is committed can wait."""
    return (
        status.phase,
        status.detail,
        status.fence,
        status.members,
        status.connected,
        status.progress.validation_loss,
        status.checkpoint,
        status.outcome,
    )


def certain_losses(view: ClusterView) -> Iterator[tuple[AgentId, str]]:
    """Agents whose process has been seen to end, or whose machine is gone."""
    nodes = {node.name for node in view.nodes}
    for pod in view.pods:
        if pod.has_ended:
            yield pod.agent, f"its pod has ended with exit code {pod.exit_code}"
        elif pod.node and pod.node not in nodes:
            yield pod.agent, f"its node {pod.node} is gone"


def same_for_arbiter(one: JobSpec, other: JobSpec) -> bool:
    """Whether two specs differ only in what a goal says or what does not concern the arbiter."""

    def core(spec: JobSpec) -> JobSpec:
        grid = spec.pipelines
        grid = PipelinesSpec(count=1, stages=grid.stages, min=1, max=1)
        return replace(spec, suspend=False, run_policy=RunPolicy(), pipelines=grid)

    return core(one) == core(other)
