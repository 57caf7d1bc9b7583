"""How many forward results an agent may keep at once, and whether a backward may be split.

A whole grid keeps P - s, as 1F1B does (PipeDream-Flush); with I and W apart and more in flight the
bubbles fill (ZB-H2 of "Zero Bubble Pipeline Parallelism"), as far as the devices' memory goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.costs import Costs

_BEYOND = 8  # forward results in flight beyond P - s, at most (measured: more gains nothing)
_RESIDENT = 6  # times the parameters' bytes: weight, Adam's two, leaf sum, chunk, reduced gradient
_USABLE = 0.8  # of the device's memory: the rest is for temporaries and fragmentation
_MANY = (
    64  # members beyond which one variant is tried: the split won in all degraded grids measured
)
_WORTH = 1.03  # a whole grid is split only for more than the costs can be wrong by


@dataclass(frozen=True)
class Variant:
    """One way to make a step's programs. price: factor on its length when ways are compared."""

    split: bool
    caps: dict[AgentId, int]
    price: float = 1.0


@dataclass(frozen=True)
class Profile:
    """What agents have measured: per layer (empty: nothing); memory_bytes: of the smallest device
    (0: not known)."""

    layers: Sequence[LayerCost] = ()
    memory_bytes: int = 0


def variants(
    plan: Plan, costs: Costs, profile: Profile, *, is_degraded: bool
) -> tuple[Variant, ...]:
    """The ways that are worth trying, of which the shortest step wins.

    A whole grid is split beyond P - s in flight only if it is known that the memory is there, and
    at all only if costs are measured: of even ones it would always seem to pay.
    """
    tight = schedule.caps(plan.pipelines)
    is_large = len(plan.members) > _MANY
    if not is_degraded:
        whole = Variant(False, tight)
        if not (profile.layers and costs.can_split) or is_large:
            return (whole,)
        caps = _roomy(plan, tight, profile) if profile.memory_bytes else tight
        return (whole, Variant(True, caps, _WORTH))
    roomy = _roomy(plan, tight, profile)
    ways = (Variant(False, roomy), Variant(True, roomy))
    if not costs.can_split:
        return ways[:1]
    return ways[1:] if is_large else ways


def _roomy(plan: Plan, tight: dict[AgentId, int], profile: Profile) -> dict[AgentId, int]:
    return {a: cap + _spare(plan, a, cap, profile) for a, cap in tight.items()}


def _spare(plan: Plan, agent: AgentId, cap: int, profile: Profile) -> int:
    """Forward results that fit into the device's memory beside the agent's state and ``cap``."""
    if not (profile.memory_bytes and profile.layers):
        return _BEYOND
    wanted = plan.wants.get(agent, ())
    state = sum(
        _RESIDENT * profile.layers[x].parameter_bytes for lo, hi in wanted for x in range(lo, hi)
    )
    stages = [(lo, hi) for lo, hi in plan.cut if any(a < hi and lo < b for a, b in wanted)]
    largest = max(
        (sum(x.activation_bytes for x in profile.layers[lo:hi]) for lo, hi in stages), default=0
    )
    room = _USABLE * profile.memory_bytes - state
    return max(0, min(_BEYOND, int(room // max(1, largest)) - cap))
