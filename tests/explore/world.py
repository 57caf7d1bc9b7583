"""The explored world: arbiters, agents, network, durable facts; every event is one choice.

The clock moves only when nothing else can happen, so that time-outs never race with what merely
has not been scheduled yet; a loss is told to the arbiter by a message like any other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from typing import Any

from tests.explore.clone import clone
from tests.explore.job import Job
from tests.explore.node import Node
from tests.explore.plans import Plans

from bamboo_core.arbiter import Arbiter
from bamboo_core.arbitration import (
    ComputePlan,
    Connected,
    Decision,
    Disconnected,
    Dismiss,
    Fatal,
    Goal,
    Lost,
    Persist,
    Persisted,
    Phase,
    Planned,
    PlannerFault,
    Received,
    Send,
    Tick,
)
from bamboo_core.durable import Durable
from bamboo_core.effects import ProtocolError
from bamboo_core.ids import AgentId, Fence
from bamboo_core.items import Kind
from bamboo_core.messages import Cause, Finished, Heartbeat, Left, Notice, Suspicion
from bamboo_core.numerics import BatchShape
from bamboo_core.plan import Plan, layers_of
from bamboo_core.symbolic import SymbolError
from bamboo_core.view import Outcome

OPERATOR, STORE, WATCH = AgentId(""), AgentId("store"), AgentId("watch")
_IDLE_S, _IDLE_ROUNDS = 0.5, 300


class _Reconnect:
    """An agent finds the new leader."""


class Violation(Exception):  # noqa: N818 - a finding, not a fault of the explorer
    """The protocol has broken its promise."""


class World:
    """One history as far as it has come.

    policy: how the next event is chosen; burst: probability that an agent goes on with its next
    instruction before anything else happens.
    """

    arbiter_type = Arbiter
    node_type = Node

    def __init__(self, job: Job, seed: int = 0, policy: str = "random") -> None:
        self.job, self.policy = job, policy
        self.rng = random.Random(seed)
        self.now, self.events, self.burst = 0.0, 0, 0.0
        self.outcome, self.losses = "", 0
        self.has_expelled = self.has_cuts = False
        self.trace, self.points = 0, Counter[tuple[str, str, str]]()
        self.noticed: frozenset[AgentId] = frozenset()
        self.batch: BatchShape | None = None
        self.plans: tuple[Plan, ...] = ()
        self.plan: Plan | None = None
        self.nodes: dict[AgentId, Node] = {}
        self.ready: list[AgentId] = []
        self.messages: list[tuple[AgentId, AgentId, Any]] = []
        self.sealed: dict[tuple[int, int], tuple[int, ...]] = {}
        self.dead: set[AgentId] = set()
        self.cut: set[tuple[AgentId, AgentId]] = set()
        self.durable = Durable()
        self.leader = OPERATOR
        self.orphans: Counter[Fence] = Counter()
        self.stats: Counter[str] = Counter()
        self.goal = Goal(job.pipelines, expected=frozenset(job.at_start))
        self.arbiters = {OPERATOR: self.arbiter_type(job.arbiter_job, self.durable, 1)}
        self._to_arbiter(OPERATOR, self.goal)
        for name in job.at_start:
            self.start(name)

    def copy(self) -> World:
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.rng = random.Random()
        new.rng.setstate(self.rng.getstate())
        new.nodes = {a: n.copy() for a, n in self.nodes.items()}
        new.arbiters = {name: clone(arbiter) for name, arbiter in self.arbiters.items()}
        for name in ("ready", "messages", "sealed", "dead", "cut", "orphans", "stats", "points"):
            setattr(new, name, copy(getattr(self, name)))
        return new

    @property
    def arbiter(self) -> Arbiter:
        """The one in force."""
        return self.arbiters[self.leader]

    # ------------------------------------------------------------ what faults use

    def start(self, name: AgentId) -> None:
        """A pod comes up and connects."""
        if name in self.nodes or name in self.dead:
            return
        node = self.node_type(name, self.job.num_layers, salted=self.job.salted)
        self.nodes[name] = node
        self._connect(node)

    def _connect(self, node: Node) -> None:
        """A new session with the operator in force; the old one's messages are lost."""
        before, node.operator = node.operator, self.leader
        pair = {node.name, before}
        self.messages = [m for m in self.messages if {m[0], m[1]} != pair]
        self._post(node.name, self.leader, Connected(node.hello(), node.name.encode()))
        said = [node.ready(), *node.kept, *([node.end] if node.end is not None else [])]
        if self._reaches(node.name):
            node.kept = []
        for message in said:
            self._post(node.name, self.leader, Received(node.name, message))

    def lose(self, name: AgentId, *, fate: int, confirmed: bool) -> None:
        """An agent's death that nobody in the protocol has asked for."""
        if name in self.nodes:
            self.losses += 1
            self.points[self._point(self.nodes[name])] += 1
            self.trace = hash((self.trace, "lost", name, fate))
        self.kill(name, fate=fate, confirmed=confirmed)

    def _point(self, node: Node) -> tuple[str, str, str]:
        """(instruction that runs, or "wait ..."; role; phase)."""
        executor = node.executor
        task = executor.running or executor.current
        what = "nothing" if task is None else str(task.op)
        if executor.running is None and task is not None:
            what = f"wait {what}"
        plan, directive = self.plan, executor.directive
        role, phase = "newcomer", str(self.arbiter.status().phase)
        if plan is not None and node.name in plan.seats:
            stage = plan.seats[node.name].stage
            role = "first" if stage == 0 else "last" if stage == len(plan.cut) - 1 else "middle"
            role = "coordinator" if node.name == plan.coordinator else role
        elif plan is not None and node.name in plan.leaving:
            role = "leaver"
        if phase == "Running" and directive is not None:
            offset = executor.step - directive.target
            phase += " final" if executor.step == directive.last else (" steady" if offset else "")
        return what, role, phase

    def kill(self, name: AgentId, *, fate: int = 0, confirmed: bool = True) -> None:
        """SIGKILL; ``fate`` of its messages in flight: 0 delivered, 1 lost, 2 half of them."""
        if self.nodes.pop(name, None) is None:
            return
        if name in self.ready:
            self.ready.remove(name)
        self.dead.add(name)
        self.messages = [
            m for m in self.messages if m[1] != name and not (m[0] == name and self._loses(fate))
        ]
        for operator in self.arbiters:
            self._post(WATCH, operator, Lost(name, confirmed, "process exit seen"))

    def _loses(self, fate: int) -> bool:
        return fate == 1 or (fate == 2 and self.rng.random() < 0.5)

    def restart_operator(self, *, lossy: bool = False, split: bool = False) -> None:
        """A new leader with the durable facts only.

        lossy: some of the old one's messages never left; split: the old one goes on, too.
        """
        old, term = self.leader, self.arbiter.fence.term + 1
        if not split:
            self.arbiters.clear()
            gone = (old, WATCH, STORE)
            self.messages = [
                m
                for m in self.messages
                if m[1] != old
                and m[0] not in gone[1:]
                and not (m[0] == old and lossy and self.rng.random() < 0.5)
            ]
        self.leader = AgentId(f"operator-{term}")
        self.durable = replace(self.durable, term=term)
        self.arbiters[self.leader] = self.arbiter_type(self.job.arbiter_job, self.durable, term)
        self._to_arbiter(self.leader, self.goal)
        for name in sorted(self.nodes):
            self._post(WATCH, name, _Reconnect())
        for name in sorted(self.dead):
            self._post(WATCH, self.leader, Lost(name, True, "pod is gone"))

    def notice(self, name: AgentId, lead_s: float) -> None:
        """The agent learns that it will go away: 1 s is too short for a hand-over, 3 s is not."""
        if name in self.nodes:
            self.noticed = self.noticed | {name}
            self._tell(self.nodes[name], Notice(lead_s, "spot"))

    def want(self, pipelines: int) -> None:
        """The user asks for another number of pipelines."""
        self.goal = replace(self.goal, pipelines=pipelines)
        self._to_arbiter(self.leader, self.goal)

    def partition(self, links: Iterable[tuple[AgentId, AgentId]]) -> None:
        """Directed links are lost. The operator's name in them is ``OPERATOR``."""
        self.cut |= set(links)
        self.losses += 1  # whoever is cut off may be given up
        self.has_cuts = True
        self.has_expelled |= any(OPERATOR not in link for link in self.cut)
        self.messages = [m for m in self.messages if not self._is_cut(m[0], m[1])]
        for name in sorted(self.nodes):
            self._suspect(self.nodes[name])

    def doubt(self, name: AgentId) -> None:
        """The operator hears of a loss that nobody can confirm."""
        self.losses += 1
        self._post(WATCH, self.leader, Lost(name, False, "unreachable"))

    def heal(self) -> None:
        """All links work again; broken sessions are opened anew."""
        lost = {a for link in self.cut if OPERATOR in link for a in link} & self.nodes.keys()
        self.cut = set()
        for name in sorted(lost):
            self._connect(self.nodes[name])

    def duplicate(self) -> None:
        """Everything between agents that is under way comes twice."""
        self.messages += [m for m in self.messages if type(m[2]) is tuple]

    def _suspect(self, node: Node) -> None:
        """A broken channel is reported once per epoch."""
        for a, b in sorted(self.cut):
            if node.name in (a, b) and OPERATOR not in (a, b):
                other = b if a == node.name else a
                self._tell(node, Suspicion(other, Cause.CHANNEL_BROKEN, node.executor.fence))

    def _is_cut(self, source: AgentId, target: AgentId) -> bool:
        if not self.cut:
            return False
        ends = (OPERATOR if x in self.arbiters else x for x in (source, target))
        return tuple(ends) in self.cut

    def _reaches(self, name: AgentId) -> bool:
        return not {(name, OPERATOR), (OPERATOR, name)} & self.cut

    # ------------------------------------------------------------ running

    def _post(self, source: AgentId, target: AgentId, message: Any) -> None:
        if not self._is_cut(source, target):
            self.messages.append((source, target, message))

    def _tell(self, node: Node, message: Any) -> None:
        """As the supervisor does it: what ends the job is said again in every session."""
        if isinstance(message, Finished | Left):
            node.end = message
        if not self._reaches(node.name):
            node.kept.append(message)
        self._post(node.name, node.operator, Received(node.name, message))

    def _choose(self) -> int:
        messages, total = len(self.messages), len(self.messages) + len(self.ready)
        if self.policy == "fifo":
            return 0
        if self.policy == "late" and self.ready:
            return messages + self.rng.randrange(len(self.ready))
        if self.policy == "slow-control":
            data = [i for i, m in enumerate(self.messages) if type(m[2]) is tuple]
            pick = self.rng.randrange(len(data) + len(self.ready) or 1)
            if pick < len(data):
                return data[pick]
            if self.ready:
                return messages + pick - len(data)
        return int(self.rng.random() * total)

    def _first(self, choice: int) -> int:
        """A session is a stream, and so are the writes of durable facts: first in, first out."""
        source, target, _ = self.messages[choice]
        if source == WATCH or not (source in self.arbiters or target in self.arbiters):
            return choice
        return next(i for i, m in enumerate(self.messages) if m[0] == source and m[1] == target)

    def step(self) -> bool:
        """One event; False if nothing can happen any more."""
        if not self.messages and not self.ready:
            return self._wait()
        self.events += 1
        choice = self._choose()
        try:
            if choice < len(self.messages):
                message = self.messages.pop(self._first(choice))
                self.trace = hash((self.trace, message[0], message[1], _name_of(message[2])))
                self._deliver(*message)
            else:
                name = self.ready.pop(choice - len(self.messages))
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
                if self._reaches(name):
                    operator = self.nodes[name].operator
                    self._to_arbiter(operator, Received(name, Heartbeat(0, 0, 0)))
            for operator in list(self.arbiters):
                self._to_arbiter(operator, Tick())
            if self.messages or self.ready:
                return True
        return False

    def finish(self, limit: int = 20000) -> str:
        """Run to the end and judge: the outcome, or a Violation."""
        end = self.events + limit
        while self.step():
            if self.events > end:
                raise Violation("does not come to an end")
        try:
            return self.judge()
        except (KeyError, AssertionError) as error:
            raise Violation(f"{type(error).__name__}: {error}") from error

    def _deliver(self, source: AgentId, target: AgentId, message: Any) -> None:
        if target in self.arbiters:
            if isinstance(message, Persist):
                if not self._persist(message):
                    return
                message = Persisted(message.version)
            elif isinstance(message, ComputePlan):
                message = Planned(message.id, self._plan(message))
            self._to_arbiter(target, message)
            return
        node = self.nodes.get(target)
        if node is None:
            return
        if isinstance(message, _Reconnect):
            if self._reaches(target):
                for operator in self.arbiters.keys() - {self.leader}:
                    self._to_arbiter(operator, Disconnected(target))
                self._connect(node)
            return
        installed = node.executor.installed
        if type(message) is tuple:
            node.arrive(message[0], message[1], self.sealed)
        else:
            node.hear(message, self.sealed)
            if node.released is not None:
                self.release(node)
                return
            if self.cut and node.executor.installed != installed:
                self._suspect(node)
        self._after(node)

    def _persist(self, write: Persist) -> bool:
        """The API server refuses the write of a deposed leader."""
        if write.durable.term < self.durable.term:
            return False
        if write.durable.plan < self.durable.plan:
            raise Violation(f"plan {write.durable.plan} after {self.durable.plan}")
        self.durable = write.durable
        for plan in self.plans:  # a loss while planning: two plans of a fence, one is directed
            if plan.fence == write.durable.plan and plan.members == write.durable.members:
                self.plan, self.plans = plan, ()
        return True

    def release(self, node: Node) -> None:
        """The supervisor ends: state is kept for the judge only if the job is over."""
        if self.arbiter.status().phase is not Phase.OVER:
            self.kill(node.name)

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
            self._check_commit(node, record)

    def _after(self, node: Node) -> None:
        if node.settle():
            raise Violation(f"the plan counts as entered, but {node.name} lacks a layer")
        for peer, message in node.outbox:
            if peer == OPERATOR:
                self._tell(node, message)
            else:
                self._post(node.name, peer, message)
        node.outbox.clear()
        busy = node.pending is not None or bool(node.saving)
        if busy and node.name not in self.ready and node.name in self.nodes:
            self.ready.append(node.name)

    def _to_arbiter(self, operator: AgentId, event: Any) -> None:
        arbiter = self.arbiters.get(operator)
        if arbiter is None:
            return
        for effect in arbiter.handle(event, self.now):
            match effect:
                case Send(agent, message):
                    node = self.nodes.get(agent)
                    if node is not None and node.operator == operator:
                        self._post(operator, agent, message)
                case Persist():
                    self._post(STORE, operator, effect)
                case ComputePlan():
                    self._post(WATCH, operator, effect)
                case Dismiss(agent, _):
                    if self._reaches(agent) and arbiter.status().phase is not Phase.OVER:
                        self.kill(agent)

    # ------------------------------------------------------------ planning

    def _plan(self, wanted: ComputePlan) -> Any:
        result = _PLANS.answer(wanted)
        if isinstance(result, PlannerFault):
            raise Violation(result.message)
        if isinstance(result, Fatal):
            self._check_fatal(wanted, result)
            self.stats["fatal"] += 1
        elif isinstance(result, Decision):
            self.stats["plans"] += 1
            self.batch = result.plan.batch
            self.plans = (*self.plans, result.plan)
        return result

    def _check_fatal(self, wanted: ComputePlan, fatal: Fatal) -> None:
        """No layer is called lost of which an agent that reported holds a usable version."""
        if not self.losses:
            raise Violation(f"layers {fatal.layers} are lost though nobody died")
        # a rushed leaver does not vote, so the commit that it waits for may leave it behind
        lasting = wanted.request.reports.keys() - wanted.request.rushed
        for agent in () if self.has_cuts else sorted(lasting):
            node = self.nodes.get(agent)
            kept = node.settled & set(fatal.layers) & node.executor.versions.keys() if node else ()
            if kept:
                raise Violation(f"layers {sorted(kept)} are called lost, but {agent} keeps them")
        reports = wanted.request.reports
        newest = fatal.committed
        for layer in fatal.layers:
            for agent, report in reports.items():
                version = report.versions.get(layer)
                if version is None:
                    continue
                if all(self._has_gradient(reports, layer, k) for k in range(version, newest + 1)):
                    raise Violation(f"layer {layer} is called lost, but {agent} holds it")

    def _has_gradient(self, reports: dict, layer: int, step: int) -> bool:
        slices = {
            i.part
            for r in reports.values()
            for i in r.items
            if i.kind is Kind.RED and i.step == step and i.lo <= layer < i.hi
        }
        known = any(c.step == step for r in reports.values() for c in r.commits)
        assert self.batch is not None
        return known and len(slices) == self.batch.chunks

    # ------------------------------------------------------------ judging

    def _salts(self) -> tuple[int, ...]:
        """Attempt in which each step was done for good."""
        salts = [0] * self.job.steps
        for fork in self.durable.forks:
            for step in range(fork.step, self.job.steps):
                salts[step] = fork.attempt if self.job.salted else 0
        return tuple(salts)

    def _expected(self) -> tuple[Any, Any]:
        assert self.batch is not None
        return self.job.expected(self.batch, self._salts())

    def _check_commit(self, node: Node, record: Any) -> None:
        if node.executor.fence.attempt != self.durable.attempt or record.step >= self.job.steps:
            return
        right = self._expected()[1][record.step]
        if record.loss != right.loss:
            raise Violation(f"{node.name} commits something else as step {record.step}")
        fence = node.executor.fence
        decided = self.durable.plan
        if fence < decided and fence.attempt == decided.attempt:
            self.orphans[fence] += 1
            if self.orphans[fence] > 1:
                raise Violation(f"plan {fence} goes on committing after {decided}")

    def judge(self) -> str:
        """The outcome once nothing happens any more."""
        status = self.arbiter.status()
        if status.phase is Phase.OVER:
            if status.outcome is not Outcome.COMPLETE:
                raise Violation(f"the job ends as {status.outcome}: {status.message}")
            self._check_weights()
            return "restored" if self.durable.attempt else "complete"
        if self._is_too_few():
            return "waiting"
        raise Violation(f"stands still: {status.phase} {status.detail}; {self._standing()}")

    def _is_too_few(self) -> bool:
        """Whether the agents that the operator reaches cannot make a plan, by its own rules."""
        alive = sum(self._reaches(a) and a not in self.noticed for a in self.nodes)
        if self.has_expelled:  # and is not asked again, but replaced
            alive = min(alive, len(self.arbiter.status().members))
        stages, durable = self.job.stages, self.durable
        is_new = durable.plan.attempt != durable.attempt or not durable.pipelines
        return alive < stages if is_new else 2 * alive < stages

    def _standing(self) -> str:
        return "; ".join(
            f"{a} {n.executor.fence} step {n.executor.step} at {n.executor.current}"
            for a, n in sorted(self.nodes.items())
        )

    def _check_weights(self) -> None:
        plan = self.plan
        assert plan is not None
        right = self._expected()[0][self.job.steps]
        for agent, ranges in plan.wants.items():
            node = self.nodes.get(agent)
            if node is None:
                continue
            for layer in layers_of(ranges):
                version = node.executor.versions.get(layer)
                if version != self.job.steps:
                    raise Violation(f"{agent} ends with version {version} of layer {layer}")
                if node.backend.layers[layer] != right[layer]:
                    raise Violation(f"{agent}: layer {layer} has wrong weights")


def _name_of(message: Any) -> Any:
    """What distinguishes it in a trace."""
    return message[0].item if type(message) is tuple else type(message)


_PLANS = Plans()
