"""An arbiter and its agents in one process: real state machines, instant instructions, no payloads.

Deterministic: queues are served round robin, one message or instruction at a time; the clock moves
by ``tick``. Agents are killed between any two events.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from bamboo_core.api.spec import (
    CheckpointSpec,
    DataSpec,
    FactorySpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import events as a
from bamboo_core.arbiter_state.durable import Durable, from_json, to_json
from bamboo_core.job import orders
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op
from bamboo_core.placement.plan import Plan
from bamboo_core.planning import planner, requests
from bamboo_core.protocol import executor as x
from bamboo_core.protocol.messages import (
    LANGUAGE,
    BadCheckpoint,
    Cause,
    CommitRecord,
    Continuation,
    Directive,
    Fingerprint,
    Halted,
    Heartbeat,
    Hello,
    Listed,
    Manifest,
    Progress,
    Ready,
    Release,
    Sealed,
    Stop,
    Suspicion,
)


def spec(
    *,
    pipelines: int = 1,
    stages: int = 2,
    steps: int = 4,
    mode: RedundancyMode = RedundancyMode.REPLICA,
    every: int = 2,
    microbatches: int = 4,
    checkpoint: bool = True,
) -> JobSpec:
    return JobSpec(
        model=ModelSpec("zoo:gpt"),
        data=DataSpec("zoo:text", validation=FactorySpec("zoo:text")),
        training=TrainingSpec(steps, microbatches, 1, OptimizerSpec("torch.optim:AdamW")),
        pipelines=PipelinesSpec(pipelines, stages),
        worker=WorkerSpec("image"),
        checkpoint=CheckpointSpec("file:///tmp/x", every_steps=every) if checkpoint else None,
        redundancy=RedundancySpec(mode),
    )


@dataclass
class Agent:
    name: AgentId
    layers: int
    hello: Hello
    ready: Ready
    executor: x.Executor = field(init=False)
    running: bool = False
    released: int | None = None

    def __post_init__(self) -> None:
        self.executor = x.Executor(self.name, self.layers)


def no_error(agent: AgentId, instruction: Instruction) -> str:
    return ""


class Fleet:
    """``zones`` are dealt to agents in turn."""

    def __init__(
        self,
        job: JobSpec,
        *,
        layers: int = 4,
        timing: a.Timing | None = None,
        durable: Durable | None = None,
    ) -> None:
        self.job = a.ArbiterJob("ns/job", "uid", job, "{}", timing or a.Timing())
        self.layers, self.now = layers, 0.0
        self.heard_at = inf  # when the operator had last read everything
        self.term = 1
        self.arbiter = Arbiter(self.job, durable or Durable(), self.term)
        self.agents: dict[AgentId, Agent] = {}
        self.wire: deque[tuple[AgentId, object]] = deque()
        self.stored: dict[str, object] = {}
        self.records: list[a.Record] = []
        self.dismissed: list[AgentId] = []
        self.over: a.Over | None = None
        self.persists: list[a.Persist] = []
        self.requests: list[requests.PlanRequest] = []
        self.plans: list[requests.PlanResult] = []
        self.commits: dict[tuple[int, int], int] = {}
        self.events = 0
        self.hold_persists = False
        self.hold_files = False
        self.full = ""  # why no file can be written; empty: they can
        self.unwritten: set[Item] = set()
        self.beat = Heartbeat(1, 0, 0)
        self.sealed: list[Manifest] = []
        self.step_s = 0.1  # that agents report
        self.raises = no_error  # text of the error that the user's code raises in an instruction
        self.lists = True  # agents answer when they are asked for the checkpoints

    # ------------------------------------------------------------ agents

    def add(self, name: str, zone: str, language: int = LANGUAGE, **ready: object) -> Agent:
        places = f"{name}:1", f"{name}:2"
        hello = Hello(AgentId(name), name, name, zone, name, *places, language=language)
        facts = {"layers": self.layers, "training_samples": 100_000, "validation_samples": 2}
        said = Ready(**{"fingerprint": Fingerprint(), **facts, **ready})
        agent = self.agents[hello.agent] = Agent(hello.agent, self.layers, hello, said)
        self.connect(agent)
        return agent

    def add_grid(self, pipelines: int, stages: int, prefix: str = "a") -> None:
        zones = 3 if stages % 2 else 2  # a ring of even length needs two
        for i in range(pipelines * stages):
            self.add(f"{prefix}{i}", f"z{i % stages % zones}")

    def connect(self, agent: Agent) -> None:
        hello = Hello(**{**vars(agent.hello), "fence": agent.executor.fence})
        self.tell(a.Connected(hello, agent.name.encode()))
        self.receive(agent.name, agent.ready)

    def kill(self, name: str, *, confirmed: bool = True) -> None:
        agent = AgentId(name)
        del self.agents[agent]
        self.tell(a.Disconnected(agent))
        self.tell(a.Lost(agent, confirmed, "killed"))

    # ------------------------------------------------------------ arbiter

    def receive(self, agent: AgentId, message: object) -> None:
        self.tell(a.Received(agent, message))  # type: ignore[arg-type]

    def tell(self, event: a.Event) -> None:
        for effect in self.arbiter.handle(event, self.now, self.heard_at):
            self.perform(effect)

    def perform(self, effect: a.Effect) -> None:
        match effect:
            case a.Persist(durable, version):
                self.persists.append(effect)
                self.stored = json.loads(json.dumps(to_json(durable)))
                if not self.hold_persists:
                    self.wire.append((AgentId(""), a.Persisted(version)))
            case a.ComputePlan():
                for answer in orders.answers(effect, plan=self._plan):
                    self.plans.append(answer.result)
                    self.wire.append((AgentId(""), answer))
            case a.Send(agent, message):
                self.wire.append((agent, message))
            case a.Record():
                self.records.append(effect)
            case a.Dismiss(agent):
                self.dismissed.append(agent)
            case a.Over():
                self.over = effect

    def _plan(
        self, request: requests.PlanRequest, is_wanted: planner.IsWanted
    ) -> Iterator[requests.PlanResult]:
        self.requests.append(request)
        return planner.compute(request, is_wanted)

    def restart(self) -> None:
        """The leader is gone; another begins from what was stored."""
        self.term += 1
        self.wire = deque((to, m) for to, m in self.wire if to)
        self.arbiter = Arbiter(self.job, from_json(self.stored), self.term)  # type: ignore[arg-type]

    def reconnect(self) -> None:
        for agent in list(self.agents.values()):
            self.connect(agent)

    # ------------------------------------------------------------ running

    def step(self) -> bool:
        """One message or one instruction."""
        self.events += 1
        if self.wire:
            to, message = self.wire.popleft()
            if not to:
                self.tell(message)  # type: ignore[arg-type]
            elif to in self.agents:
                self.deliver(self.agents[to], message)
            return True
        agent = next((x for x in self.agents.values() if x.running), None)
        if agent is None:
            return False
        self.agents[agent.name] = self.agents.pop(agent.name)  # it waits until all others ran
        agent.running = False
        self.complete(agent)
        return True

    def run(self, limit: int = 200_000) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("does not come to rest")

    def run_wire(self) -> None:
        """Deliver what is on its way; no instruction completes."""
        while self.wire:
            self.step()

    def suspect(self, by: str, agent: str, cause: Cause, fence: Fence | None = None) -> None:
        """A heartbeat that carries the suspicion."""
        held = Suspicion(AgentId(agent), cause, fence or self.arbiter.fence)
        self.receive(AgentId(by), Heartbeat(1, 0, 0, self.arbiter.fence, None, (held,)))

    def idle(self, seconds: float, step_s: float = 0.25) -> None:
        """Time passes; everyone lives, nobody gets anything done."""
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            for name in list(self.agents):
                self.receive(name, self.beat)
            self.tell(a.Tick())

    def wait(self, seconds: float, step_s: float = 0.25) -> None:
        for _ in range(round(seconds / step_s)):
            self.now += step_s
            for agent in list(self.agents.values()):
                self.receive(agent.name, self.beat)
            self.tell(a.Tick())
            self.run()

    def until(self, condition, limit: int = 200_000) -> None:
        for _ in range(limit):
            if condition():
                return
            if not self.step():
                break
        assert condition(), self.arbiter.status()

    def deliver(self, agent: Agent, message: object) -> None:
        executor = agent.executor
        match message:
            case Stop():
                lost = {item.step for item in executor.held if item in self.unwritten}
                executor.unsaved(lost)
                self.act(agent, executor.stop(message))
                if message.want_manifests and self.lists:
                    self.receive(agent.name, Listed(tuple(self.sealed), message.fence))
            case Directive():
                self.act(agent, executor.install(message))
            case Continuation():
                self.act(agent, executor.proceed(message))
            case Release(code):
                agent.released = code
                del self.agents[agent.name]
            case x.Transmit(item, _, fence, commit):
                self.act(agent, executor.arrive(item, fence, commit))
            case _:
                pass

    def complete(self, agent: Agent) -> None:
        instruction = agent.executor.running
        assert instruction is not None
        if text := self.raises(agent.name, instruction):
            self.act(agent, agent.executor.abandon())
            self.receive(agent.name, Halted(agent.executor.fence, text))
            return
        commit = CommitRecord(instruction.step) if instruction.op is Op.COMMIT else None
        attempt = agent.executor.fence.attempt
        if instruction.op is Op.SEAL and any(
            item.step == instruction.step for item in self.unwritten
        ):
            text = f"the checkpoint of step {instruction.step} is not complete"
            self.receive(agent.name, BadCheckpoint(attempt, instruction.step, text, self.full))
        elif instruction.op is Op.SEAL:
            manifest = Manifest(attempt, instruction.step, f"{attempt}/{instruction.step}", "d")
            self.sealed.append(manifest)
            self.receive(agent.name, Sealed(manifest))
        self.act(agent, agent.executor.done(commit))
        if instruction.op is Op.SAVE and not (self.hold_files and agent.name == "a1"):
            for layer in range(instruction.lo, instruction.hi):
                item = Item.file(instruction.step, layer)
                (self.unwritten.add if self.full else self.unwritten.discard)(item)
                self.act(agent, agent.executor.saved(item))

    def act(self, agent: Agent, effects: list[x.Effect]) -> None:
        for effect in effects:
            match effect:
                case x.Run():
                    agent.running = True
                case x.Transmit(_, peer, _, _):
                    self.wire.append((peer, effect))
                case x.SendOperator(message):
                    self.receive(agent.name, message)
                case x.StepEnded(commit):
                    key = (agent.executor.fence.attempt, commit.step)
                    self.commits[key] = self.commits.get(key, 0) + 1
                    progress = Progress(commit, agent.executor.fence, step_s=self.step_s)
                    self.receive(agent.name, progress)
                case _:
                    pass


def running(
    pipelines: int = 1, stages: int = 3, *, durable: Durable | None = None, **options: object
) -> Fleet:
    job = spec(pipelines=pipelines, stages=stages, **options)  # type: ignore[arg-type]
    fleet = Fleet(job, layers=stages, durable=durable)
    fleet.add_grid(pipelines, stages)
    fleet.tell(a.DesiredState(pipelines))
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    return fleet


def committed(fleet: Fleet, step: int) -> bool:
    return fleet.arbiter.status().progress.committed >= step


def is_running(fleet: Fleet) -> bool:
    return fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING


def newest(fleet: Fleet) -> int:
    return fleet.arbiter.status().progress.committed


def plan(fleet: Fleet) -> Plan:
    found = fleet.arbiter.status().plan
    assert found is not None
    return found
