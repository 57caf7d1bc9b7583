"""From the arbiter's status to the view of users and of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.api.spec import BestSpec
from bamboo_core.api.totals import Totals
from bamboo_core.arbiter_state.durable import Durable, computed_on, eligible, shown_best
from bamboo_core.arbiter_state.events import ArbiterPhase, ArbiterStatus, Glance
from bamboo_core.controller.view import LastWords, Losses, TrainingView
from bamboo_core.model.ids import AgentId
from bamboo_core.model.processors import Kinds, bounded, merged
from bamboo_core.protocol.channels import Route
from bamboo_core.protocol.messages import Manifest

_MOST_PROCESSORS = 4
_STOPPED = frozenset(
    {ArbiterPhase.COLLECTING, ArbiterPhase.PLANNING, ArbiterPhase.HOLDING, ArbiterPhase.RETURNING}
)


@dataclass(frozen=True)
class LastReported:
    """The job's status as it was when this operator began to lead the job."""

    losses: Losses = Losses()  # noqa: RUF009 - frozen
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    checkpoint_error: str = ""
    # Path of a checkpoint -> why one node only may have its files.
    checkpoint_caveats: Mapping[str, str] = field(default_factory=dict)
    totals: Totals = Totals()  # noqa: RUF009 - frozen
    final_totals: Totals | None = None  # if the job ended now; None: the same
    route: Route | None = None  # of items between agents; None: no agent has been ready
    heard: frozenset[AgentId] = frozenset()  # agents beside the members of the durable facts


def view(
    status: ArbiterStatus,
    durable: Durable,
    *,
    dismissed: AbstractSet[AgentId],
    departing: AbstractSet[AgentId],
    warned: AbstractSet[AgentId] = frozenset(),
    at_risk: AbstractSet[AgentId] = frozenset(),
    reported: LastReported,
    failed: tuple[LastWords, ...] = (),
    heard: Mapping[AgentId, str] = MappingProxyType({}),
    has_begun: bool = False,
) -> TrainingView:
    """reported: what has been reported until now; progress in ``status`` takes precedence."""
    planned = bool(durable.pipelines) and status.phase is not ArbiterPhase.WAITING
    grid = status.plan.pipelines if status.plan is not None else durable.pipelines
    checkpoint = status.checkpoint
    return TrainingView(
        epoch=durable.plan.epoch,
        attempt=durable.attempt,
        rollbacks=durable.rollbacks,
        processors=_processors(durable),
        planned=planned and status.phase is not ArbiterPhase.OVER,
        recovering=planned and status.phase in _STOPPED and status.unwritten is None,
        detail=status.detail,
        pipelines=len(grid) if planned else 0,
        grid=grid if planned else (),
        connected=frozenset(status.connected),
        heard=heard,
        members=frozenset(status.members),
        has_state=bool(durable.members),
        dismissed=frozenset(dismissed),
        departing=frozenset(departing),
        warned=frozenset(warned),
        slow=frozenset(status.slow),
        at_risk=frozenset(at_risk),
        copies=tuple(status.copies[layer] for layer in sorted(status.copies)),
        route=status.route or reported.route,
        network=status.network,
        progress=follow(reported.progress, status.progress, durable),
        undone=durable.undone,
        checkpoint_step=checkpoint.step if checkpoint is not None else -1,
        checkpoint_path=checkpoint.path if checkpoint is not None else "",
        checkpoint_error=reported.checkpoint_error,
        checkpoint_caveat=_caveat(checkpoint, reported),
        best=status.best,
        unwritten=status.unwritten,
        losses=reported.losses,
        totals=reported.totals,
        final_totals=reported.final_totals or reported.totals,
        has_begun=has_begun,
        mode=status.mode,
        verdict=status.verdict,
        shortage=status.shortage,
        sharing=status.sharing,
        stall=status.stall,
        unreachable=status.unreachable,
        stalls=tuple(sorted(status.stalls.items())),
        failed=failed,
        outcome=status.outcome,
        reason=status.reason,
        message=status.message,
    )


def ended(durable: Durable, reported: LastReported, how: BestSpec | None = None) -> TrainingView:
    """The view of a job that has ended and has no arbiter any more. how: see spec.checkpoint."""
    checkpoint = next(reversed(eligible(durable)), None)
    return TrainingView(
        epoch=durable.plan.epoch,
        attempt=durable.attempt,
        rollbacks=durable.rollbacks,
        processors=_processors(durable),
        losses=reported.losses,
        totals=reported.totals,
        final_totals=reported.totals,
        route=reported.route,
        progress=reported.progress,
        checkpoint_step=checkpoint.step if checkpoint is not None else -1,
        checkpoint_path=checkpoint.path if checkpoint is not None else "",
        checkpoint_error=reported.checkpoint_error,
        checkpoint_caveat=_caveat(checkpoint, reported),
        best=shown_best(durable, how),
        mode=durable.mode,
        outcome=durable.outcome if durable.outcome is not Outcome.SUSPENDED else None,
        reason=durable.reason,
        message=durable.message,
    )


def _caveat(checkpoint: Manifest | None, reported: LastReported) -> str:
    return reported.checkpoint_caveats.get(checkpoint.path, "") if checkpoint is not None else ""


def _processors(durable: Durable) -> Kinds:
    return bounded(merged(computed_on(durable)), _MOST_PROCESSORS)


def follow(
    reported: TrainingProgress, progress: TrainingProgress, durable: Durable
) -> TrainingProgress:
    """Agents' reports of this attempt; else what was reported before, unless a restore undid it."""
    if progress.validation_loss is None:
        progress = replace(
            progress,
            validation_loss=reported.validation_loss,
            validation_metrics=reported.validation_metrics,
        )
    if progress.committed >= 0:
        return progress
    committed, loss, metrics = reported.committed, reported.loss, reported.metrics
    is_undone = durable.plan.attempt != durable.attempt
    if committed < durable.committed or (is_undone and committed > durable.committed):
        committed, loss, metrics = durable.committed, None, {}
    return replace(
        progress, committed=committed, loss=loss, metrics=metrics, skipped=reported.skipped
    )


def urgent_part(seen: Glance) -> object:
    """A change of this is shown to users at once. A newly committed step can wait."""
    return (
        seen.phase,
        seen.detail,
        seen.fence,
        seen.members,
        seen.connected,
        seen.stall,
        seen.unreachable,
        seen.slow,
        seen.progress.validation_loss,
        seen.checkpoint,
        seen.outcome,
    )
