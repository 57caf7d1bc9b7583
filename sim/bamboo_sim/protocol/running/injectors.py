"""Faults and changes that can be injected: losses, notices, broken links, operators, specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter_state.events import Lost, Paced
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import BACKWARDS, Op
from bamboo_core.protocol.messages import ActivityKind
from bamboo_core.protocol.supervisor import Departing
from bamboo_sim.protocol.checker.verdict import judge
from bamboo_sim.protocol.parts.job import raised
from bamboo_sim.protocol.parts.messages import FindLeader, Look
from bamboo_sim.protocol.parts.meters import Meter
from bamboo_sim.protocol.parts.network import KEEP_ALIVE_S, OPERATOR, WATCH, Link
from bamboo_sim.protocol.parts.symbolic import Flip
from bamboo_sim.protocol.parts.users_code import FORWARDS, READING
from bamboo_sim.protocol.running import users_code
from bamboo_sim.protocol.running.agent_shell import (
    break_channel,
    connect,
    end_session,
    freeze,
    heal,
    inform,
    pass_on,
    suspect,
    thaw,
)
from bamboo_sim.protocol.running.clock import go_on, stand_still, tick
from bamboo_sim.protocol.running.operator_shell import fail, look, tell
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import LINKS, SESSION, STORAGE, World

Fault = tuple[Any, ...]
"""A key of :data:`INJECTORS` and its arguments, which are plain values."""

_LONG_STEP_S = 30.0


def _lose(world: World, name: AgentId, fate: int, *, is_seen: bool) -> None:
    """Kill an agent."""
    if name in world.nodes:
        world.losses += 1
        world.points[point(world, world.nodes[name])] += 1
        world.trace = hash((world.trace, "lost", name, fate))
    world.kill(name, fate=fate, is_seen=is_seen)
    world.silent_since = world.now


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
    network.operators = set(operators.running)
    look(world, operators.running[new])
    for name in sorted(world.nodes):
        network.post(WATCH, name, FindLeader())
    if world.dead:
        network.post(WATCH, new, Look(frozenset(world.dead)))


def _look(world: World) -> None:
    look(world, world.operators.running[world.operators.leader])


def _notice(world: World, name: AgentId, lead_s: float) -> None:
    """Give an agent notice, by a signal or otherwise: 1 s is too short to hand over, 3 s is not."""
    if name in world.nodes:
        world.noticed = world.noticed | {name}
        is_signal = world.rng.random() < 0.5
        inform(world, world.nodes[name], Departing(lead_s, "spot", is_signal))


def _scale(world: World, pipelines: int) -> None:
    """Change the number of pipelines in the spec."""
    world.operators.goal = replace(world.operators.goal, pipelines=pipelines)
    _look(world)


def _drain(world: World, *names: AgentId) -> None:
    """Drain nodes: their agents may leave as soon as they are not needed."""
    goal = world.operators.goal
    is_over = world.operators.durable.outcome not in (None, Outcome.SUSPENDED)
    if set(names) & world.nodes.keys() - goal.drained and not is_over:
        world.strike("drain")
    world.operators.goal = replace(goal, drained=goal.drained | frozenset(names))
    world.noticed |= frozenset(names)
    _look(world)


def _regrid(world: World, pipelines: int, stages: int) -> None:
    """Start a new leader with a spec of other D and P, while agents live."""
    world.operators.regrid(pipelines, stages)
    _restart_operator(world)


def _suspend(world: World) -> None:
    if not world.operators.goal.suspended and world.operators.durable.outcome is None:
        world.strike("suspend")
    world.operators.goal = replace(world.operators.goal, suspended=True)
    _look(world)


def _resume(world: World, pipelines: int, stages: int) -> None:
    """Resume. Another P is used only if no agent and no message of the run before is left."""
    operators = world.operators
    if operators.goal.suspended and operators.durable.outcome in (None, Outcome.SUSPENDED):
        world.strike("resume")
    operators.goal = replace(operators.goal, suspended=False)
    if not world.nodes and not world.network.messages:
        operators.regrid(pipelines, stages)
    _look(world)


def _raise(world: World, more: int) -> None:
    """More steps of a job that is complete or suspended; no agent of the run is left."""
    operators, outcome = world.operators, world.operators.durable.outcome
    if not world.is_over or outcome not in (Outcome.COMPLETE, Outcome.SUSPENDED):
        return
    judge(world)
    world.strike("raise" if outcome is Outcome.COMPLETE else "raise while suspended")
    for name in sorted(world.nodes):
        world.kill(name)
    world.job = raised(world.job, world.job.steps + more)
    operators.raise_steps(world.job.steps)
    operators.goal = replace(operators.goal, suspended=False)
    _restart_operator(world)


def _corrupt(world: World, *, are_known: bool = False) -> None:
    """Corrupt the newest checkpoint, or all that the operator knows."""
    whole = [mark for mark, files in world.sealed.items() if files is not None]
    known = {(m.attempt, m.step) for m in world.operators.durable.manifests}
    for mark in known.intersection(whole) if are_known else sorted(whole)[-1:]:
        world.sealed[mark] = None


def _send_away(world: World, is_replaced: bool) -> None:
    """The folder is not there for a while; a new one may be made in its place."""
    world.sealed.is_away, world.sealed.is_replaced = True, is_replaced


def _miss(world: World) -> None:
    """A file of the newest checkpoint that the operator knows is not there for a while."""
    known = {(m.attempt, m.step) for m in world.operators.durable.manifests}
    world.sealed.missing |= frozenset(sorted(known & world.sealed.keys())[-1:])


def _bring_back(world: World) -> None:
    """All files are there again."""
    folder = world.sealed
    world.look_at_files()
    folder.is_away, folder.is_replaced, folder.missing = False, False, frozenset()
    for node in list(world.nodes.values()):
        node.worker.retry()
        pass_on(world, node)


def _misread(world: World, name: AgentId, times: int) -> None:
    """The next reads of an agent are wrong, though the files are right."""
    world.sealed.misreads[name] = times


def _cut(world: World, *links: Link) -> None:
    """Break directed links. ``OPERATOR`` stands for the operators."""
    network = world.network
    network.break_links(links)
    _count_cut(world)
    for name in sorted(world.nodes):
        node = world.nodes.get(name)
        if node is not None:
            suspect(world, node)
            if not network.reaches(name):
                _break_session(world, node)


def _count_cut(world: World) -> None:
    world.losses += 1  # agents that are cut off may count as lost
    world.has_cuts = True
    world.mislead()
    world.has_expelled |= any(OPERATOR not in link for link in world.network.cut)
    world.keep_alive_at = min(world.keep_alive_at, world.now + KEEP_ALIVE_S)


def _break_session(world: World, node: Node) -> None:
    """Each end sees a closed stream now, or only silence."""
    agent_sees, operator_sees = (world.rng.random() < 0.5 for _ in range(2))
    end_session(world, node, agent_sees=agent_sees, operator_sees=operator_sees)


def _reconnect(world: World, name: AgentId, kept: int, delay: int = 0) -> None:
    """Break an agent's session; it opens another one with the same leader. The first ``kept`` of
    its words that are under way still come, ``delay`` events later or more."""
    if name in world.nodes:
        old = connect(world, world.nodes[name], world.operators.leader, kept)
        if delay and old is not None:
            world.network.freeze(old)
            world.late = tuple(sorted((*world.late, (world.events + delay, old))))


def _suspect(world: World, name: AgentId) -> None:
    """Report an unconfirmed loss to the operator."""
    world.mislead(name)
    world.losses += 1
    world.network.post(WATCH, world.operators.leader, Lost(name, False, "unreachable"))


def _cut_for(world: World, seconds: float, *links: Link) -> None:
    """Break directed links, and restore all links after a while."""
    _cut(world, *links)
    stand_still(world, LINKS, OPERATOR, seconds)


def _send_off(world: World, seconds: float, name: AgentId) -> None:
    """Close an agent's session at both ends, and let it open no other one for so long."""
    node = world.nodes.get(name)
    if node is None or not world.network.reaches(name):
        return
    world.strike("away for")
    world.network.break_links(island([name], [OPERATOR]))
    world.losses += 1
    world.has_cuts = True
    world.mislead(name)
    end_session(world, node)
    stand_still(world, SESSION, name, seconds)


def _cut_quietly(world: World, *links: Link) -> None:
    """Break directed links as a firewall does: nobody sees a closed connection."""
    world.network.quiet |= frozenset(links)
    world.is_silent = True
    world.network.break_links(links)
    _count_cut(world)


def _mute(world: World, *links: Link) -> None:
    """No payload comes through, but sessions and signs of life do: a dead transport thread."""
    world.network.mute(links)
    world.is_silent = True
    world.losses += 1  # an agent may have to be replaced
    world.mislead()


def _trickle(world: World, *links: Link) -> None:
    """Payloads come through these links a byte at a time, which never ends; sessions and signs of
    life are not late. An agent has to go, and the next one if that was the wrong end."""
    world.network.trickle(links)
    world.trickled |= {end for link in links for end in link}
    world.is_silent = True
    world.losses += 1


def _burst(world: World, seconds: float, *links: Link) -> None:
    """The same, with so much silence between two bytes, while a step takes half a minute: then
    waits count only after a minute of silence."""
    _trickle(world, *links)
    world.network.trickle(links, seconds)
    for operator in world.operators.running.values():
        operator.arbiter.state.ledger.whole_s = _LONG_STEP_S


def _reset(world: World, kept: int, *names: AgentId) -> None:
    """All connections of these agents are reset and opened again at once: what is under way is
    lost, but for ``kept`` last words of each to the operator. One whose link breaks again before
    a commit may count as lost, until it is asked again."""
    world.losses += 1
    world.resets += 1
    for name in names:
        _reconnect(world, name, kept)
    live = [world.nodes[a] for a in names if a in world.nodes]
    pairs = {frozenset((a.name, b)) for a in live for b in a.watched if b in names}
    network = world.network
    network.messages = [
        m for m in network.messages if type(m[2]) is not tuple or frozenset(m[:2]) not in pairs
    ]
    for node in live:
        for other in sorted(set(node.watched) & set(names)):
            if other in world.nodes and node.name in world.nodes:
                break_channel(world, node, other)


def _drop(world: World, number: int) -> None:
    """Lose a message between agents, whose link stays whole. The second one may hold up the next
    plan, too, and the agent at the root of that is replaced."""
    world.network.lose(number)
    world.losses += world.is_silent
    world.is_silent = True


def _pass(world: World, ticks: int) -> None:
    """Let time pass while messages are under way: live agents may count as lost."""
    world.losses += 1
    world.is_raced = True
    for _ in range(ticks):
        world.mislead()  # nothing that was said before has arrived yet
        tick(world)


def _pace(world: World, event_s: float, events: int) -> None:
    """Each of the next events takes time."""
    world.pace_s, world.paced = event_s, events
    world.losses += 1
    world.is_raced = True
    world.mislead()


def _measure(world: World, meter: str, seed: int) -> None:
    """From now on all agents say what their network passes."""
    world.meter = Meter(meter), seed


def _beat_every(world: World, seconds: float) -> None:
    """The fleet has grown or shrunk: agents are told another time between heartbeats."""
    leader = world.operators.running[world.operators.leader]
    timing = world.job.arbiter_job.timing
    if seconds != (world.beat_s or timing.heartbeat_s):
        world.strike("beat every")
    world.beat_s, world.silent_since = seconds, world.now
    tell(world, leader, Paced(timing.at_pace(seconds)))


def _stand_still(world: World, kind: str, name: AgentId, seconds: float) -> None:
    """Something stands still for a while. The leader's name is ``OPERATOR`` here."""
    agent, node = name, world.nodes.get(name)
    if kind in ("machine", "lease", "inbox") and name == OPERATOR:
        agent = world.operators.leader
    world.has_paused |= kind != STORAGE
    if kind == "lease":
        world.operators.running[agent].is_leading = False
    elif kind == "machine":
        world.network.freeze(agent)
    elif kind == "inbox":
        world.network.stop_reading(agent)
    elif kind == "supervisor" and node is not None:
        node.unheard = node.unheard or []
    elif kind == "worker" and node is not None:
        if node.doing().kind is ActivityKind.LOADING:
            return  # it cannot be told from a slow storage, for which there is no limit
        node.backlog = node.backlog or []
    if node is not None:
        world.losses += 1  # it counts as lost if this takes long
        world.mislead(name)
        if kind != "supervisor":
            world.is_raced = True  # its work is late
            world.ready = [a for a in world.ready if a != agent]
    stand_still(world, kind, agent, seconds)


def _fill(world: World, seconds: float) -> None:
    """The disk of the checkpoints is full for so long: what is written fails, what is read does
    not."""
    world.still = {**world.still, ("space", OPERATOR): world.now + seconds}


def _start_stranger(world: Any, name: AgentId) -> None:
    """Start an agent on another kind of processor, which has to be refused."""
    is_new = name not in world.nodes
    world.start(name)
    if is_new and name in world.nodes:
        world.nodes[name].worker.products = "others"


def _flip(world: World, name: AgentId, op: str, lasts: bool) -> None:
    """The next F, R, FOLD or VOTE of an agent is wrong; an agent may have to be replaced."""
    node = world.nodes.get(name)
    if node is not None and node.worker.backend.flip is None:
        world.losses += 1
        node.worker.backend.flip = Flip(Op[op], lasts)


def _alter(world: World, name: AgentId, layer: int) -> None:
    """Change a layer in an agent's memory; the agent may have to be replaced."""
    node = world.nodes.get(name)
    if node is not None and node.worker.backend.alter(layer):
        world.losses += 1
        world.strike("alter")
        world.altered = {**world.altered, name: node.executor.fence.attempt}


def _set(world: World, name: str, value: Any) -> None:
    assert hasattr(world, name), name
    setattr(world, name, value)


def _fail_writes(world: World, count: int, are_answers_lost: bool) -> None:
    """So many writes of facts fail, or only their answers are lost."""
    world.write_faults, world.are_answers_lost = count, are_answers_lost


def _defect(world: World) -> None:
    """A defect of the leader's shell."""
    fail(world, world.operators.running[world.operators.leader])


INJECTORS: dict[str, Callable[..., None]] = {
    "kill": lambda w, name, fate: _lose(w, name, fate, is_seen=True),
    "kill silently": lambda w, name, fate: _lose(w, name, fate, is_seen=False),
    "fail": users_code.fail,
    "fail slices": users_code.fail_slices,
    "halt": lambda w, name: users_code.halt(w, name, FORWARDS),
    "halt backward": lambda w, name: users_code.halt(w, name, BACKWARDS),
    "bad sample": lambda w: users_code.spoil(w, READING),
    "bad backward": lambda w: users_code.spoil(w, BACKWARDS),
    "fatal sample": lambda w: users_code.spoil(w, READING, is_fatal=True),
    "flip": _flip,
    "alter": _alter,
    "start": lambda w, name: w.start(name),
    "start stranger": _start_stranger,
    "notice": _notice,
    "scale": _scale,
    "drain": _drain,
    "restart operator": lambda w, lossy: _restart_operator(w, lossy=lossy),
    "second operator": lambda w: _restart_operator(w, split=True),
    "defect": _defect,
    "fail writes": _fail_writes,
    "fail storage": lambda w, count: _set(w, "storage_faults", count),
    "full disk": _fill,
    "fail planner": lambda w, count: _set(w, "planner_faults", count),
    "lose continuation": lambda w: _set(w, "planner_losses", 1),
    "regrid": _regrid,
    "suspend": _suspend,
    "resume": _resume,
    "raise": _raise,
    "corrupt": _corrupt,
    "corrupt known": lambda w: _corrupt(w, are_known=True),
    "folder away": _send_away,
    "file away": _miss,
    "files back": _bring_back,
    "misread": _misread,
    "cut": _cut,
    "cut quietly": _cut_quietly,
    "mute": _mute,
    "trickle": _trickle,
    "burst": _burst,
    "cut for": _cut_for,
    "away for": _send_off,
    "heal": heal,
    "reset": _reset,
    "reconnect": _reconnect,
    "drop": _drop,
    "suspect": _suspect,
    "freeze": freeze,
    "thaw": thaw,
    "stand still": _stand_still,
    "go on": go_on,
    "pass": _pass,
    "pace": _pace,
    "beat every": _beat_every,
    "measure": _measure,
    "slow down": lambda w, *names: _set(w, "slow", frozenset(names)),
    "duplicate": lambda w: w.network.duplicate(),
}


def island(members: Iterable[AgentId], others: Iterable[AgentId]) -> tuple[Link, ...]:
    """All links between two sides, in both directions; ``OPERATOR`` stands for the operators."""
    both = [(a, b) for a in members for b in others]
    return tuple(sorted({*both, *((b, a) for a, b in both)}))
