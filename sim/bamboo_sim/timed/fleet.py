"""A whole timed job: agents, operator and network on one clock.

fleet = Fleet(job)
fleet.run_to(3)  # until step 3 is committed
fleet.run_until(fleet.commits[3] + 0.1)
fleet.kill(fleet.seat(0, 2))
fleet.run_to(6)
"""

from __future__ import annotations

from typing import Any

from bamboo_core.api.spec import batch_shape
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.plan import Plan
from bamboo_core.scheduling.item_bytes import ItemBytes
from bamboo_sim.timed.agent import TimedAgent
from bamboo_sim.timed.clock import Clock
from bamboo_sim.timed.declared import TimedJob
from bamboo_sim.timed.memory import Memory
from bamboo_sim.timed.network import Network
from bamboo_sim.timed.operator import TimedOperator, TimedRunError
from bamboo_sim.timed.sizes import Times


class Fleet:
    """``commits``: step -> when it was committed first, on its coordinator."""

    def __init__(self, job: TimedJob) -> None:
        self.job, self.clock = job, Clock()
        self.batch = batch_shape(job.spec)
        self._sizes = ItemBytes(job.layers)
        self._times = Times(job.layers, self._sizes, job.device)
        self.network = Network(self.clock, job.links, job.zone)
        self.operator = TimedOperator(job, self.clock, self._deliver, self._enter)
        self.agents = {agent: self._made(agent) for agent in job.agents}
        self.plan: Plan | None = None
        self.commits: dict[int, float] = {}
        self.operator.start()

    def _made(self, agent: AgentId) -> TimedAgent:
        job = self.job
        return TimedAgent(
            agent,
            len(job.layers),
            batch=self.batch,
            mode=job.mode,
            clock=self.clock,
            network=self.network,
            sizes=self._sizes,
            times=self._times,
            memory=Memory(self._sizes),
            slowness=job.slowness.get(agent, 1.0),
            say=self.operator.hear,
            reach=self._agent,
            committed=self._committed,
        )

    def _agent(self, name: AgentId) -> TimedAgent:
        return self.agents[name]

    def _deliver(self, agent: AgentId, message: Any) -> None:
        self.agents[agent].hear(message)

    def _enter(self, plan: Plan) -> None:
        self.plan = plan
        for agent, seat in plan.seats.items():
            self.agents[agent].own = range(*plan.cut[seat.stage])

    def _committed(self, step: int) -> None:
        self.commits.setdefault(step, self.clock.now)

    def seat(self, pipeline: int, stage: int) -> AgentId:
        """The agent in a seat of the newest plan. ValueError if the seat is empty."""
        agent = self.plan.pipelines[pipeline][stage] if self.plan is not None else None
        if agent is None:
            raise ValueError(f"seat {pipeline},{stage} is empty: no agent to lose there")
        return agent

    def run_to(self, step: int) -> None:
        """Run until the step is committed. TimedRunError if the job stands still before."""
        while step not in self.commits:
            self._next(f"step {step} is committed")

    def run_until(self, time: float) -> None:
        """Run everything that happens up to then."""
        has_come = list[bool]()
        self.clock.at(time, lambda: has_come.append(True))
        while not has_come:
            self.clock.next()

    def _next(self, goal: str) -> None:
        if not self.clock.next():
            waiting = {a: str(x.executor.current) for a, x in self.agents.items() if x.is_alive}
            raise TimedRunError(f"nothing happens any more before {goal}: {waiting}")

    def kill(self, agent: AgentId) -> None:
        """The agent ends now; what it has sent completely arrives."""
        self.agents[agent].end()
        self.operator.lose(agent)

    def join(self) -> AgentId:
        """A new agent is ready now; its name is returned."""
        agent = AgentId(f"a{len(self.agents)}")
        self.agents[agent] = self._made(agent)
        self.operator.join(agent)
        return agent

    def leave(self, agent: AgentId, lead_s: float) -> None:
        """The node of an agent announces its end now. It goes on until someone kills it."""
        self.operator.announce(agent, lead_s)

    def step_s(self, step: int) -> float:
        """From the commit before to the step's own."""
        return self.commits[step] - self.commits[step - 1]
