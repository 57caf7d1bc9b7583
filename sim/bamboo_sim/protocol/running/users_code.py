"""Faults of the user's code: one agent's, or what fails on all of them."""

from __future__ import annotations

from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Failure
from bamboo_core.protocol.supervisor import FromWorker
from bamboo_sim.protocol.parts.users_code import BadCode
from bamboo_sim.protocol.running.agent_shell import inform
from bamboo_sim.protocol.world.state import World


def fail(world: World, name: AgentId, is_users: bool) -> None:
    """The worker fails."""
    if name in world.nodes:
        world.losses += 1
        code = ExitCode.USER if is_users else ExitCode.FAILED
        failure = Failure("ValueError", "a bad sample", is_users, int(code))
        inform(world, world.nodes[name], FromWorker(failure))


def fail_slices(world: World, name: AgentId, count: int) -> None:
    """So many of the next slices that an agent computes ahead fail. That costs nobody anything."""
    if name in world.nodes:
        world.nodes[name].worker.failing = count


def halt(world: World, name: AgentId, ops: frozenset[Op]) -> None:
    """The agent's next forward or backward fails, and it keeps its state. It may be replaced all
    the same."""
    if name in world.nodes:
        world.losses += 1
        world.has_expelled = True
        worker = world.nodes[name].worker
        worker.hiccup, worker.hiccup_in = f"{name} fails at event {world.events}", ops


def spoil(world: World, ops: frozenset[Op], *, is_fatal: bool = False) -> None:
    """A forward or backward of one of the next steps fails on every agent. is_fatal: it ends the
    process."""
    world.losses += 1
    world.has_expelled = True
    world.causes += 3  # two agents meet it, and the job ends with another plan
    step = min(world.newest[1] + 2, world.job.steps - 1)
    world.bad_code = BadCode(step, ops, is_fatal)
    if is_fatal:  # other cuts and slices computed ahead are other places
        world.causes += 2 * len(world.nodes)
    for node in world.nodes.values():
        node.worker.bad_code = world.bad_code
