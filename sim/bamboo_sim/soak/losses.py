"""Was work lost although a copy of every layer lived? That is judged from the plans, the commits
that agents have told, and the agents that were killed, not from what the operator says of losses.

An agent holds a layer for certain if it wants it by the newest plan whose first step is committed,
since that commit needs the vote of every agent that is to hold something. Later plans may be there,
and nobody has told yet whether their first steps are committed. If they are, an agent has only what
it wants by them; so it must want the layer by each of them, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan, layers_of

Holders = tuple[frozenset[AgentId], ...]
"""Layer -> agents that hold it for certain. Empty: nothing is certain."""


@dataclass(frozen=True)
class Loss:
    """An agent was killed, or made useless for ever. holders: just before."""

    agent: AgentId
    holders: Holders


@dataclass(frozen=True)
class Recovery:
    """alive: losses after which a copy of every layer lived; succeeded: those that cost no step."""

    alive: int = 0
    succeeded: int = 0


def holders(plans: Sequence[Plan], committed: Mapping[int, int]) -> Holders:
    """The agents that hold each layer for certain. plans: the oldest first; committed: attempt ->
    newest step whose commit an agent has told."""
    found: dict[int, set[AgentId]] | None = None
    for plan in reversed(plans):
        if plan.fence.attempt != plans[-1].fence.attempt:
            break
        wanted = _wanted(plan)
        found = wanted if found is None else {x: found[x] & wanted[x] for x in wanted}
        if plan.target <= committed.get(plan.fence.attempt, -1):
            return tuple(frozenset(found[x]) for x in sorted(found))
    return ()


def _wanted(plan: Plan) -> dict[int, set[AgentId]]:
    wanted: dict[int, set[AgentId]] = {x: set() for x in range(plan.layers)}
    for agent, ranges in plan.wants.items():
        for layer in layers_of(ranges):
            wanted[layer].add(agent)
    return wanted


def judge(
    losses: Sequence[Loss],
    gone: Collection[AgentId],
    *,
    restored: bool,
    repeated: int,
    goes_on: bool = True,
) -> Recovery:
    """Judge the losses of one round together, since a restore may follow from any of them.

    gone: all agents that were killed or told to go, up to the end of the round, with those of the
    losses; restored: whether a new attempt has begun; repeated: committed steps that were committed
    once more; goes_on: whether a step was committed after the losses.
    """
    lost = {*gone, *(loss.agent for loss in losses)}
    is_alive = all(
        loss.holders and all(agents - lost for agents in loss.holders) for loss in losses
    )
    alive = len(losses) if is_alive else 0
    return Recovery(alive, alive if goes_on and not restored and not repeated else 0)
