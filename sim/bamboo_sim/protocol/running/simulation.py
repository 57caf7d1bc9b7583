"""A history that runs: operators, agents and network, with one scheduling choice per event.

The clock moves when no other event is possible, and by faults of its own, which let time-outs race
with what is under way. The arbiter hears of a loss by a message like any other.
"""

from __future__ import annotations

from typing import Any

from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import COMPUTE, Op
from bamboo_core.protocol.effects import ProtocolError
from bamboo_core.protocol.messages import Disputed
from bamboo_core.protocol.supervisor import FromOperator
from bamboo_sim.protocol.checker.corruption import note_dispute
from bamboo_sim.protocol.checker.memory_bounds import check_memory
from bamboo_sim.protocol.checker.pruning import check_pruned
from bamboo_sim.protocol.checker.verdict import check_commit, check_values, judge
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.parts.messages import Closed, FindLeader
from bamboo_sim.protocol.parts.network import OPERATOR, WATCH, choose
from bamboo_sim.protocol.parts.symbolic import SymbolError
from bamboo_sim.protocol.parts.violation import Violation
from bamboo_sim.protocol.running.agent_shell import (
    connect,
    inform,
    is_full,
    is_storage_up,
    pass_on,
    thaw,
)
from bamboo_sim.protocol.running.clock import TICK_S, tick, wait
from bamboo_sim.protocol.running.operator_shell import look, serve
from bamboo_sim.protocol.world.node import Node
from bamboo_sim.protocol.world.state import World

_ALL = 1_000_000  # words: more than are ever under way
_SLOWNESS = 0.95  # how often another agent runs instead of a slow one
_ISSUED_SHARE = 0.6  # of the turns of a worker whose device could complete as well
_STORAGE_SHARE = 0.2  # of the turns of a worker whose instruction could run


class Simulation(World):
    """A world in which one event happens after the other, until it is judged."""

    def __init__(self, job: Job, seed: int = 0, policy: str = "random") -> None:
        super().__init__(job, seed, policy)
        look(self, self.operators.running[OPERATOR])
        for name in job.at_start:
            self.start(name)

    def start(self, name: AgentId) -> None:
        """Start a pod, which connects."""
        if name in self.nodes or name in self.dead:
            return
        node = Node(name, self.job, self.sealed)
        node.worker.bad_code = self.bad_code
        self.nodes[name] = node
        if name not in self.pods:
            self.pods.append(name)
        connect(self, node, self.operators.leader)

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
            node.reach_worker(content, source)
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
            act, fails = self.rng.choice(stored), self.storage_faults > 0
            self.storage_faults -= fails
            if act == worker.write and is_full(self):
                self.strike("full disk")
                fails = True
            act(fails)
            self.has_storage_failed |= bool(self.sealed.refused)
            check_pruned(self)
            check_values(self)
        elif not worker.can_run:
            return
        else:
            self._perform(node)
            while self.burst and worker.can_run and self.rng.random() < self.burst:
                self._perform(node)
        pass_on(self, node)

    def _perform(self, node: Node) -> None:
        worker, plan = node.worker, self.operators.plan
        if worker.device.is_busy and not (worker.can_issue and self.rng.random() < _ISSUED_SHARE):
            self._complete(node)
            return
        assert worker.pending is not None
        op = worker.pending.op
        record = worker.run()
        if op is Op.COMMIT and any(isinstance(x, Disputed) for x in worker.said):
            note_dispute(self, node, worker.executor.step)
        if worker.backend.flip is not None and worker.backend.flip.has_struck:
            self.flips = {**self.flips, node.name: worker.backend.flip}
            self.strike("flip")
        if record is not None:
            check_commit(self, node, record)
        if op in COMPUTE and plan is not None and not worker.device.is_busy:
            check_memory(node, plan)

    def _complete(self, node: Node) -> None:
        """A device completes an instruction. Those that it still has come on top of the bounds."""
        op, plan = node.worker.complete(), self.operators.plan
        if op in COMPUTE and plan is not None and not node.worker.device.is_busy:
            check_memory(node, plan)


def _name_of(content: Any) -> Any:
    """The part of a message that a trace distinguishes."""
    return content[0].item if type(content) is tuple else type(content).__name__
