"""The last write: nobody who is needed is released, and the job does not give up too early. And the
write before code of the user's is tried again that has ended a process.

A disk that is full for longer than the deadline is an excuse. It is none if there was room again,
and nobody has tried.
"""

from __future__ import annotations

from math import inf

from bamboo_core.api.events import EventFact
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import BadCheckpoint, Failure
from bamboo_sim.protocol.parts.job import LAST_WRITE_S
from bamboo_sim.protocol.parts.users_code import Crash
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World

_LONGEST_PAUSE_S = 30.0
_SLACK_S = 15.0  # for the rounds themselves


def note_refused(world: World, node: Node, said: object) -> None:
    """An agent says that the checkpoint could not be written with which its plan ends."""
    directive = node.executor.directive
    if not isinstance(said, BadCheckpoint) or not said.cause or directive is None:
        return
    if said.step >= directive.last:
        world.refused, world.refused_at = world.refused + 1, world.now


def note_crash(world: World, node: Node, said: object) -> None:
    """The user's code has ended a process. The next one that it ends, under a later plan, finds the
    state written, unless no word of the first one has come, or no file could be written."""
    if not isinstance(said, Failure) or not said.place:
        return
    fence, first = node.executor.fence, world.crash
    attempt = fence.attempt
    if first is None or first.fence[:2] != fence[:2]:
        world.crash = Crash(node.name, fence, _kept_without(world, node.name))
        return
    is_excused = world.is_misled or world.is_raced or world.has_storage_failed or world.refused
    is_excused |= world.is_storage_slow or not world.job.save_every
    is_excused |= first.agent not in world.arbiter.state.failed
    saved = max((step for mark, step in world.sealed if mark == attempt), default=0)
    if fence > first.fence and saved < first.step and not is_excused:
        raise Violation(f"{node.name} crashes as well; of {first.step} steps {saved} are saved")


def _kept_without(world: World, gone: AgentId) -> int:
    """The newest step that the other agents in reach hold as a whole; 0: none."""
    held = [n.executor.versions for a, n in world.nodes.items() if a != gone]
    steps = {step for versions in held for step in versions.values()}
    layers = range(world.job.num_layers)
    return max(
        (s for s in steps if all(any(v.get(x) == s for v in held) for x in layers)), default=0
    )


def check_released(world: World, record: Record) -> None:
    """The agents that stay hold every layer at the version that is to be written. An earlier leader
    may have released some of them, if its orders reached nobody."""
    step = int(record.facts[EventFact.STEP])
    staying = frozenset(world.arbiter.status().members)
    world.released = (world.released - staying) | frozenset(record.agents)
    if not world.dead.isdisjoint(world.arbiter.durable.members):
        return  # the leader has not heard of a death
    if lost := _lacking(world, step):
        raise Violation(f"{record.message}: layers {lost} of version {step} have no holder left")


def note_unwritten(world: World, after: Durable, *, is_leader: bool) -> None:
    """Note when an operator, of which one leads, first knows that the checkpoint is not written.
    What one says that has led before changes nothing."""
    if after.last_write is None:
        world.unwritten_since = inf if is_leader else world.unwritten_since
    elif world.unwritten_since == inf:
        world.unwritten_since = world.now


def check_given_up(world: World, before: Durable, after: Durable) -> None:
    """The wait ends once the checkpoint is written, or with the deadline. before and after: the
    leader's facts."""
    known = before.last_write
    is_end = before.outcome is None and after.outcome in (Outcome.FAILED, Outcome.SUSPENDED)
    if known is None or not is_end or (before.attempt, known.step) in before.bad:
        return
    waited_s = world.now - world.unwritten_since
    is_excused = world.is_misled or world.is_raced or world.is_storage_slow
    if is_excused or _lacking(world, known.step):
        return
    if waited_s < LAST_WRITE_S:
        raise Violation(f"given up after {waited_s:g} s: {after.message}")
    tried_s = world.now - world.refused_at
    if tried_s > _LONGEST_PAUSE_S + _SLACK_S and not world.has_paused:
        raise Violation(f"given up, and the last try was {tried_s:g} s ago: {after.message}")


def check_failed(world: World, before: Durable, after: Durable) -> None:
    """A job ends by an error of its code only if everybody meets it, and with all that it has
    computed in a checkpoint, unless a layer is lost or the checkpoint cannot be written. before
    and after: the leader's facts."""
    if before.outcome is not None or after.reason != Reason.USER_CODE_FAILED:
        return
    if world.bad_code is None:
        raise Violation(f"the job fails, and nobody else has met the error: {after.message}")
    attempt, newest = world.newest
    step, base = newest + 1, before.manifest
    is_begun = attempt == before.attempt and step > (base.step if base is not None else 0)
    if not is_begun or not world.job.save_every or (attempt, step) in world.sealed:
        return
    is_excused = world.is_misled or world.is_raced or world.is_storage_slow or world.refused
    if not is_excused and not _lacking(world, step) and (attempt, step) not in before.bad:
        raise Violation(f"{step} steps are committed, and not saved: {after.message}")


def _lacking(world: World, step: int) -> list[int]:
    """Layers of this version that no live agent in reach holds, but those that are released."""
    near: set[AgentId] = {a for a in world.nodes if world.network.reaches(a)} - world.released
    near -= world.network.frozen
    held = {
        layer
        for agent in near
        for layer, version in world.nodes[agent].executor.versions.items()
        if version == step
    }
    return [layer for layer in range(world.job.num_layers) if layer not in held]
