"""The simulated shells: perform the effects of Supervisor and Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.events import Connected, Disconnected, Received
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause, Hello, Suspicion
from bamboo_core.protocol.supervisor import (
    CloseSession,
    ConnectLiveness,
    Departing,
    Event,
    Exit,
    FromWorker,
    KillWorker,
    PeerClosed,
    SendOperator,
    SessionClosed,
    SessionOpened,
    SpawnWorker,
    Tick,
    ToWorker,
    WorkerExited,
)
from bamboo_sim.protocol.checker.verdict import Violation
from bamboo_sim.protocol.world.network import OPERATOR, WATCH
from bamboo_sim.protocol.world.node import Node

if TYPE_CHECKING:
    from bamboo_sim.protocol.world.world import World


def connect(world: World, node: Node, operator: AgentId) -> None:
    """Open a new session. Messages in flight on the old one are lost, its end included."""
    before, node.operator = node.operator, operator
    world.network.end_session(node.name, before)
    if before != operator:
        world.to_arbiter(before, Disconnected(node.name))
    inform(world, node, SessionClosed())
    if world.network.reaches(node.name):
        inform(world, node, SessionOpened())


def _exit(world: World, node: Node, event: Event) -> None:
    """The supervisor exits. Its state is kept for the verdict only if the job is over."""
    if isinstance(event, Departing | Tick):
        world.losses += 1  # not requested by the operator
    if world.arbiter.durable.outcome in (None, Outcome.SUSPENDED):
        world.kill(node.name)


def inform(world: World, node: Node, event: Any) -> None:
    """Pass an event to an agent's supervisor and perform the effects."""
    for effect in node.handle(event, world.now):
        match effect:
            case SendOperator(Hello() as hello):
                connected = Connected(hello, node.name.encode())
                world.network.post(node.name, node.operator, connected)
            case SendOperator(message):
                world.network.post(node.name, node.operator, Received(node.name, message))
            case ToWorker(message):
                _instruct(world, node, message)
            case SpawnWorker():
                inform(world, node, FromWorker(node.worker.ready()))
            case ConnectLiveness(peers):
                _watch(world, node, [peer.agent for peer in peers])
            case CloseSession():
                connect(world, node, world.operators.leader)
            case KillWorker():
                inform(world, node, WorkerExited(-9, "killed"))
            case Exit():
                _exit(world, node, event)


def _instruct(world: World, node: Node, message: Any) -> None:
    executor = node.executor
    installed, rest = executor.installed, executor.continuation
    node.worker.hear(message)
    if executor.installed != installed:
        world.operators.seats.installed(node.name, message)
        if world.network.cut:
            suspect(world, node)
    if executor.continuation is not None and executor.continuation is not rest:
        world.operators.seats.proceeded(node.name, executor.directive, executor.continuation)
    pass_on(world, node)


def _watch(world: World, node: Node, peers: list[AgentId]) -> None:
    """Open liveness sockets; those to dead agents are refused at once."""
    node.watched = tuple(peers)
    for peer in peers:
        if peer in world.dead:
            world.network.post(WATCH, node.name, PeerClosed(peer))


def suspect(world: World, node: Node) -> None:
    """A broken channel is reported once per epoch."""
    for a, b in sorted(world.network.cut):
        if node.name in (a, b) and OPERATOR not in (a, b):
            other = b if a == node.name else a
            broken = Suspicion(other, Cause.CHANNEL_BROKEN, node.executor.fence)
            inform(world, node, FromWorker(broken))


def freeze(world: World, name: AgentId) -> None:
    """Freeze the agent's machine; others cannot tell that from a death."""
    if name in world.nodes:
        world.losses += 1
        world.is_misled = True
        world.network.freeze(name)
        world.ready = [a for a in world.ready if a != name]


def thaw(world: World, name: AgentId) -> None:
    """Continue a frozen agent, which now receives what was sent to it."""
    world.network.thaw(name)
    if name in world.nodes:
        pass_on(world, world.nodes[name])


def pass_on(world: World, node: Node) -> None:
    """Pass on the worker's messages, and mark it ready if it has work."""
    worker, name = node.worker, node.name
    if worker.ended != worker.executor.ended and worker.settle():
        raise Violation(f"the plan counts as entered, but {name} lacks a layer")
    if worker.sent:
        for peer, message in worker.sent:
            world.network.post(name, peer, message)
        worker.sent.clear()
    if worker.said:
        said, worker.said = worker.said, []
        for message in said:
            inform(world, node, FromWorker(message))
    is_able = name in world.nodes and name not in world.network.frozen
    if worker.is_busy and name not in world.ready and is_able:
        world.ready.append(name)
