"""The simulated world: operators, agents and network, with one scheduling choice per event.

The clock moves only when no other event is possible, so time-outs never race with events that are
merely not scheduled yet. The arbiter hears of a loss by a message like any other.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import copy
from typing import Any

from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter.events import Disconnected, Lost, Received, Tick
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import COMPUTE
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.effects import ProtocolError
from bamboo_core.protocol.messages import Heartbeat
from bamboo_core.protocol.supervisor import (
    FromOperator,
    PeerClosed,
    PeerHeard,
    SessionClosed,
)
from bamboo_core.protocol.supervisor import Tick as SupervisorTick
from bamboo_sim.protocol.checker.verdict import Violation, check_commit, judge
from bamboo_sim.protocol.world.agents import connect, inform, pass_on, thaw
from bamboo_sim.protocol.world.effects import perform, serve
from bamboo_sim.protocol.world.job import Job
from bamboo_sim.protocol.world.memory_bounds import check_memory
from bamboo_sim.protocol.world.network import OPERATOR, WATCH, Link, Network, choose
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.operators import Operators
from bamboo_sim.protocol.world.symbolic import SymbolError
from bamboo_sim.protocol.world.worker import Sealings

_IDLE_S, _IDLE_ROUNDS = 0.5, 300
_KEEPALIVE_S = 15.0


class FindLeader:
    """An agent's session has ended; it looks for the leader."""


class World:
    """The state of one history."""

    def __init__(self, job: Job, seed: int = 0, policy: str = "random") -> None:
        self.job = job
        self.policy = policy  # how the next event is chosen
        self.rng = random.Random(seed)
        self.now, self.events = 0.0, 0
        self.burst = 0.0  # probability that an agent runs its next instruction at once
        self.outcome = ""
        self.losses, self.causes = 0, 0  # agents lost, and faults injected
        self.has_expelled = self.has_cuts = False
        self.has_given_up = False  # the job was restored while a layer was still held
        self.is_misled = False  # live agents may be suspected
        self.newest = (0, -1)  # attempt and step of the newest commit
        self.trace = 0  # hash of all choices
        self.points = Counter[tuple[str, str, str]]()  # where agents were killed
        self.noticed: frozenset[AgentId] = frozenset()
        self.silent: frozenset[Link] = frozenset()  # sessions of agents that died unseen
        self.nodes: dict[AgentId, Node] = {}  # the live agents
        self.ready: list[AgentId] = []  # agents that have work
        self.sealed: Sealings = {}
        self.dead: set[AgentId] = set()
        self.orphans: Counter[Fence] = Counter()  # commits of superseded plans
        self.network, self.operators = Network(), Operators(job)
        self.to_arbiter(OPERATOR, self.operators.goal)
        for name in job.at_start:
            self.start(name)

    def copy(self) -> World:
        """An independent copy."""
        new = World.__new__(World)
        new.__dict__.update(self.__dict__)
        new.rng = random.Random()
        new.rng.setstate(self.rng.getstate())
        new.network, new.operators = self.network.copy(), self.operators.copy()
        for name in ("ready", "sealed", "dead", "orphans", "points"):
            setattr(new, name, copy(getattr(self, name)))
        new.nodes = {a: n.copy(new.sealed) for a, n in self.nodes.items()}
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The leader's."""
        return self.operators.arbiter

    @property
    def is_over(self) -> bool:
        """Whether the job has ended or is suspended."""
        return self.operators.arbiter.durable.outcome is not None

    @property
    def plan(self) -> Plan | None:
        """The newest durable plan."""
        return self.operators.plan

    # ------------------------------------------------------------ agents

    def start(self, name: AgentId) -> None:
        """Start a pod, which connects."""
        if name in self.nodes or name in self.dead:
            return
        node = Node(name, self.job, self.sealed)
        self.nodes[name] = node
        connect(self, node, self.operators.leader)

    def kill(self, name: AgentId, *, fate: int = 0, is_seen: bool = True) -> None:
        """The process ends; ``fate`` of what it had sent: 0 all comes, 1 nothing, 2 a random half,
        3 + i: number i is lost, with all that it had sent to the same one later.

        is_seen: its sockets are closed, and its end is certain; else it is only silent.
        """
        node = self.nodes.pop(name, None)
        if node is None:
            return
        if name in self.ready:
            self.ready.remove(name)
        self.dead.add(name)
        self.network.forget(name, fate, self.rng)
        if not is_seen:
            self.silent = self.silent | {(name, node.operator)}
            return
        self.network.post(name, node.operator, Disconnected(name))
        for operator in self.operators.arbiters:
            self.network.post(WATCH, operator, Lost(name, True, "process exit seen"))
        for other in self.nodes.values():
            if name in other.watched:
                self.network.post(WATCH, other.name, PeerClosed(name))

    # ------------------------------------------------------------ events

    def step(self) -> bool:
        """Run one event; False if no event is possible."""
        messages, ready = self.network.messages, self.ready
        if not messages and not ready:
            return self._wait()
        self.events += 1
        if self.policy == "random":
            choice = int(self.rng.random() * (len(messages) + len(ready)))
        else:
            choice = choose(self.policy, messages, len(ready), self.rng)
        try:
            if choice < len(messages):
                message = self.network.take(choice)
                self.trace = hash((self.trace, message[0], message[1], _name_of(message[2])))
                self._deliver(*message)
            else:
                name = ready.pop(choice - len(messages))
                self.trace = hash((self.trace, name))
                self._run(name)
        except (ProtocolError, SymbolError, KeyError, AssertionError, ValueError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        return True

    def _wait(self) -> bool:
        """Nothing is in flight: let time pass until something happens; False if nothing does."""
        if self.is_over:
            return False
        for number in range(_IDLE_ROUNDS):
            self.now += _IDLE_S
            self._beat()
            if number * _IDLE_S >= _KEEPALIVE_S:
                self._keep_alive()
            for operator in list(self.operators.arbiters):
                self.to_arbiter(operator, Tick())
            if self.network.messages or self.ready:
                return True
        return self._thaw()

    def _thaw(self) -> bool:
        """Thaw all frozen agents; False if there are none."""
        frozen = sorted(self.network.frozen)
        for name in frozen:
            thaw(self, name)
        return bool(frozen)

    def _beat(self) -> None:
        """Exchange heartbeats, and move sessions from deposed operators to the leader."""
        for name in sorted(self.nodes):
            node = self.nodes.get(name)
            if node is None or name in self.network.frozen:
                continue
            if node.operator != self.operators.leader:
                connect(self, node, self.operators.leader)
            for peer in node.watched:
                is_heard = peer in self.nodes and peer not in self.network.frozen
                if is_heard and self.network.is_whole(name, peer):
                    inform(self, node, PeerHeard(peer))
            inform(self, node, SupervisorTick())
        self._hear_beats()

    def _keep_alive(self) -> None:
        """Close broken sessions at both ends, as gRPC's keepalive does.

        This also covers a session that is broken in one direction, whose heartbeats still arrive.
        """
        for node in self.nodes.values():
            if node.supervisor.is_open and not self.network.reaches(node.name):
                self.network.messages.append((node.operator, node.name, SessionClosed()))
                self.network.messages.append((node.name, node.operator, Disconnected(node.name)))
        for name, operator in sorted(self.silent):
            self.network.messages.append((name, operator, Disconnected(name)))
        self.silent = frozenset()

    def _hear_beats(self) -> None:
        """Deliver heartbeats at once: their order does not matter."""
        messages, self.network.messages = self.network.messages, []
        for source, target, content in messages:
            if isinstance(content, Received) and isinstance(content.message, Heartbeat):
                self.to_arbiter(target, content)
            else:
                self.network.messages.append((source, target, content))

    def finish(self, limit: int = 20000) -> str:
        """Run to the end; the outcome. A Violation if an invariant is broken."""
        end = self.events + limit
        while self.step():
            if self.events > end:
                raise Violation("does not terminate")
        try:
            self.outcome = judge(self)
            return self.outcome
        except (KeyError, AssertionError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error

    def _deliver(self, source: AgentId, target: AgentId, content: Any) -> None:
        if target in self.operators.arbiters:
            serve(self, target, content)
            return
        node = self.nodes.get(target)
        if node is None:
            return
        if type(content) is tuple:
            node.worker.arrive(content[0], content[1])
            pass_on(self, node)
        elif isinstance(content, FindLeader):
            self._find_leader(node)
        else:
            is_told = source != WATCH and not isinstance(content, SessionClosed)
            inform(self, node, FromOperator(content) if is_told else content)

    def _find_leader(self, node: Node) -> None:
        """Connect to the leader, or sometimes first to a deposed operator that still runs."""
        operators = self.operators
        deposed = sorted(operators.deposed())
        if deposed and self.rng.random() < 0.3:
            connect(self, node, deposed[-1])
            self.network.post(WATCH, node.name, FindLeader())
        else:
            connect(self, node, operators.leader)

    def _run(self, name: AgentId) -> None:
        node = self.nodes[name]
        worker = node.worker
        if worker.pending is None:
            worker.save()
        else:
            self._perform(node)
            while self.burst and worker.pending is not None and self.rng.random() < self.burst:
                self._perform(node)
        pass_on(self, node)

    def _perform(self, node: Node) -> None:
        worker, plan = node.worker, self.operators.plan
        assert worker.pending is not None
        op = worker.pending.op
        record = worker.run()
        if record is not None:
            check_commit(self, node, record)
        if op in COMPUTE and plan is not None:
            check_memory(node, plan)

    def to_arbiter(self, operator: AgentId, event: Any) -> None:
        """Pass an event to a running arbiter and perform the effects."""
        arbiter = self.operators.arbiters.get(operator)
        if arbiter is None:
            return
        before = arbiter.durable
        for effect in arbiter.handle(event, self.now):
            perform(self, operator, effect, before)


def _name_of(content: Any) -> Any:
    """The part of a message that a trace distinguishes."""
    return content[0].item if type(content) is tuple else type(content).__name__
