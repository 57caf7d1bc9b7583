"""Faults of the user's code: one agent's, or a sample that nobody can read."""

from __future__ import annotations

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Failure
from bamboo_core.protocol.supervisor import FromWorker
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


def halt(world: World, name: AgentId) -> None:
    """The agent's next forward fails, and it keeps its state. It may be replaced all the same."""
    if name in world.nodes:
        world.losses += 1
        world.has_expelled = True
        world.nodes[name].worker.hiccup = f"{name} cannot read at event {world.events}"


def spoil_a_sample(world: World, *, is_fatal: bool = False) -> None:
    """Nobody can read a sample of one of the next steps. is_fatal: it ends the process."""
    world.losses += 1
    world.has_expelled = True
    world.causes += 3  # two agents meet it, and the job ends with another plan
    world.bad_step = min(world.newest[1] + 2, world.job.steps - 1)
    world.is_sample_fatal = is_fatal
    if is_fatal:  # other cuts and slices computed ahead are other places
        world.causes += 2 * len(world.nodes)
    for node in world.nodes.values():
        node.worker.bad_step = world.bad_step
        node.worker.is_sample_fatal = is_fatal
