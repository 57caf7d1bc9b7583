"""How long a step would take with a work map: a guess without programs, and a bound.

For moments when nobody can wait for a dry run. Sums of gradients count as they are sent: one for
each node of the tree, prefix of a chunk or single leaf that an agent has (:mod:`dealing`).
"""

from __future__ import annotations

from typing import NamedTuple

from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import fewest
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap


class Estimate(NamedTuple):
    """Times in the unit of the weights."""

    top: float  # the busiest agent computes so long
    wire: float  # the fullest interface sends or receives sums so long
    bound: float  # no step is shorter: the leaves of one agent take so long
    held: float  # sums and slices of sums that the fullest agent has at the end of the step

    @property
    def guess(self) -> float:
        """The length of the step, if sums are sent after everything is computed."""
        return self.top + self.wire


def estimate(step: StepWork, work: WorkMap) -> Estimate:
    """The times of a map."""
    load = dict(step.loads)
    shares: list[dict[AgentId, list[int]]] = [{} for _ in step.stages]
    for (stage, leaf), agent in work.items():
        load[agent] += step.cost((stage, leaf), agent)
        shares[stage].setdefault(agent, []).append(leaf)
    top = max(load.values())
    bound = max(x - step.loads[a] for a, x in load.items())
    if not any(step.transfer):
        return Estimate(top, 0.0, bound, 0.0)
    busy = dict.fromkeys(load, 0.0)  # time of each interface, in the fuller direction
    held = dict.fromkeys(load, 0.0)
    for stage, found in enumerate(shares):
        sums = {a: len(fewest(step.batch, leaves)) for a, leaves in found.items()}
        owners, every = len(sums), sum(sums.values())
        part = step.transfer[stage] / owners  # each owner reduces a slice of the gradient
        for agent, own in sums.items():
            sent, received = own * (owners - 1), every - own
            busy[agent] += part * max(sent, received)
            held[agent] += own + received / owners
    return Estimate(top, max(busy.values()), bound, max(held.values()))
