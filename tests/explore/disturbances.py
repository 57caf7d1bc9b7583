"""What befalls a world: losses, notices, broken links, another operator, another goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests.explore.network import OPERATOR, WATCH, Link
from tests.explore.node import Node
from tests.explore.world import Reconnect, World

from bamboo_core.arbitration import Lost
from bamboo_core.ids import AgentId
from bamboo_core.messages import Notice

Fault = tuple[Any, ...]
"""A name in :data:`DISTURBANCES` and its arguments; plain values only."""


def _lose(world: World, name: AgentId, fate: int, *, confirmed: bool) -> None:
    """An agent's death that nobody in the protocol has asked for."""
    if name in world.nodes:
        world.losses += 1
        world.points[point(world, world.nodes[name])] += 1
        world.trace = hash((world.trace, "lost", name, fate))
    world.kill(name, fate=fate, confirmed=confirmed)


def point(world: World, node: Node) -> tuple[str, str, str]:
    """Where an agent stands: (instruction that runs, or "wait ..."; role; phase)."""
    executor = node.executor
    task = executor.running or executor.current
    what = "nothing" if task is None else str(task.op)
    if executor.running is None and task is not None:
        what = f"wait {what}"
    directive, phase = executor.directive, str(world.arbiter.status().phase)
    if phase == "Running" and directive is not None:
        offset = executor.step - directive.target
        phase += " final" if executor.step == directive.last else (" steady" if offset else "")
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
    """A new leader; lossy: some of the old one's messages never left; split: it goes on, too."""
    network, operators = world.network, world.operators
    old, new = operators.leader, operators.replace_leader(split=split)
    if not split:
        network.forget_operator(old, lossy=lossy, rng=world.rng)
    network.operators = set(operators.arbiters)
    world.to_arbiter(new, operators.goal)
    for name in sorted(world.nodes):
        network.post(WATCH, name, Reconnect())
    for name in sorted(world.dead):
        network.post(WATCH, new, Lost(name, True, "pod is gone"))


def _notice(world: World, name: AgentId, lead_s: float) -> None:
    """It learns that it will go away: 1 s is too short for a hand-over, 3 s is not."""
    if name in world.nodes:
        world.noticed = world.noticed | {name}
        world.tell(world.nodes[name], Notice(lead_s, "spot"))


def _want(world: World, pipelines: int) -> None:
    """The user asks for another number of pipelines."""
    world.operators.goal = replace(world.operators.goal, pipelines=pipelines)
    world.to_arbiter(world.operators.leader, world.operators.goal)


def _cut(world: World, *links: Link) -> None:
    """Directed links are lost. The operator's name in them is ``OPERATOR``."""
    world.network.break_links(links)
    world.losses += 1  # whoever is cut off may be given up
    world.has_cuts = True
    world.has_expelled |= any(OPERATOR not in link for link in world.network.cut)
    for name in sorted(world.nodes):
        world.suspect(world.nodes[name])


def _doubt(world: World, name: AgentId) -> None:
    """The operator hears of a loss that nobody can confirm."""
    world.losses += 1
    world.network.post(WATCH, world.operators.leader, Lost(name, False, "unreachable"))


def _heal(world: World) -> None:
    """All links work again; broken sessions are opened anew."""
    cut = world.network.cut
    lost = {a for link in cut if OPERATOR in link for a in link} & world.nodes.keys()
    world.network.cut = set()
    for name in sorted(lost):
        world.connect(world.nodes[name])


DISTURBANCES: dict[str, Callable[..., None]] = {
    "kill": lambda w, name, fate: _lose(w, name, fate, confirmed=True),
    "vanish": lambda w, name, fate: _lose(w, name, fate, confirmed=False),
    "start": lambda w, name: w.start(name),
    "notice": _notice,
    "want": _want,
    "restart operator": lambda w, lossy: _restart_operator(w, lossy=lossy),
    "second operator": lambda w: _restart_operator(w, split=True),
    "cut": _cut,
    "heal": _heal,
    "doubt": _doubt,
    "duplicate": lambda w: w.network.duplicate(),
}


def island(members: Iterable[AgentId], others: Iterable[AgentId]) -> tuple[Link, ...]:
    """All links between two sides, both ways; the operator is ``OPERATOR``."""
    both = [(a, b) for a in members for b in others]
    return tuple(sorted({*both, *((b, a) for a, b in both)}))
