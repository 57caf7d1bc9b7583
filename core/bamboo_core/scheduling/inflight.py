"""How many activations an agent may keep in flight, and whether to split backwards.

A full grid keeps P - s, as in 1F1B (PipeDream-Flush). Separate I and W and more activations in
flight fill the bubbles (ZB-H2 of "Zero Bubble Pipeline Parallelism"), as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import Need
from bamboo_core.scheduling.schedule import Schedule

WORTH = 1.03
"""A full grid is split only for a gain beyond the error of the costs."""

_LESS = 2  # activations in flight


@dataclass(frozen=True)
class Variant:
    """One way to schedule a step."""

    split: bool
    caps: dict[AgentId, int]  # in the order of seats
    price: float = 1.0  # factor on what is computed when variants are compared


def tighter(variant: Variant) -> Variant:
    """With a little less in flight. The scheduler takes what is at hand: where gradients take time,
    a step of a degraded grid can end sooner if less is (up to 3 % of those in degraded_step)."""
    return replace(variant, caps={a: max(1, cap - _LESS) for a, cap in variant.caps.items()})


def shortest(
    made: Iterable[tuple[float, Schedule]], *, enough: float = 0.0, price_of_split: float = 1.0
) -> Schedule:
    """The shortest schedule, each with its :attr:`Variant.price`.

    enough: a split step that exceeds what no step can fall below, which is the work of its busiest
    agent, by less than this factor is taken, and the next schedules are not made. price_of_split:
    as of the costs.
    """
    found: list[tuple[float, Schedule]] = []
    for price, each in made:
        found.append((each.end + (price - 1) * each.length, each))
        if each.is_split and each.end * price_of_split <= enough * each.busiest:
            break
    return min(found, key=lambda pair: pair[0])[1]


def variants(
    plan: Plan,
    costs: Costs,
    memory: Need,
    *,
    is_measured: bool,
    knows_memory: bool,
    is_degraded: bool,
) -> tuple[Variant, ...]:
    """The variants that are worth trying; the shortest step wins.

    memory: what agents need under the plan; is_measured: the costs are; knows_memory: the size of
    the devices, and what layers take, is known.

    A full grid is split only if costs are measured, since with even costs the split would always
    seem to pay. It exceeds P - s in flight only if the memory is known to suffice.
    """
    tight = schedule.caps(plan.pipelines)
    tight |= {a: len(plan.cut) for a in plan.computing if a not in tight}  # without a seat
    # the state of those that leave is not known here
    strangers = plan.leaving if knows_memory else ()
    roomy = {a: cap + (0 if a in strangers else memory.spare) for a, cap in tight.items()}
    is_large = len(plan.members) > schedule.MANY  # the split wins in degraded grids (measured)
    if not is_degraded:
        whole = Variant(False, tight)
        if not (is_measured and costs.can_split) or is_large:
            return (whole,)
        return (whole, Variant(True, roomy if knows_memory else tight, WORTH))
    fused, split = Variant(False, roomy), Variant(True, roomy)
    if not costs.can_split:
        return (fused,)
    return (split,) if is_large else (fused, split)
