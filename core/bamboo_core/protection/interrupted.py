"""The rest of a step after a loss, as the planner would schedule it: for estimates and benchmarks.

Detection, decision and new connections cost nothing here; running instructions complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bamboo_core.graph import closure
from bamboo_core.graph.closure import Holdings
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.planning.step_shape import TARGET, StepShape
from bamboo_core.scheduling import dry_run, workmap
from bamboo_core.scheduling.dry_run import DryRunResult
from bamboo_core.scheduling.remaining import Remaining, remaining
from bamboo_core.scheduling.schedule import Schedule


class Rest(NamedTuple):
    """What follows an interruption."""

    made: Schedule  # programs of the missing tasks
    report: DryRunResult  # of these programs
    left: Remaining


def length(before: StepShape, after: StepShape, *, at: float) -> float:
    """Length of a step that begins as ``before``, is stopped at a time, and goes on as ``after``.

    ``at`` and the result are in the unit of the costs. The seats of ``after`` are those of
    ``before``, but for lost ones. RuntimeError if the rest cannot run.
    """
    holdings, elapsed = stop(before, at=at)
    found = rest(after, {a: holdings[a] for a in after.live})
    if not found.report.ok:
        raise RuntimeError(f"{after.lost}: {found.report}")
    return elapsed + found.report.length


def stop(shape: StepShape, *, at: float) -> tuple[dict[AgentId, Holdings], float]:
    """What agents hold when the step is stopped at a time, and when the last of them stops."""
    held, elapsed = dry_run.stopped(
        shape.build().programs,
        until=at,
        batch=shape.batch,
        layers=shape.stages,
        holdings=shape.holdings(),
        costs=shape.timing,
    )
    return {a: _settled(items) for a, items in held.items()}, elapsed


def rest(shape: StepShape, holdings: Mapping[AgentId, Holdings]) -> Rest:
    """What the agents of ``shape`` still have to do, given what they hold."""
    index = HoldingsIndex(holdings, batch=shape.batch, target=TARGET, short_notice=frozenset())
    left = remaining(
        index, batch=shape.batch, cut=shape.cut, holders=shape.holders(), costs=shape.timing
    )
    work = workmap.assign(
        batch=shape.batch,
        seats=shape.seats,
        holders=shape.holders(),
        policy=shape.policy,
        weight=left.weight,
        pinned=left.pinned,
        base={},
        credit=left.credit,
    )
    made = shape.build(closure.missing(shape.goals(work), holdings, index=index))
    held = {
        a: {*index.held[a], *(Item.ver(v, x) for x, v in index.have[a].items())} for a in holdings
    }
    report = dry_run.dry_run(
        made.programs,
        batch=shape.batch,
        layers=shape.stages,
        holdings=held,
        costs=shape.timing,
    )
    return Rest(made, report, left)


def _settled(items: set[Item]) -> Holdings:
    """Holdings of an agent that was stopped in the target step."""
    return Holdings(
        {i.lo: i.step + TARGET for i in items if i.kind is Kind.VER},
        frozenset(i._replace(step=i.step + TARGET) for i in items if i.kind is not Kind.VER),
        frozenset({TARGET - 1}),
        TARGET - 1,
    )
