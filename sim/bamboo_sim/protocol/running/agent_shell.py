"""The simulated shells: perform the effects of Supervisor and Executor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.events import Received
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause, Hello, Progress, Suspicion
from bamboo_core.protocol.supervisor import (
    CloseSession,
    ConnectLiveness,
    Departing,
    Event,
    Exit,
    FromWorker,
    KillWorker,
    PeerClosed,
    PeerHeard,
    Progressed,
    SendOperator,
    SessionClosed,
    SessionOpened,
    SpawnWorker,
    Tick,
    ToWorker,
    WorkerExited,
)
from bamboo_sim.protocol.checker.claims import check_killed_worker
from bamboo_sim.protocol.checker.last_write import note_crash, note_refused
from bamboo_sim.protocol.parts.messages import Closed, Ended, Opened
from bamboo_sim.protocol.parts.meters import measured
from bamboo_sim.protocol.parts.network import OPERATOR, WATCH
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World

_PASSING = (Tick, PeerHeard, Progressed)  # a supervisor that stands still misses these


def connect(world: World, node: Node, operator: AgentId, kept: int = 0) -> AgentId | None:
    """Open a new session. Of what the agent said in the old one, the first ``kept`` messages that
    are under way still come, and so does its end; what was sent to the agent is lost.

    Returns the name under which the last words of the old one come.
    """
    before, stream, old = node.operator, node.stream, None
    node.operator, node.stream = operator, stream + 1
    if stream:
        old = world.network.end_session(node.name, before, stream, kept)
        world.network.post(old, before, Ended(node.name, stream))
        inform(world, node, SessionClosed())
    if world.network.reaches(node.name):
        inform(world, node, SessionOpened())
    return old


def end_session(
    world: World, node: Node, *, agent_sees: bool = True, operator_sees: bool = True
) -> None:
    """An agent's stream ends though its link may be cut; each end sees that, or only silence."""
    messages = world.network.messages
    if agent_sees:
        messages.append((node.operator, node.name, Closed(node.stream)))
    if operator_sees:
        messages.append((node.name, node.operator, Ended(node.name, node.stream)))


def _exit(world: World, node: Node, event: Event) -> None:
    """The supervisor exits, and its worker ends. What it holds is kept for the verdict if the job
    is over."""
    if isinstance(event, Departing | Tick):
        world.losses += 1  # not requested by the operator
    if world.operators.durable.outcome in (None, Outcome.SUSPENDED):
        world.kill(node.name)
    else:
        node.backlog = []
        world.ready = [a for a in world.ready if a != node.name]


def inform(world: World, node: Node, event: Any) -> None:
    """Pass an event to an agent's supervisor and perform the effects."""
    if node.unheard is not None:
        if not isinstance(event, _PASSING):
            node.unheard.append(event)
        return
    for effect in node.handle(event, world.now):
        match effect:
            case SendOperator(Hello() as hello):
                world.network.post(node.name, node.operator, Opened(hello, node.stream))
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
                check_killed_worker(world, node)
                inform(world, node, WorkerExited(128 + 9, "killed"))
            case Exit():
                _exit(world, node, event)


def _instruct(world: World, node: Node, message: Any) -> None:
    executor = node.executor
    installed, rest = executor.installed, executor.continuation
    node.reach_worker(message)
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
        is_seen = OPERATOR not in (a, b) and (a, b) not in world.network.quiet
        if node.name in (a, b) and is_seen:
            break_channel(world, node, b if a == node.name else a)


def break_channel(world: World, node: Node, peer: AgentId) -> None:
    """The worker's connection to a peer is broken until the next fence, and it says so."""
    fence = node.executor.fence
    world.network.broken[node.name, peer] = fence
    if node.backlog is None:
        inform(world, node, FromWorker(Suspicion(peer, Cause.CHANNEL_BROKEN, fence)))


def rejoin(world: World, node: Node) -> None:
    """After it has stood still: its stream may have ended meanwhile."""
    operator = world.operators.running.get(node.operator)
    is_open = operator is not None and operator.sessions.get(node.name) == node.stream
    if node.name in world.nodes and not is_open:
        connect(world, node, world.operators.leader)


def freeze(world: World, name: AgentId) -> None:
    """Freeze the agent's machine; others cannot tell that from a death."""
    if name in world.nodes:
        world.losses += 1
        world.is_raced = True
        world.mislead(name)
        world.network.freeze(name)
        world.ready = [a for a in world.ready if a != name]


def thaw(world: World, name: AgentId) -> None:
    """Continue a frozen agent, which now receives what was sent to it."""
    world.network.thaw(name)
    if name in world.nodes:
        pass_on(world, world.nodes[name])


def heal(world: World) -> None:
    """Restore all links and reopen broken sessions."""
    network = world.network
    lost = [name for name in sorted(world.nodes) if not network.reaches(name)]
    network.cut, network.quiet, network.muted = set(), frozenset(), frozenset()
    network.flow()
    for name in lost:
        connect(world, world.nodes[name], world.operators.leader)


def take_back(world: World, name: AgentId) -> None:
    """Restore the link between an agent and the operators; it opens a session."""
    network, is_lost = world.network, not world.network.reaches(name)
    network.cut -= {(name, OPERATOR), (OPERATOR, name)}
    if is_lost and name in world.nodes:
        connect(world, world.nodes[name], world.operators.leader)


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
            note_refused(world, node, message)
            note_crash(world, node, message)
            inform(world, node, FromWorker(_with_goodput(world, name, message)))
    if name in world.nodes and name not in world.network.frozen and node.backlog is None:
        is_busy = worker.can_run or (worker.is_busy and is_storage_up(world))
        if is_busy and name not in world.ready:
            world.ready.append(name)


def _with_goodput(world: World, name: AgentId, message: Any) -> Any:
    """The end of a step comes with what the agent's transport has measured."""
    if world.meter is None or not isinstance(message, Progress):
        return message
    goodput = measured(*world.meter, name, message.commit.step)
    return replace(message, goodput=goodput)


def is_full(world: World) -> bool:
    """Whether the checkpoint storage takes nothing more."""
    return ("space", OPERATOR) in world.still


def is_storage_up(world: World) -> bool:
    """Whether the checkpoint storage answers."""
    return not world.still or ("storage", OPERATOR) not in world.still
