"""Which mode Auto takes: the product's own cost model, with what it would know of such a job."""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_core.api.spec import JobSpec, RedundancyMode
from bamboo_core.protection.choice import choose
from bamboo_core.protection.facts import Seen, gather
from bamboo_core.protocol.messages import LayerCost
from bamboo_sim.market.policies.base.seats import Seats
from bamboo_sim.market.policies.ours.auto import Choice, Record


def product(spec: JobSpec, costs: Sequence[LayerCost], pipelines: int) -> Choice:
    """The choice for a job that asks for so many pipelines. The product asks for the mode of the
    grid that the job asks for, so seats tell nothing here. ValueError as in ``gather``."""

    def chosen(record: Record, _: Seats, current: RedundancyMode) -> RedundancyMode:
        seen = Seen(
            hazard_per_agent_hour=record.hazard.per_agent_hour(dict(record.agents)),
            is_hazard_measured=record.hazard.is_measured,
            are_costs_measured=True,
            empty=record.empty.rounded(),
            current=current,
        )
        return choose(gather(spec, costs, seen, pipelines=pipelines)).mode

    return chosen
