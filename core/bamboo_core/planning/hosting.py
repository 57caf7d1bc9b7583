"""Which layers agents keep in host memory, because the device is short, and what that leaves there.

See :mod:`bamboo_core.scheduling.device_memory` for the decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_core.api.spec import RedundancySpec
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.placement.plan import Plan, layers_of, ranges_of
from bamboo_core.protocol.messages import LayerCost
from bamboo_core.scheduling.device_memory import Sizes, need


def replica_bytes(
    plan: Plan, redundancy: RedundancySpec, costs: Sequence[LayerCost], memory_bytes: int
) -> int:
    """Host memory of an agent that its replicas take; 0: they are on the device.

    costs: one per layer; empty: not measured. memory_bytes: of the smallest device; 0: unknown.
    """
    if not costs:
        return 0
    microbatches = -(-plan.batch.microbatches // max(1, len(plan.pipelines)))
    return need(
        Sizes.of(plan.cut, costs, microbatches=microbatches),
        redundancy.mode,
        memory_bytes=memory_bytes,
        host_memory_bytes=redundancy.host_memory_bytes,
    ).replica_bytes


def replicas(plan: Plan) -> dict[AgentId, tuple[Range, ...]]:
    """Layers that each seated agent wants besides the stage of its seat.

    A learner has no seat yet, and nothing else on its device, so all its layers are there.
    """
    own = {agent: plan.cut[seat.stage] for agent, seat in plan.seats.items()}
    return {
        agent: ranges_of(set(layers_of(plan.wants.get(agent, ()))) - set(range(*span)))
        for agent, span in own.items()
    }
