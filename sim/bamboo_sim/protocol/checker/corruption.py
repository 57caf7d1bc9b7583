"""Wrong bits: which of them may be committed, and what may follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bamboo_core.model.items import Item
from bamboo_sim.protocol.checker.violation import Violation

if TYPE_CHECKING:
    from bamboo_sim.protocol.world.node import Node
    from bamboo_sim.protocol.world.world import World


def check_unseen(world: World, node: Node, step: int) -> None:
    """A wrong result may be committed only if the agent that was wrong has no vote, or no other
    voter has computed that forward, or begun to; and if none has told the operator of it."""
    struck = [(agent, flip.name, flip.lasts) for agent, flip in world.flips.items()]
    votes = {
        item.agent: vote
        for item, vote in node.worker.backend.store.items()
        if item == Item.vote(step, item.agent)
    }
    for wrong, name, lasts in struck:
        if name is None:
            continue
        known = [agent for agent, (_, said, begun) in votes.items() if name in {*said, *begun}]
        if len(known) > 1 and wrong in known:
            raise Violation(f"step {step} has a wrong result, but {known} have computed {name}")
        mark = name.step, name.lo, name.hi, name.index
        told = [a for a in votes if a in world.nodes and mark in world.nodes[a].worker.disputed]
        if told and not lasts:  # it may be wrong again after the void
            raise Violation(f"step {step} has a wrong result, but {told} told of {name}")
    if not struck:
        raise Violation(f"{node.name} commits a wrong result of step {step}")
    world.is_spoiled = True


def check_undecided(world: World, text: str) -> None:
    """Only a fault that lasts cannot be decided."""
    if not any(flip.lasts for flip in world.flips.values()):
        raise Violation(f"a checkpoint is restored for a fault that has passed: {text}")
