"""The rest of a step after a loss, as the planner would schedule it: for estimates and benchmarks.

Detection, decision and new connections cost nothing here; running instructions complete.
"""

from __future__ import annotations

from bamboo_core.graph import closure
from bamboo_core.graph.closure import Holdings
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.planning.step_shape import StepShape
from bamboo_core.scheduling import dry_run, workmap
from bamboo_core.scheduling.remaining import remaining


def length(before: StepShape, after: StepShape, *, at: float) -> float:
    """Length of a step that begins as ``before``, is stopped at a time, and goes on as ``after``.

    ``at`` and the result are in the unit of the costs. The seats of ``after`` are those of
    ``before``, but for lost ones. RuntimeError if the rest cannot run.
    """
    held, elapsed = dry_run.stopped(
        before.build().programs,
        until=at,
        batch=before.batch,
        layers=before.stages,
        holdings=before.holdings(),
        costs=before.timing,
    )
    return elapsed + _rest(after, {a: held[a] for a in after.live})


def _rest(shape: StepShape, held: dict[AgentId, set[Item]]) -> float:
    """What the survivors need from here, given what they hold."""
    holdings = {a: _settled(items) for a, items in held.items()}
    index = HoldingsIndex(holdings, batch=shape.batch, target=1, short_notice=frozenset())
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
    )
    goals = closure.Goals(
        batch=shape.batch,
        cut=shape.cut,
        wants=shape.wants(),
        assignment=work,
        coordinator=shape.live[0],
        target=1,
        last=9,
        split=shape.split,
    )
    made = shape.build(closure.missing(goals, holdings))
    report = dry_run.dry_run(
        made.programs,
        batch=shape.batch,
        layers=shape.stages,
        holdings={a: {*items, Item.commit(-1)} for a, items in held.items()},
        costs=shape.timing,
    )
    if not report.ok:
        raise RuntimeError(f"{shape.lost}: {report}")
    return report.length


def _settled(items: set[Item]) -> Holdings:
    """Holdings of an agent that was stopped in step 1."""
    return Holdings(
        {i.lo: i.step + 1 for i in items if i.kind is Kind.VER},
        frozenset(i._replace(step=i.step + 1) for i in items if i.kind is not Kind.VER),
        frozenset({0}),
        0,
    )
