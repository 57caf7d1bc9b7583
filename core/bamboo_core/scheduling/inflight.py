"""How many activations an agent may keep in flight, and whether to split backwards.

A full grid keeps P - s, as in 1F1B (PipeDream-Flush). Separate I and W and more activations in
flight fill the bubbles (ZB-H2 of "Zero Bubble Pipeline Parallelism"), as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs
from bamboo_core.scheduling.device_memory import RESIDENT, USABLE

_BEYOND = 8  # most activations in flight beyond P - s (measured: more gains nothing)
_MANY = 64  # members; beyond, one variant only (measured: the split wins in degraded grids)
_WORTH = 1.03  # split a full grid only for a gain beyond the error of the costs


@dataclass(frozen=True)
class Variant:
    """One way to schedule a step."""

    split: bool
    caps: dict[AgentId, int]
    price: float = 1.0  # factor on the length when variants are compared


@dataclass(frozen=True)
class Profile:
    """What agents have measured."""

    layers: Sequence[LayerCost] = ()  # empty: not measured
    memory_bytes: int = 0  # of the smallest device; 0: unknown


def variants(
    plan: Plan, costs: Costs, profile: Profile, *, is_degraded: bool
) -> tuple[Variant, ...]:
    """The variants that are worth trying; the shortest step wins.

    A full grid is split only if costs are measured, since with even costs the split would always
    seem to pay. It exceeds P - s in flight only if the memory is known to suffice.
    """
    any_stage = dict.fromkeys(plan.computing, len(plan.cut))  # of those without a seat
    tight = any_stage | schedule.caps(plan.pipelines)
    is_large = len(plan.members) > _MANY
    if not is_degraded:
        whole = Variant(False, tight)
        if not (profile.layers and costs.can_split) or is_large:
            return (whole,)
        caps = _roomy(plan, tight, profile) if profile.memory_bytes else tight
        return (whole, Variant(True, caps, _WORTH))
    roomy = _roomy(plan, tight, profile)
    fused, split = Variant(False, roomy), Variant(True, roomy)
    if not costs.can_split:
        return (fused,)
    return (split,) if is_large else (fused, split)


def _roomy(plan: Plan, tight: dict[AgentId, int], profile: Profile) -> dict[AgentId, int]:
    return {a: cap + _spare(plan, a, cap, profile) for a, cap in tight.items()}


def _spare(plan: Plan, agent: AgentId, cap: int, profile: Profile) -> int:
    """Activations that fit into device memory besides the agent's state and ``cap`` others."""
    if not (profile.memory_bytes and profile.layers):
        return _BEYOND
    if agent in plan.leaving:
        return 0  # its state is not known here
    wanted = plan.wants.get(agent, ())
    state = sum(
        RESIDENT * profile.layers[x].parameter_bytes for lo, hi in wanted for x in range(lo, hi)
    )
    stages = [(lo, hi) for lo, hi in plan.cut if any(a < hi and lo < b for a, b in wanted)]
    largest = max(
        (sum(x.activation_bytes for x in profile.layers[lo:hi]) for lo, hi in stages), default=0
    )
    room = USABLE * profile.memory_bytes - state
    return max(0, min(_BEYOND, int(room // max(1, largest)) - cap))
