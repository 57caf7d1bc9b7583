"""Time: what happens by itself while it passes, whether or not messages are under way.

Time passes when nothing else can happen, and as an event of its own. Then time-outs race with
whatever is under way.
"""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.arbiter_state.events import Received, Tick
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Heartbeat
from bamboo_core.protocol.supervisor import PeerHeard, Progressed
from bamboo_core.protocol.supervisor import Tick as SupervisorTick
from bamboo_sim.protocol.checker.asking import check_idle
from bamboo_sim.protocol.checker.claims import check_said, check_silence, check_trickle
from bamboo_sim.protocol.parts.messages import Ended
from bamboo_sim.protocol.parts.network import Message
from bamboo_sim.protocol.running.agent_shell import (
    connect,
    end_session,
    heal,
    inform,
    pass_on,
    rejoin,
    take_back,
    thaw,
)
from bamboo_sim.protocol.running.operator_shell import pass_time, serve, tell
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import LINKS, SESSION, World

TICK_S = 0.5
_IDLE_TICKS = 300
_SOON_S = 120.0
_LONG_TICKS = 900  # where an instruction may have to be found overdue
_SAID_TICKS = 260  # after 130 s without an event the job must say what it waits for


def wait(world: World) -> bool:
    """Nothing is under way: let time pass until something happens; False if nothing does."""
    if world.is_over:
        return False
    is_hung = any(node.backlog is not None for node in world.nodes.values())
    number, most = 0, _LONG_TICKS if is_hung else _IDLE_TICKS
    while number < most:
        tick(world)
        if world.network.messages or world.ready:
            return True
        if number == _SAID_TICKS:
            check_said(world)
        number += not _comes_an_operator_back(world)  # its deadlines wait until then
    return _thaw_all(world)


def _comes_an_operator_back(world: World) -> bool:
    """Whether an operator stands still that will go on soon. Some are away for good."""
    soon = world.now + _SOON_S
    return any(
        name in world.operators.running and until <= soon
        for (_, name), until in world.still.items()
    )


def tick(world: World) -> None:
    """Let ``TICK_S`` pass for all that do not stand still."""
    world.now += TICK_S
    world.look_what_is_wrong()
    _continue(world)
    _beat(world)
    if world.now >= world.keep_alive_at:
        _keep_alive(world)
    for name in world.operators.deposed():  # its lease is over
        world.operators.running[name].is_leading = False
    for operator in list(world.operators.running.values()):
        if operator.name not in world.network.frozen:
            if not world.network.is_unread(operator.name):
                operator.hearing.caught_up(world.now)
            pass_time(world, operator)
            tell(world, operator, Tick())
    check_silence(world)
    check_trickle(world)
    check_idle(world, world.operators.running[world.operators.leader])


def stand_still(world: World, kind: str, name: AgentId, seconds: float) -> None:
    """Note that something stands still, and until when."""
    until = world.now + seconds
    world.still = {**world.still, (kind, name): max(until, world.still.get((kind, name), until))}


def _continue(world: World) -> None:
    """Let go on what has stood still for its time."""
    for key in [k for k, until in world.still.items() if world.now >= until]:
        go_on(world, *key)


def go_on(world: World, kind: str, name: AgentId) -> None:
    """Let it go on, if it stands still."""
    if (kind, name) not in world.still:
        return
    world.still = {k: until for k, until in world.still.items() if k != (kind, name)}
    node = world.nodes.get(name)
    if kind == "machine":
        thaw(world, name)
    elif kind == "storage":
        for other in list(world.nodes.values()):
            pass_on(world, other)
    elif kind == LINKS:
        heal(world)
    elif kind == SESSION:
        take_back(world, name)
    elif kind == "inbox":
        world.network.read_again(name)
    elif kind == "lease" and name == world.operators.leader:
        world.operators.running[name].is_leading = True
    elif kind == "supervisor" and node is not None:
        events, node.unheard = node.unheard, None
        if world.rng.random() < 0.5:  # it notices first that time has passed
            inform(world, node, SupervisorTick())
        for event in events or ():
            inform(world, node, event)
        rejoin(world, node)
    elif kind == "worker" and node is not None:
        events, node.backlog = node.backlog, None
        for event in events or ():
            node.reach_worker(event)
        pass_on(world, node)


def _thaw_all(world: World) -> bool:
    """Thaw all that is frozen without a limit; False if nothing is."""
    frozen = sorted(world.network.frozen)
    for name in frozen:
        thaw(world, name)
    return bool(frozen)


# ---------------------------------------------------------------- sessions and signs of life


def _beat(world: World) -> None:
    """Exchange signs of life, and open sessions where none is open with the leader."""
    frozen = world.network.frozen
    for name in sorted(world.nodes):
        node = world.nodes.get(name)
        if node is None or name in frozen or node.unheard is not None:
            continue
        is_lost = not node.supervisor.is_open and world.network.reaches(name)
        if is_lost or node.operator != world.operators.leader:
            connect(world, node, world.operators.leader)
        for peer in node.watched:
            if _is_heard(world, node, peer):
                inform(world, node, PeerHeard(peer))
        inform(world, node, _doing(world, node))
        inform(world, node, SupervisorTick())
    _hear_beats(world)


def _doing(world: World, node: Node) -> Progressed:
    """The worker's progress. Bytes of what crawls to it have come."""
    doing = node.doing()
    if doing.peer is None or not world.network.crawls(doing.peer, node.name):
        return doing
    moved = (doing.received or 0) + int(world.now / world.network.burst_s)
    return replace(doing, received=moved, is_coming=True)


def _is_heard(world: World, node: Node, peer: AgentId) -> bool:
    other = world.nodes.get(peer)
    is_alive = other is not None and other.unheard is None and peer not in world.network.frozen
    return is_alive and (peer, node.name) not in world.network.cut


def _keep_alive(world: World) -> None:
    """Close broken sessions at both ends, as gRPC's keepalive does.

    This also covers a session that is broken in one direction, whose heartbeats still arrive.
    """
    for node in world.nodes.values():
        if node.supervisor.is_open and not world.network.reaches(node.name):
            end_session(world, node)
    for name, operator, stream in sorted(world.silent):
        world.network.messages.append((name, operator, Ended(name, stream)))
    world.silent = frozenset()


def _hear_beats(world: World) -> None:
    """Deliver heartbeats at once, unless earlier messages of their stream are under way."""
    messages, world.network.messages = world.network.messages, []
    left: list[Message] = []
    busy: set[tuple[AgentId, AgentId]] = set()
    for message in messages:
        source, target, content = message
        is_beat = isinstance(content, Received) and isinstance(content.message, Heartbeat)
        if is_beat and (source, target) not in busy:
            serve(world, target, content)
        else:
            busy.add((source, target))
            left.append(message)
    world.network.messages = left + world.network.messages
