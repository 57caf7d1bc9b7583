"""Faults and changes that can be injected: losses, notices, broken links, operators, specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bamboo_core.arbiter.events import Disconnected, Lost
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.supervisor import Departing, SessionClosed
from bamboo_sim.protocol.world.agents import connect, freeze, inform, suspect, thaw
from bamboo_sim.protocol.world.network import OPERATOR, WATCH, Link
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.world import FindLeader, World

Fault = tuple[Any, ...]
"""A key of :data:`INJECTORS` and its arguments, which are plain values."""


def _lose(world: World, name: AgentId, fate: int, *, is_seen: bool) -> None:
    """Kill an agent."""
    if name in world.nodes:
        world.losses += 1
        world.points[point(world, world.nodes[name])] += 1
        world.trace = hash((world.trace, "lost", name, fate))
    world.kill(name, fate=fate, is_seen=is_seen)


def point(world: World, node: Node) -> tuple[str, str, str]:
    """Where an agent is: (running instruction or "wait ...", role, phase)."""
    executor = node.executor
    task = executor.running or executor.current
    what = "nothing" if task is None else str(task.op)
    if executor.running is None and task is not None:
        what = f"wait {what}"
    directive, phase = executor.directive, str(world.arbiter.state.phase_name)
    if phase == "Running" and directive is not None:
        offset = executor.step - directive.target
        phase += " final" if executor.step == directive.last else (" steady" if offset else "")
        if directive.has_continuation and executor.continuation is None:
            phase += " without continuation"
    return what, _role(world, node.name), phase


def _role(world: World, name: AgentId) -> str:
    plan = world.plan
    if plan is not None and name in plan.seats:
        if name == plan.coordinator:
            return "coordinator"
        stage = plan.seats[name].stage
        return "first" if stage == 0 else "last" if stage == len(plan.cut) - 1 else "middle"
    return "leaver" if plan is not None and name in plan.leaving else "newcomer"


def _restart_operator(world: World, *, lossy: bool = False, split: bool = False) -> None:
    """Start a new leader. lossy: some messages of the old one are lost; split: it keeps running."""
    network, operators = world.network, world.operators
    old, new = operators.leader, operators.replace_leader(split=split)
    if not split:
        network.forget_operator(old, lossy=lossy, rng=world.rng)
    network.operators = set(operators.arbiters)
    world.to_arbiter(new, operators.goal)
    for name in sorted(world.nodes):
        network.post(WATCH, name, FindLeader())
    for name in sorted(world.dead):
        network.post(WATCH, new, Lost(name, True, "pod is gone"))


def _notice(world: World, name: AgentId, lead_s: float) -> None:
    """Give an agent notice, by a signal or otherwise: 1 s is too short to hand over, 3 s is not."""
    if name in world.nodes:
        world.noticed = world.noticed | {name}
        is_signal = world.rng.random() < 0.5
        inform(world, world.nodes[name], Departing(lead_s, "spot", is_signal))


def _scale(world: World, pipelines: int) -> None:
    """Change the number of pipelines in the spec."""
    world.operators.goal = replace(world.operators.goal, pipelines=pipelines)
    world.to_arbiter(world.operators.leader, world.operators.goal)


def _drain(world: World, *names: AgentId) -> None:
    """Drain nodes: their agents may leave as soon as they are not needed."""
    goal = world.operators.goal
    world.operators.goal = replace(goal, drained=goal.drained | frozenset(names))
    world.noticed |= frozenset(names)
    world.to_arbiter(world.operators.leader, world.operators.goal)


def _regrid(world: World, pipelines: int, stages: int) -> None:
    """Start a new leader with a spec of other D and P, while agents live."""
    world.operators.regrid(pipelines, stages)
    _restart_operator(world)


def _suspend(world: World) -> None:
    world.operators.goal = replace(world.operators.goal, suspended=True)
    world.to_arbiter(world.operators.leader, world.operators.goal)


def _resume(world: World, pipelines: int, stages: int) -> None:
    """Resume. Another P is used only if no agent and no message of the run before is left."""
    operators = world.operators
    operators.goal = replace(operators.goal, suspended=False)
    if not world.nodes and not world.network.messages:
        operators.regrid(pipelines, stages)
        operators.start_anew()
    world.to_arbiter(operators.leader, operators.goal)


def _corrupt(world: World) -> None:
    """Corrupt the newest checkpoint."""
    whole = [mark for mark, files in world.sealed.items() if files is not None]
    if whole:
        world.sealed[max(whole)] = None


def _cut(world: World, *links: Link) -> None:
    """Break directed links. ``OPERATOR`` stands for the operators."""
    network = world.network
    network.break_links(links)
    world.losses += 1  # agents that are cut off may count as lost
    world.has_cuts = world.is_misled = True
    world.has_expelled |= any(OPERATOR not in link for link in network.cut)
    for name in sorted(world.nodes):
        node = world.nodes.get(name)
        if node is not None:
            suspect(world, node)
            if not network.reaches(name):
                _break_session(world, node)


def _break_session(world: World, node: Node) -> None:
    """Each end sees a closed stream now, or only silence."""
    network = world.network
    if world.rng.random() < 0.5:
        network.messages.append((node.operator, node.name, SessionClosed()))
    if world.rng.random() < 0.5:
        network.messages.append((node.name, node.operator, Disconnected(node.name)))


def _reconnect(world: World, name: AgentId) -> None:
    """Break an agent's session; it opens another one with the same leader."""
    if name in world.nodes:
        connect(world, world.nodes[name], world.operators.leader)


def _suspect(world: World, name: AgentId) -> None:
    """Report an unconfirmed loss to the operator."""
    world.is_misled = True
    world.losses += 1
    world.network.post(WATCH, world.operators.leader, Lost(name, False, "unreachable"))


def _heal(world: World) -> None:
    """Restore all links and reopen broken sessions."""
    lost = [name for name in sorted(world.nodes) if not world.network.reaches(name)]
    world.network.cut = set()
    for name in lost:
        connect(world, world.nodes[name], world.operators.leader)


INJECTORS: dict[str, Callable[..., None]] = {
    "kill": lambda w, name, fate: _lose(w, name, fate, is_seen=True),
    "kill silently": lambda w, name, fate: _lose(w, name, fate, is_seen=False),
    "start": lambda w, name: w.start(name),
    "notice": _notice,
    "scale": _scale,
    "drain": _drain,
    "restart operator": lambda w, lossy: _restart_operator(w, lossy=lossy),
    "second operator": lambda w: _restart_operator(w, split=True),
    "regrid": _regrid,
    "suspend": _suspend,
    "resume": _resume,
    "corrupt": _corrupt,
    "cut": _cut,
    "heal": _heal,
    "reconnect": _reconnect,
    "suspect": _suspect,
    "freeze": freeze,
    "thaw": thaw,
    "duplicate": lambda w: w.network.duplicate(),
}


def island(members: Iterable[AgentId], others: Iterable[AgentId]) -> tuple[Link, ...]:
    """All links between two sides, in both directions; ``OPERATOR`` stands for the operators."""
    both = [(a, b) for a in members for b in others]
    return tuple(sorted({*both, *((b, a) for a, b in both)}))
