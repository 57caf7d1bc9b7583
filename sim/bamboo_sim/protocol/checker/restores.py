"""Whether a restore was justified: some layer has no usable version, neither live nor in a file.

The check looks at what the agents hold at that moment, not at their reports. A file counts once it
has been reported to the operator, and until the storage refuses to read it. An attempt that starts
at the needed version loses nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from bamboo_core.api.events import EventFact, RestoreCause
from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Record
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.protocol.messages import Manifest
from bamboo_sim.protocol.checker.corruption import check_undecided, is_lasting
from bamboo_sim.protocol.checker.pruning import check_base
from bamboo_sim.protocol.checker.verdict import is_too_few, is_whole, versions
from bamboo_sim.protocol.control.operator import Operator
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World


def check_restore(world: World, before: Durable, record: Record) -> None:
    """Raise a Violation if the restore is not justified. before: the durable facts until then."""
    cause = record.facts[EventFact.CAUSE]
    _check_base(world, cause)
    if cause == RestoreCause.RESUMED:
        if before.outcome is not Outcome.SUSPENDED:
            raise Violation(f"a job that is not suspended is resumed: {before.outcome}")
    elif cause == RestoreCause.CORRUPTION:
        check_undecided(world, before, record.message)
    elif cause == RestoreCause.NO_VOTER:
        _check_deadline(world, before)
    else:
        _check_lost(world, before, record.message)
    if cause not in (RestoreCause.CORRUPTION, RestoreCause.USER_REQUESTED):
        check_base(world, before)


def _check_base(world: World, cause: Any) -> None:
    """A restore because of wrong bits begins with right ones: older than each forward of which the
    operator knows that it is in dispute, and with copies that were equal. Nobody can see it if an
    agent writes a wrong copy and dies before its vote."""
    facts = world.arbiter.durable
    base, attempt = facts.manifest, facts.attempt
    _check_trusted(world, base)
    files = None if base is None else world.sealed.get((base.attempt, base.step))
    if base is None or files is None or files == versions(world, base.attempt, base.step):
        world.spoiled = None
        return
    disputed = world.flips and not is_lasting(world) and any(s < base.step for _, s in world.told)
    altered = not world.altered.keys().isdisjoint(world.nodes)
    if cause == RestoreCause.CORRUPTION and (disputed or altered):
        raise Violation(f"the checkpoint of step {base.step} is restored, but it is wrong")
    world.spoiled = attempt, base.step


def _check_trusted(world: World, base: Manifest | None) -> None:
    """No attempt begins from what another one has left behind because of wrong bits."""
    for attempt, step in world.rolled_back.items():
        if base is not None and base.attempt < attempt and base.step > step:
            raise Violation(f"step {base.step} is restored; attempt {attempt} has left it behind")


def check_newest(world: World, operator: Operator) -> None:
    """A new attempt is about to be planned: it begins with the newest checkpoint, if anybody could
    read it."""
    state = operator.arbiter.state
    _check_trusted(world, state.durable.manifest)
    is_slow = world.is_storage_slow and not state.listing.is_here
    facts, is_slow = state.durable, is_slow or world.are_files_away  # a list of another folder
    if world.is_misled or is_slow or facts.voters or facts.attempt in (0, *world.rolled_back):
        return
    base = facts.manifest.step if facts.manifest is not None else 0
    newest = max(_readable(world, facts, range(facts.attempt)), default=0)
    if newest > base:
        raise Violation(f"attempt {facts.attempt} begins from step {base}; {newest} is sealed")


def _readable(world: World, facts: Durable, attempts: Container[int]) -> Iterator[int]:
    """Steps of the sealed checkpoints of these attempts. Files beyond the fork of a later attempt
    count only if that has committed nothing, and did not begin because of wrong bits."""
    final = world.computed | world.rolled_back.keys()
    forks = [f for f in facts.forks if f.attempt in attempts and f.attempt in final]
    for (attempt, step), files in world.sealed.items():
        is_void = any(step > f.step for f in forks if f.attempt > attempt)
        is_bad = files is None or (attempt, step) in facts.bad
        if attempt in attempts and not is_void and not is_bad:
            yield step


def check_suspended(world: World, before: Durable, after: Durable) -> None:
    """A job that could go on saves all its steps before it is suspended. before and after: the
    arbiter's facts; it may have heard several seals between them. A storage that fails, and agents
    suspected by mistake, are excuses, and so is an attempt that is over because of wrong bits."""
    attempt, newest = world.newest
    is_excused = world.is_misled or world.has_storage_failed or world.is_storage_slow
    is_new = before.outcome is None and after.outcome is Outcome.SUSPENDED
    if is_excused or not is_new or attempt != before.attempt or not world.job.save_every:
        return
    if world.job.zones or after.rolled_back > before.attempt:
        return
    known = {(m.attempt, m.step) for m in after.manifests} - set(after.bad)
    saved = max((step for _, step in known), default=0)
    nodes = {a: n for a, n in _in_reach(world, before).items() if a not in world.noticed}
    has_voter = any(a in nodes for a in before.voters)
    if saved > newest or not has_voter or is_too_few(world) or lost_layers(world, before, nodes):
        return
    raise Violation(
        f"suspended: step {newest} is committed, and {saved} are saved: {after.message}"
    )


def _check_lost(world: World, before: Durable, text: str) -> None:
    """A restore is justified in five cases: no step is repeated; a layer is lost with agents that
    are dead, cut off or leaving; a live agent was suspected by mistake; a plan without one end of
    a link that trickles was durable before the others died; or agents that have left by the plan
    are all that is left of it.
    """
    nodes = _in_reach(world, before)
    start = world.arbiter.durable.forks[-1].step
    if start >= min(_needed(nodes, before)) or lost_layers(world, before, nodes):
        return
    gone = world.noticed | (world.trickled - set(before.members))
    if any(a not in nodes for pipeline in before.pipelines for a in pipeline):
        gone |= {a for a, node in nodes.items() if _has_left(node)}
    staying = {a: n for a, n in nodes.items() if a not in gone}
    if not world.is_misled and staying and not lost_layers(world, before, staying):
        raise Violation(f"restored, but no layer is lost: {text}; {_state(nodes, world, before)}")
    world.has_given_up = True


def _has_left(node: Node) -> bool:
    """Whether the agent has ended its last program. The plan has no seat for it, so it exits."""
    executor = node.executor
    return executor.is_over and executor.current is not None and executor.current.op is Op.EXIT


def _check_deadline(world: World, before: Durable) -> None:
    """The only restore that may drop live state: the operator cannot reach it, or its agents are on
    notice (once suspected, they are not asked again)."""
    near = [a for a in before.voters if a in _in_reach(world, before) and a not in world.noticed]
    if near and not world.is_misled:
        raise Violation(f"restored since no voter has reported, but {near} can be reached")
    world.has_given_up |= bool(near)


def _in_reach(world: World, before: Durable) -> dict[AgentId, Node]:
    """Live agents of the present attempt that the operator can reach."""
    return {
        name: node
        for name, node in sorted(world.nodes.items())
        if world.network.reaches(name)
        and name not in world.network.frozen | world.released
        and node.executor.fence.attempt == before.attempt
    }


def lost_layers(world: World, before: Durable, nodes: dict[AgentId, Node]) -> list[int]:
    """Layers without a usable holder, unless a file has exactly the needed version."""
    return min((_lost_at(world, before, nodes, v) for v in _needed(nodes, before)), key=len)


def _lost_at(world: World, before: Durable, nodes: dict[AgentId, Node], version: int) -> list[int]:
    if _has_file(world, before, version):
        return []
    usable = {x for node in nodes.values() for x in _usable(node, nodes, version)}
    return [x for x in range(world.job.num_layers) if x not in usable]


def _needed(nodes: dict[AgentId, Node], before: Durable) -> tuple[int, ...]:
    """The versions from which training may continue: the one after the newest known commit; or, if
    the plan has started from a later one, that one or the one before it."""
    base = before.manifest.step if before.manifest is not None else 0
    newest = max((k for n in nodes.values() for k in n.executor.commits), default=-1)
    needed = max(base, newest + 1)
    is_planned = before.plan.attempt == before.attempt and before.pipelines
    if not is_planned or needed >= before.target:
        return (needed,)
    return (needed, before.target) if 0 < needed == before.target - 1 else (before.target,)


def _has_file(world: World, before: Durable, needed: int) -> bool:
    given_up = set(before.bad) if world.has_storage_failed else set()
    return any(
        m.step == needed
        and (m.attempt, m.step) not in given_up
        and world.sealed.get((m.attempt, m.step)) is not None
        and all(m.step <= f.step for f in before.forks if f.attempt > m.attempt)
        for m in before.manifests
    )


def _usable(node: Node, nodes: dict[AgentId, Node], needed: int) -> list[int]:
    """Layers that the agent holds and that reduced gradients can bring up to the needed version."""
    return [
        layer
        for layer, version in node.executor.versions.items()
        if version <= needed
        and all(_can_update(nodes, layer, step) for step in range(version, needed))
    ]


def _can_update(nodes: dict[AgentId, Node], layer: int, step: int) -> bool:
    """Whether the step's commit is known and the layer's whole reduced gradient is there."""
    is_known = any(step in n.executor.commits for n in nodes.values())
    return is_known and is_whole((i for n in nodes.values() for i in n.executor.held), layer, step)


def _state(nodes: dict[AgentId, Node], world: World, before: Durable) -> str:
    held = ", ".join(f"{a} {dict(n.executor.versions)}" for a, n in nodes.items())
    return f"needed is version {_needed(nodes, before)}; held: {held}; sealed: {[*world.sealed]}"
