"""The explored world: operators, agents, network; every event is one choice.

The clock moves only when nothing else can happen, so that time-outs never race with what merely
has not been scheduled yet; a loss is told to the arbiter by a message like any other.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import copy
from typing import Any

from tests.explore.job import Job
from tests.explore.network import OPERATOR, STORE, WATCH, Network, choose
from tests.explore.node import Node
from tests.explore.operators import Operators
from tests.explore.verdict import Violation, check_commit, check_fatal, judge

from bamboo_core.arbiter import Arbiter
from bamboo_core.arbitration import (
    ComputePlan,
    Connected,
    Disconnected,
    Dismiss,
    Fatal,
    Lost,
    Persist,
    Persisted,
    Phase,
    Planned,
    Received,
    Send,
    Tick,
)
from bamboo_core.effects import ProtocolError
from bamboo_core.ids import AgentId, Fence
from bamboo_core.messages import Cause, Finished, Heartbeat, Left, Suspicion
from bamboo_core.plan import Plan
from bamboo_core.symbolic import SymbolError

_IDLE_S, _IDLE_ROUNDS = 0.5, 300


class Reconnect:
    """An agent finds the new leader."""


class World:
    """One history as far as it has come.

    policy: how the next event is chosen; burst: probability that an agent goes on with its next
    instruction before anything else happens; ready: agents that have something to do; sealed:
    (attempt, step) -> symbols of a checkpoint.
    """

    def __init__(self, job: Job, seed: int = 0, policy: str = "random") -> None:
        self.job, self.policy = job, policy
        self.rng = random.Random(seed)
        self.now, self.events, self.burst = 0.0, 0, 0.0
        self.outcome, self.losses = "", 0
        self.has_expelled = self.has_cuts = False
        self.trace, self.points = 0, Counter[tuple[str, str, str]]()
        self.noticed: frozenset[AgentId] = frozenset()
        self.nodes: dict[AgentId, Node] = {}
        self.ready: list[AgentId] = []
        self.sealed: dict[tuple[int, int], tuple[int, ...]] = {}
        self.dead: set[AgentId] = set()
        self.orphans: Counter[Fence] = Counter()
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
        new.nodes = {a: n.copy() for a, n in self.nodes.items()}
        new.network, new.operators = self.network.copy(), self.operators.copy()
        for name in ("ready", "sealed", "dead", "orphans", "points"):
            setattr(new, name, copy(getattr(self, name)))
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The one in force."""
        return self.operators.arbiter

    @property
    def plan(self) -> Plan | None:
        """The newest durable one."""
        return self.operators.plan

    # ------------------------------------------------------------ agents come and go

    def start(self, name: AgentId) -> None:
        """A pod comes up and connects."""
        if name in self.nodes or name in self.dead:
            return
        node = Node(name, self.job.num_layers, salted=self.job.salted)
        self.nodes[name] = node
        self.connect(node)

    def connect(self, node: Node) -> None:
        """A new session with the operator in force; the old one's messages are lost."""
        leader, network = self.operators.leader, self.network
        before, node.operator = node.operator, leader
        network.end_session(node.name, before)
        network.post(node.name, leader, Connected(node.hello(), node.name.encode()))
        said = [node.ready(), *node.kept, *([node.end] if node.end is not None else [])]
        if network.reaches(node.name):
            node.kept = []
        for message in said:
            network.post(node.name, leader, Received(node.name, message))

    def kill(self, name: AgentId, *, fate: int = 0, confirmed: bool = True) -> None:
        """SIGKILL; ``fate`` of its messages in flight: 0 delivered, 1 lost, 2 half of them."""
        if self.nodes.pop(name, None) is None:
            return
        if name in self.ready:
            self.ready.remove(name)
        self.dead.add(name)
        self.network.forget(name, fate, self.rng)
        for operator in self.operators.arbiters:
            self.network.post(WATCH, operator, Lost(name, confirmed, "process exit seen"))

    def _release(self, node: Node) -> None:
        """The supervisor ends: state is kept for the judge only if the job is over."""
        if self.arbiter.status().phase is not Phase.OVER:
            self.kill(node.name)

    def tell(self, node: Node, message: Any) -> None:
        """As the supervisor does it: what ends the job is said again in every session."""
        if isinstance(message, Finished | Left):
            node.end = message
        if not self.network.reaches(node.name):
            node.kept.append(message)
        self.network.post(node.name, node.operator, Received(node.name, message))

    def suspect(self, node: Node) -> None:
        """A broken channel is reported once per epoch."""
        for a, b in sorted(self.network.cut):
            if node.name in (a, b) and OPERATOR not in (a, b):
                other = b if a == node.name else a
                self.tell(node, Suspicion(other, Cause.CHANNEL_BROKEN, node.executor.fence))

    # ------------------------------------------------------------ events

    def step(self) -> bool:
        """One event; False if nothing can happen any more."""
        messages, ready = self.network.messages, self.ready
        if not messages and not ready:
            return self._wait()
        self.events += 1
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
        """Nothing is under way: time passes until something happens, if ever."""
        if self.arbiter.status().phase is Phase.OVER:
            return False
        for _ in range(_IDLE_ROUNDS):
            self.now += _IDLE_S
            for name in sorted(self.nodes):
                if self.network.reaches(name):
                    operator = self.nodes[name].operator
                    self.to_arbiter(operator, Received(name, Heartbeat(0, 0, 0)))
            for operator in list(self.operators.arbiters):
                self.to_arbiter(operator, Tick())
            if self.network.messages or self.ready:
                return True
        return False

    def finish(self, limit: int = 20000) -> str:
        """Run to the end and judge: the outcome, or a Violation."""
        end = self.events + limit
        while self.step():
            if self.events > end:
                raise Violation("does not come to an end")
        try:
            return judge(self)
        except (KeyError, AssertionError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error

    def _deliver(self, source: AgentId, target: AgentId, content: Any) -> None:
        if target in self.operators.arbiters:
            self._serve(target, content)
            return
        node = self.nodes.get(target)
        if node is None:
            return
        if isinstance(content, Reconnect):
            self._reconnect(node)
            return
        installed = node.executor.installed
        if type(content) is tuple:
            node.arrive(content[0], content[1], self.sealed)
        else:
            node.hear(content, self.sealed)
            if node.released is not None:
                self._release(node)
                return
            if self.network.cut and node.executor.installed != installed:
                self.suspect(node)
        self._after(node)

    def _serve(self, operator: AgentId, content: Any) -> None:
        """What an operator's shell does with it."""
        if isinstance(content, Persist):
            if not self.operators.persist(content):
                return
            content = Persisted(content.version)
        elif isinstance(content, ComputePlan):
            result = self.operators.answer(content)
            if isinstance(result, Fatal):
                check_fatal(self, content, result)
            content = Planned(content.id, result)
        self.to_arbiter(operator, content)

    def _reconnect(self, node: Node) -> None:
        if self.network.reaches(node.name):
            for operator in self.operators.deposed():
                self.to_arbiter(operator, Disconnected(node.name))
            self.connect(node)

    def _run(self, name: AgentId) -> None:
        node = self.nodes[name]
        if node.pending is None:
            node.save(self.sealed)
        else:
            self._perform(node)
            while self.burst and node.pending is not None and self.rng.random() < self.burst:
                self._perform(node)
        self._after(node)

    def _perform(self, node: Node) -> None:
        record = node.run(self.sealed)
        if record is not None:
            check_commit(self, node, record)

    def _after(self, node: Node) -> None:
        if node.settle():
            raise Violation(f"the plan counts as entered, but {node.name} lacks a layer")
        for peer, message in node.outbox:
            if peer == OPERATOR:
                self.tell(node, message)
            else:
                self.network.post(node.name, peer, message)
        node.outbox.clear()
        busy = node.pending is not None or bool(node.saving)
        if busy and node.name not in self.ready and node.name in self.nodes:
            self.ready.append(node.name)

    def to_arbiter(self, operator: AgentId, event: Any) -> None:
        """An event of an arbiter that runs; its effects are performed."""
        arbiter = self.operators.arbiters.get(operator)
        if arbiter is None:
            return
        for effect in arbiter.handle(event, self.now):
            match effect:
                case Send(agent, message):
                    node = self.nodes.get(agent)
                    if node is not None and node.operator == operator:
                        self.network.post(operator, agent, message)
                case Persist():
                    self.network.post(STORE, operator, effect)
                case ComputePlan():
                    self.network.post(WATCH, operator, effect)
                case Dismiss(agent, _):
                    if self.network.reaches(agent) and arbiter.status().phase is not Phase.OVER:
                        self.kill(agent)


def _name_of(content: Any) -> Any:
    """What distinguishes it in a trace."""
    return content[0].item if type(content) is tuple else type(content).__name__
