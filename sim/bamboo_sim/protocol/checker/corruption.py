"""Wrong bits: which of them may be committed, and what may follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from bamboo_core.api.events import EventFact
from bamboo_core.api.reasons import FailureCause
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.numerics import BatchShape, middle
from bamboo_core.model.program import Op
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World


def check_unseen(world: World, node: Node, step: int) -> None:
    """A wrong result may be committed only if the agent that was wrong has no vote, or no other
    voter has computed that forward, or begun to; and if none has told the operator of it. A wrong
    sum only if it did not have its turn to be checked. Or if a layer was altered in this attempt,
    between two comparisons of the copies."""
    struck = [(agent, flip.name, flip.lasts) for agent, flip in world.flips.items()]
    votes = _votes(node, step)
    for wrong, name, lasts in struck:
        if name is None:
            continue
        if name.kind is Kind.SUM:
            _check_turn(world, node.worker.backend.batch, name)
            continue
        known = [agent for agent, vote in votes.items() if name in {*vote.said, *vote.begun}]
        if len(known) > 1 and wrong in known:
            raise Violation(f"step {step} has a wrong result, but {known} have computed {name}")
        mark = name.step, name.lo, name.hi, name.index
        told = [a for a in votes if a in world.nodes and mark in world.nodes[a].worker.disputed]
        if told and not lasts:  # it may be wrong again after the void
            raise Violation(f"step {step} has a wrong result, but {told} told of {name}")
    attempt = node.executor.fence.attempt
    if not struck and attempt not in world.altered.values():
        raise Violation(f"{node.name} commits a wrong result of step {step}")
    world.spoiled = attempt, step


def _check_turn(world: World, batch: BatchShape, name: Item) -> None:
    """A sum of two runs is checked by the leaf at which they meet, once in so many steps."""
    every = world.job.check_every
    where = middle(batch, (name.index, name.index + name.leaves))
    if every and (name.step + where) % every == 0:
        raise Violation(f"step {name.step} is committed with {name}, which was wrong in its turn")


def check_copies(world: World, node: Node, step: int) -> None:
    """In a step of a checkpoint there is a commit only if all voters hold equal copies."""
    every = world.job.save_every
    if not every or step == 0 or step % every:
        return
    known: dict[int, Any] = {}
    for agent, vote in sorted(_votes(node, step).items()):
        for layer, held in vote.held.items():
            if known.setdefault(layer, held) != held:
                raise Violation(f"step {step} is committed, but {agent}'s layer {layer} differs")


def check_told(world: World, check_weights: Callable[[World], None]) -> None:
    """The facts say that a step was void, so its wrong result is not the job's. A vote that is
    wrong again may be the only one that is left about its layer. A forward that is wrong again may
    be one that nobody else computes, if the step was void because of another fault."""
    spoiled, durable = world.spoiled, world.operators.durable
    is_other = len(world.flips) > 1
    if any(f.lasts and (f.op is Op.VOTE or is_other) for f in world.flips.values()):
        return
    if spoiled is not None and spoiled[0] == durable.attempt and spoiled[1] in durable.voided:
        check_weights(world)


def note_told(world: World, record: Record) -> None:
    """Remember of which step a dispute is known."""
    mark = world.arbiter.durable.attempt, int(record.facts[EventFact.STEP])
    world.told |= {mark}


def _votes(node: Node, step: int) -> dict[AgentId, Any]:
    """The votes for a step that its coordinator has counted."""
    return {
        item.agent: vote
        for item, vote in node.worker.backend.store.items()
        if item == Item.vote(step, item.agent)
    }


def check_question(world: World, node: Node, step: int) -> None:
    """Once two agents are in question, neither has a part in the step, and it is not committed if a
    third one has computed the same forward."""
    durable = world.operators.durable
    question = durable.question
    if question is None or question.step != step or node.executor.fence < durable.void:
        return
    votes = _votes(node, step)
    if question.agents & votes.keys():
        raise Violation(f"{sorted(question.agents & votes.keys())} vote, but one of them is wrong")
    third = [agent for agent, vote in votes.items() if question.name in vote.said]
    if third:
        raise Violation(f"{third} have computed {question.name}, but step {step} is committed")


def note_dispute(world: World, node: Node, step: int) -> None:
    """A coordinator makes no commit, since votes differ: who has claimed what is in dispute, and
    whose gradients differ without a majority."""
    votes, marks = _votes(node, step), node.worker.disputed
    for agent, vote in votes.items():
        if any((i.step, i.lo, i.hi, i.index) in marks for i in vote.said):
            world.differing |= {agent}
    for layer in range(world.job.num_layers):
        said = {a: vote.gradients[layer] for a, vote in votes.items() if layer in vote.gradients}
        counts = Counter(said.values())
        if len(counts) > 1:
            world.differing |= said.keys()
        if 2 * max(counts.values(), default=1) <= len(said):
            world.tied |= said.keys()


def check_blame(world: World, record: Record) -> None:
    """Only an agent whose device was wrong, or that has read something wrong, is blamed. Or one
    that has differed from it about a gradient, again and again, if there was no majority: somebody
    has to go."""
    if record.facts[EventFact.CAUSE] != FailureCause.CORRUPTION:
        return
    wrong = {*world.flips, *world.altered, *world.sealed.misreaders}
    sound = {*record.agents} - wrong
    is_repeated = any(flip.op is Op.VOTE and flip.lasts for flip in world.flips.values())
    is_tie = is_repeated and "nobody knows who is right" in record.message
    several = len(wrong) > 1  # who is right cannot be told then
    excused = world.tied if is_tie else world.differing if several else frozenset()
    if sound - excused:
        raise Violation(f"{sorted(sound)} compute right bits, but are blamed: {record.message}")
    world.noticed |= sound


def check_undecided(world: World, before: Durable, text: str) -> None:
    """Only a fault that lasts cannot be decided; and if nothing else has happened, only if too few
    agents are left without the two that differ. What is committed cannot be computed again. Nor can
    anybody know whose layers are right if one that differs is gone, or has no time."""
    if world.altered or (world.flips and "is committed" in text):
        return
    present = world.nodes.keys() - world.noticed
    lacking = world.pods if "who has made the input" in text else before.disputants
    if world.is_misled or not present >= {*lacking}:
        return
    if not is_lasting(world):
        raise Violation(f"a checkpoint is restored for a fault that has passed: {text}")
    others = len(world.nodes) - 2
    if world.causes == 1 and 2 * others >= world.operators.stages:
        raise Violation(f"a checkpoint is restored, but {others} other agents could decide: {text}")


def is_lasting(world: World) -> bool:
    """Whether a device gives the same wrong result every time."""
    return any(flip.lasts for flip in world.flips.values())
