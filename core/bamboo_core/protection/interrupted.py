"""The rest of a step after a loss, as the planner would schedule it: for estimates and benchmarks.

Detection, decision and new connections cost nothing here; running instructions complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bamboo_core.graph import closure
from bamboo_core.graph.closure import Holdings
from bamboo_core.graph.holdings import HoldingsIndex
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Program
from bamboo_core.planning.step_shape import TARGET, StepShape
from bamboo_core.scheduling import dry_run, inflight
from bamboo_core.scheduling.candidates import likeliest
from bamboo_core.scheduling.dry_run import DryRunResult
from bamboo_core.scheduling.remaining import Remaining, remaining
from bamboo_core.scheduling.schedule import Schedule


class Rest(NamedTuple):
    """The rest of a step after an interruption."""

    made: Schedule  # programs of the missing tasks
    report: DryRunResult  # of these programs
    left: Remaining


class Stopped(NamedTuple):
    """A step that was interrupted."""

    holdings: dict[AgentId, Holdings]
    elapsed: float  # when the last agent stopped


def resumed(stopped: Stopped, *variants: StepShape) -> float:
    """Length of the whole step, in the unit of the costs, if it goes on in the variant that the
    planner takes, as in :func:`rest`.

    Variants differ in their schedules only. Their seats are those of the stopped step, but for lost
    ones. RuntimeError if the rest cannot run.
    """
    found = rest(variants[0], {a: stopped.holdings[a] for a in variants[0].live}, variants[1:])
    if not found.report.ok:
        raise RuntimeError(f"{variants[0].lost}: {found.report}")
    return stopped.elapsed + found.report.end


def stop(
    shape: StepShape,
    *,
    at: float,
    programs: dict[AgentId, Program] | None = None,
    lane_limit: int | None = None,
) -> Stopped:
    """Stop a step at a time. programs: of the step, if the caller has them; lane_limit: most
    forwards computed ahead that an agent keeps; None: it computes none."""
    programs = programs or shape.build().programs
    held, elapsed = dry_run.stopped(
        programs,
        until=at,
        batch=shape.batch,
        layers=shape.cut[-1][1],
        holdings=shape.holdings(),
        costs=shape.timing,
        lanes={} if lane_limit is None else shape.lanes(programs),
        lane_limit=lane_limit or 0,
        wire=shape.wire(),
    )
    return Stopped({a: _settled(items) for a, items in held.items()}, elapsed)


def rest(
    shape: StepShape, holdings: Mapping[AgentId, Holdings], others: Sequence[StepShape] = ()
) -> Rest:
    """The work that is left for the agents of ``shape``, given what they hold. others: variants of
    its schedule that are tried, too, if a split one is not close to what no other falls below."""
    index = HoldingsIndex(holdings, batch=shape.batch, target=TARGET, short_notice=frozenset())
    left = remaining(
        index, batch=shape.batch, cut=shape.cut, holders=shape.holders(), costs=shape.timing
    )
    step = replace(
        shape.step_work, weight=left.weight, pinned=left.pinned, base={}, credit=left.credit
    )
    shared = likeliest(step, shape.policy, shape.most_sums)
    held = {
        a: {*index.held[a], *(Item.ver(v, x) for x, v in index.have[a].items())} for a in holdings
    }
    made = inflight.shortest(
        (
            (1.0, x.build(closure.missing(x.goals(shared.work), holdings, index=index), shared))
            for x in sorted((shape, *others), key=lambda x: not x.split)
        ),
        enough=inflight.WORTH,
        price_of_split=shape.timing.price_of_split,
    )
    report = dry_run.dry_run(
        made.programs,
        batch=shape.batch,
        layers=shape.cut[-1][1],
        holdings=held,
        costs=shape.timing,
        wire=shape.wire(),
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
