"""The last write, when every agent that holds the last state will leave: who takes it over.

Other agents are released meanwhile, so new ones have to come, as many as can hold all layers.
"""

from __future__ import annotations

from bamboo_core.arbiter_state.state import State
from bamboo_core.placement.capacity import fewest, is_enough


def wanted(state: State) -> int:
    """Agents that are wanted to take the state over; 0: a holder stays, or nothing is to be kept.

    None before a suspension: somebody else may want the nodes.
    """
    durable, membership, desired = state.durable, state.membership, state.desired
    if durable.last_write is None or desired is None or desired.suspended:
        return 0
    agents, holders = membership.agents, membership.members.intersection(durable.voters)
    are_going = all(a in agents and membership.is_departing(a) for a in holders)
    return fewest(stages=_stages(state)) if holders and are_going else 0


def have_come(state: State) -> bool:
    """Whether enough agents wait that have no part in the plan in force."""
    is_wanted = wanted(state) > 0
    return is_wanted and is_enough(state.membership.standby(), stages=_stages(state), least=1)


def _stages(state: State) -> int:
    return state.job.spec.pipelines.stages
