"""The simulated world: operators, agents and network, with one scheduling choice per event.

The clock moves when no other event is possible, and by faults of its own, which let time-outs race
with what is under way. The arbiter hears of a loss by a message like any other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from copy import copy
from math import inf
from typing import Any

from bamboo_core.api.outcome import Outcome
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.program import COMPUTE
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.effects import ProtocolError
from bamboo_core.protocol.supervisor import (
    FromOperator,
    PeerClosed,
)
from bamboo_sim.protocol.checker.verdict import Violation, check_commit, judge
from bamboo_sim.protocol.control.operators import Operators
from bamboo_sim.protocol.control.shell import Closed, Ended, Look, look, serve
from bamboo_sim.protocol.world.agents import connect, inform, is_storage_up, pass_on, thaw
from bamboo_sim.protocol.world.job import Job
from bamboo_sim.protocol.world.memory_bounds import check_memory
from bamboo_sim.protocol.world.network import OPERATOR, WATCH, Network, choose
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.passing import KEEP_ALIVE_S, TICK_S, tick, wait
from bamboo_sim.protocol.world.symbolic import Flip, SymbolError
from bamboo_sim.protocol.world.worker import Sealings

_ALL = 1_000_000  # words: more than are ever under way
_SLOWNESS = 0.95  # how often another agent runs instead of a slow one
_STORAGE_SHARE = 0.2  # of the turns of a worker whose instruction could run


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
        self.is_raced = False  # time has passed while messages were under way
        self.is_silent = False  # something was lost of which nobody knows
        self.resets = 0
        self.late: tuple[tuple[int, AgentId], ...] = ()  # last words that come at some event
        self.newest = (0, -1)  # attempt and step of the newest commit
        self.computed: frozenset[int] = frozenset()  # attempts that have committed a step
        # attempts that began because of wrong bits, and from which step
        self.rolled_back: Mapping[int, int] = {}
        self.trace = 0  # hash of all choices
        self.points = Counter[tuple[str, str, str]]()  # where agents were killed
        self.noticed: frozenset[AgentId] = frozenset()
        # sessions of agents that died unseen: agent, its operator, number
        self.silent: frozenset[tuple[AgentId, AgentId, int]] = frozenset()
        self.beat_s = 0.0  # time between heartbeats that agents were told last; 0: the usual one
        self.silent_since = 0.0  # when the newest silence began, or the pace changed
        self.flips: dict[AgentId, Flip] = {}  # agents whose device was wrong
        self.altered: dict[AgentId, int] = {}  # agents with a wrong copy of a layer -> attempt
        self.told: frozenset[tuple[int, int]] = frozenset()  # (attempt, step) of disputes
        # (attempt, step) of the first wrong commit that nobody could see; None: there is none
        self.spoiled: tuple[int, int] | None = None
        self.still: dict[tuple[str, AgentId], float] = {}  # what stands still, until when
        self.slow: frozenset[AgentId] = frozenset()  # agents that seldom run
        self.pace_s, self.paced = 0.0, 0  # time of an event, for so many events
        self.ahead_s = 0.0  # time that has not passed yet
        self.keep_alive_at = inf  # broken sessions are noticed from then on
        self.storage_faults = 0  # so many reads and writes of files fail
        self.has_storage_failed = self.has_storage_stalled = False
        self.planner_faults = self.planner_losses = 0
        self.write_faults = 0  # so many writes of facts fail
        self.are_answers_lost = False  # they are performed all the same
        self.nodes: dict[AgentId, Node] = {}  # the live agents
        self.ready: list[AgentId] = []  # agents that have work
        self.sealed: Sealings = {}
        self.dead: set[AgentId] = set()
        self.orphans: Counter[Fence] = Counter()  # commits of superseded plans
        self.network, self.operators = Network(), Operators(job)
        self.pods = list(job.at_start)  # of all agents that were ever started
        look(self, self.operators.running[OPERATOR])
        for name in job.at_start:
            self.start(name)

    def copy(self) -> World:
        """An independent copy."""
        new = World.__new__(World)
        new.__dict__.update(self.__dict__)
        new.rng = random.Random()
        new.rng.setstate(self.rng.getstate())
        new.network, new.operators = self.network.copy(), self.operators.copy()
        for name in ("ready", "sealed", "dead", "orphans", "points", "pods"):
            setattr(new, name, copy(getattr(self, name)))
        new.nodes = {a: n.copy(new.sealed) for a, n in self.nodes.items()}
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The leader's."""
        return self.operators.arbiter

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or is suspended as it should be."""
        operators = self.operators
        if operators.durable.outcome is Outcome.SUSPENDED and not operators.goal.suspended:
            return False  # the leader may hear of it only after a pause
        return operators.durable.outcome is not None is not operators.arbiter.durable.outcome

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
        if name not in self.pods:
            self.pods.append(name)
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
            self.is_silent = True
            self.silent = self.silent | {(name, node.operator, node.stream)}
            self.keep_alive_at = min(self.keep_alive_at, self.now + KEEP_ALIVE_S)
            return
        self.network.post(name, node.operator, Ended(name, node.stream))
        for operator in self.operators.running:
            self.network.post(WATCH, operator, Look(frozenset({name})))
        for other in self.nodes.values():
            if name in other.watched:
                self.network.post(WATCH, other.name, PeerClosed(name))

    # ------------------------------------------------------------ events

    def step(self) -> bool:
        """Run one event; False if no event is possible."""
        if self.late and self.events >= self.late[0][0]:
            thaw(self, self.late[0][1])
            self.late = self.late[1:]
        if self.paced:
            self._let_time_pass()
        messages, ready = self.network.messages, self.ready
        if not messages and not ready:
            return wait(self)
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
                choice -= len(messages)
                if self.slow and ready[choice] in self.slow and self.rng.random() < _SLOWNESS:
                    choice = self.rng.randrange(len(ready))
                name = ready.pop(choice)
                self.trace = hash((self.trace, name))
                self._run(name)
        except (ProtocolError, SymbolError, KeyError, AssertionError, ValueError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        return True

    def _let_time_pass(self) -> None:
        """Events take time: what they race with is not known to any of them."""
        self.paced -= 1
        self.ahead_s += self.pace_s
        while self.ahead_s >= TICK_S:
            self.ahead_s -= TICK_S
            tick(self)

    def finish(self, limit: int = 8000) -> str:
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
        node = self.nodes.get(target)
        if node is None:
            if target not in self.dead:
                serve(self, target, content)
            return
        if type(content) is tuple:
            node.reach_worker(content)
            pass_on(self, node)
        elif isinstance(content, FindLeader):
            self._find_leader(node)
        elif isinstance(content, Closed):
            if content.stream == node.stream and node.unheard is None:
                connect(self, node, self.operators.leader, self.rng.choice((0, _ALL)))
        else:
            inform(self, node, content if source == WATCH else FromOperator(content))

    def _find_leader(self, node: Node) -> None:
        """Connect to the leader, or sometimes first to a deposed operator that still runs."""
        operators = self.operators
        if node.unheard is not None:
            return  # it looks when it goes on
        deposed = sorted(operators.deposed())
        if deposed and self.rng.random() < 0.3:
            connect(self, node, deposed[-1])
            self.network.post(WATCH, node.name, FindLeader())
        else:
            connect(self, node, operators.leader)

    def _run(self, name: AgentId) -> None:
        node = self.nodes[name]
        worker = node.worker
        stored = [f for f, jobs in worker.storage if jobs] if is_storage_up(self) else []
        if stored and (not worker.can_run or self.rng.random() < _STORAGE_SHARE):
            fails = self.storage_faults > 0
            self.storage_faults -= fails
            self.has_storage_failed |= fails
            self.rng.choice(stored)(fails)
        elif not worker.can_run:
            return
        else:
            self._perform(node)
            while self.burst and worker.can_run and self.rng.random() < self.burst:
                self._perform(node)
        pass_on(self, node)

    def _perform(self, node: Node) -> None:
        worker, plan = node.worker, self.operators.plan
        assert worker.pending is not None
        op = worker.pending.op
        record = worker.run()
        if worker.backend.flip is not None and worker.backend.flip.has_struck:
            self.flips = {**self.flips, node.name: worker.backend.flip}
        if record is not None:
            check_commit(self, node, record)
        if op in COMPUTE and plan is not None:
            check_memory(node, plan)


def _name_of(content: Any) -> Any:
    """The part of a message that a trace distinguishes."""
    return content[0].item if type(content) is tuple else type(content).__name__
