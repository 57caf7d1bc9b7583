"""The layers that agents keep in host memory, because the device is too small.

See :mod:`bamboo_core.scheduling.device_memory` for the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from bamboo_core.api.spec import RedundancySpec
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement.plan import Plan, layers_of, ranges_of
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling import device_memory
from bamboo_core.scheduling.device_memory import Need, Sizes, need, shortage
from bamboo_core.scheduling.sharing import orders


def memory_of(
    plan: Plan, redundancy: RedundancySpec, costs: Sequence[LayerCost], memory_bytes: int
) -> Need:
    """The memory that an agent needs under the plan.

    costs: one per layer; if they are not measured, everything fits onto the device. memory_bytes:
    of the smallest device; 0: unknown.
    """
    return need(
        _sizes(plan, costs),
        redundancy.mode,
        memory_bytes=memory_bytes if costs else 0,
        host_memory_bytes=redundancy.host_memory_bytes,
    )


def shortage_of(
    plan: Plan, redundancy: RedundancySpec, costs: Sequence[LayerCost], memory_bytes: int
) -> str:
    """Why the device does not suffice for the mode that the plan has; empty: it does.

    Mode None is said to be short, too, though there is nothing less to take.
    """
    if not (costs and memory_bytes) or (redundancy.mode.keeps_copies and len(plan.cut) < 2):
        return ""
    found = shortage(
        _sizes(plan, costs),
        redundancy.mode,
        memory_bytes=memory_bytes,
        host_memory_bytes=redundancy.host_memory_bytes,
    )
    if not redundancy.mode.keeps_copies:
        return found and device_memory.not_even_none(found)
    return found and f"spec.redundancy.mode is {redundancy.mode.value}, but {found}"


def room_for_sums(
    plan: Plan, redundancy: RedundancySpec, costs: Sequence[LayerCost], memory_bytes: int
) -> float:
    """Sums of a stage's gradient for which an agent with two stages has memory; inf: not known."""
    if not costs:
        return inf
    found = memory_of(plan, redundancy, costs, memory_bytes)
    return device_memory.most_sums(found, _sizes(plan, costs), memory_bytes)


def _sizes(plan: Plan, costs: Sequence[LayerCost]) -> Sizes:
    microbatches = -(-plan.batch.microbatches // max(1, len(plan.pipelines)))
    if not costs:
        return Sizes(len(plan.cut), microbatches, 0, 0, 0, 0)
    sums = orders.sums_at_once(plan.batch, max(1, len(plan.pipelines)))
    return Sizes.of(plan.cut, costs, microbatches=microbatches, sums=sums)


def replicas(plan: Plan) -> dict[AgentId, tuple[Range, ...]]:
    """Layers that each seated agent wants besides the stage of its seat.

    A learner has no seat yet, and nothing else on its device, so all its layers are there.
    """
    own = {agent: plan.cut[seat.stage] for agent, seat in plan.seats.items()}
    return {
        agent: ranges_of(set(layers_of(plan.wants.get(agent, ()))) - set(range(*span)))
        for agent, span in own.items()
    }
