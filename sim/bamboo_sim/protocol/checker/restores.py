"""Whether a restore was right: of some layer no usable version is left, neither live nor in a file.

Judged by what the agents of the world really hold at that moment, not by what they have reported.
A file counts once the operator has been told of it. Whoever begins at the needed version loses
nothing, whatever the attempt is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.durable import Durable
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Kind
from bamboo_sim.protocol.checker.verdict import Violation

if TYPE_CHECKING:
    from bamboo_sim.protocol.world.node import Node
    from bamboo_sim.protocol.world.world import World


def check_restore(world: World, before: Durable, text: str) -> None:
    """A Violation if the restore is not justified; before: the facts until then."""
    why = text.partition("; attempt ")[0]
    if why == "the job is resumed":
        if before.outcome is not Outcome.SUSPENDED:
            raise Violation(f"a job that is not suspended is resumed: {before.outcome}")
    elif why.startswith("no voter of the newest plan has reported"):
        _check_deadline(world, before)
    else:
        _check_lost(world, before, text)


def _check_lost(world: World, before: Durable, text: str) -> None:
    """Nothing is repeated that could have been kept; or some layer is lost with those who are dead,
    cut off, or going away; or somebody who lives was taken for dead."""
    nodes = _in_reach(world, before)
    start = world.arbiter.durable.forks[-1].step
    if start >= min(_needed(nodes, before)) or _lost_layers(world, before, nodes):
        return
    staying = {a: n for a, n in nodes.items() if a not in world.noticed}
    if not world.is_misled and staying and not _lost_layers(world, before, staying):
        raise Violation(f"restored, but no layer is lost: {text}; {_told(nodes, world, before)}")
    world.has_given_up = True


def _check_deadline(world: World, before: Durable) -> None:
    """The only restore that may lose what still lives: where the operator cannot reach it, or where
    it will go away (once given up, agents on notice are not asked again)."""
    near = [a for a in before.voters if a in _in_reach(world, before) and a not in world.noticed]
    if near and not world.is_misled:
        raise Violation(f"restored since no voter has reported, but {near} can be reached")
    world.has_given_up |= bool(near)


def _in_reach(world: World, before: Durable) -> dict[AgentId, Node]:
    """Agents that live, that the operator hears, and that are not of an older attempt."""
    return {
        name: node
        for name, node in sorted(world.nodes.items())
        if world.network.reaches(name)
        and name not in world.network.frozen
        and node.executor.fence.attempt == before.attempt
    }


def _lost_layers(world: World, before: Durable, nodes: dict[AgentId, Node]) -> list[int]:
    """Layers without a usable holder, if there is no file of exactly the needed version."""
    return min((_lost_at(world, before, nodes, v) for v in _needed(nodes, before)), key=len)


def _lost_at(world: World, before: Durable, nodes: dict[AgentId, Node], version: int) -> list[int]:
    if _has_file(world, before, version):
        return []
    usable = {x for node in nodes.values() for x in _usable(node, nodes, before, version)}
    return [x for x in range(world.job.num_layers) if x not in usable]


def _needed(nodes: dict[AgentId, Node], before: Durable) -> tuple[int, ...]:
    """The versions to go on with: that after the newest commit that anybody knows; if the plan has
    begun with a later one, that, or one step less is made again."""
    base = before.manifest.step if before.manifest is not None else 0
    newest = max((k for n in nodes.values() for k in n.executor.commits), default=-1)
    needed = max(base, newest + 1)
    is_planned = before.plan.attempt == before.attempt and before.pipelines
    if not is_planned or needed >= before.target:
        return (needed,)
    return (needed, before.target) if 0 < needed == before.target - 1 else (before.target,)


def _has_file(world: World, before: Durable, needed: int) -> bool:
    return any(
        m.step == needed
        and world.sealed.get((m.attempt, m.step)) is not None
        and all(m.step <= f.step for f in before.forks if f.attempt > m.attempt)
        for m in before.manifests
    )


def _usable(node: Node, nodes: dict[AgentId, Node], before: Durable, needed: int) -> list[int]:
    """Layers of which it holds a version that reduced gradients can bring up to the needed one."""
    return [
        layer
        for layer, version in node.executor.versions.items()
        if version <= needed
        and all(_can_update(nodes, before, layer, step) for step in range(version, needed))
    ]


def _can_update(nodes: dict[AgentId, Node], before: Durable, layer: int, step: int) -> bool:
    """Whether the step's commit is known and the layer's whole reduced gradient is there."""
    assert before.batch is not None
    slices = {
        i.part
        for n in nodes.values()
        for i in n.executor.held
        if i.kind is Kind.RED and i.step == step and i.lo <= layer < i.hi
    }
    is_known = any(step in n.executor.commits for n in nodes.values())
    return is_known and len(slices) == before.batch.chunks


def _told(nodes: dict[AgentId, Node], world: World, before: Durable) -> str:
    held = ", ".join(f"{a} {dict(n.executor.versions)}" for a, n in nodes.items())
    return f"needed is version {_needed(nodes, before)}; held: {held}; sealed: {[*world.sealed]}"
