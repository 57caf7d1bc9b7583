"""Many deaths in one long job: each at an exact instruction, each followed by a newcomer.

The bits of every step are compared with those of a job in which nothing happens, so one run shows
what as many runs with one death each would show, and newcomers on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fleet.local import LocalFleet

from bamboo_core.arbitration import Phase
from bamboo_core.ids import AgentId


@dataclass(frozen=True)
class Point:
    """Where to die: seat, moment, and the n-th instruction of a step."""

    pipeline: int
    stage: int
    moment: str
    number: int


@dataclass(frozen=True)
class Task:
    """Die at an instruction of this kind on the agent that runs it: COMMIT for the coordinator,
    who sits in another seat after each of its deaths."""

    kind: str
    moment: str


@dataclass(frozen=True)
class Strike:
    """What has happened: at ``step``, the agents died at these instructions (time.monotonic())."""

    step: int
    instructions: tuple[str, ...]
    died_at: float


class Campaign:
    """Deaths one after the other; every victim is followed by a newcomer in its zone."""

    def __init__(self, fleet: LocalFleet) -> None:
        self.fleet = fleet
        self._newcomers = 0

    def is_whole(self) -> bool:
        """Every seat is taken and the plan runs."""
        fleet = self.fleet
        status = fleet.status()
        plan = status.plan
        return (
            status.phase is Phase.RUNNING
            and plan is not None
            and len(plan.pipelines) == fleet.spec.pipelines.count
            and not plan.holes
            and fleet.exits.keys() >= set(plan.leaving)
            and fleet.exits.keys().isdisjoint(plan.live)
        )

    async def steady_step(self) -> int:
        """Wait until the first steady step of a whole plan has been committed."""
        fleet = self.fleet
        await fleet.until(self.is_whole, "a plan without holes")
        step = fleet.plan().target + 1
        await fleet.committed(step)
        return step

    async def instructions(self, pipeline: int, stage: int) -> list[str]:
        """What the seat's holder runs in a steady step, without the step."""
        step = await self.steady_step()
        return [
            text.removesuffix(f" @{step}")
            for text in self._ran(self._holder(pipeline, stage), step)
        ]

    async def strike(self, *points: Point | Task) -> Strike:
        """All points' holders die in one step; wait for the commit of the next one."""
        fleet = self.fleet
        step = await self.steady_step()
        victims = dict(self._victim(point, step) for point in points)
        for agent in victims:
            await self._add_newcomer(fleet.pods[agent].zone)
        committed = fleet.status().committed
        when = max(step, committed.step if committed is not None else 0) + 3
        chosen = []
        for agent, (moment, text) in victims.items():
            fleet.die(agent, moment, f"{text} @{when}")
            chosen.append(f"{moment} {text}")
        await fleet.until(
            lambda: victims.keys() <= fleet.exits.keys(), f"death at {chosen} @{when}"
        )
        await fleet.committed(when + 1)
        return Strike(when, tuple(chosen), min(fleet.died_at(agent) for agent in victims))

    def _victim(self, point: Point | Task, step: int) -> tuple[AgentId, tuple[str, str]]:
        """Who dies, and at which moment of which instruction, from what they ran in ``step``."""
        if isinstance(point, Point):
            agent = self._holder(point.pipeline, point.stage)
            lines = self._ran(agent, step)
            line = lines[point.number % len(lines)]
        else:
            live = self.fleet.plan().live
            ran = ((agent, line) for agent in live for line in self._ran(agent, step))
            agent, line = next(found for found in ran if found[1].startswith(point.kind))
        return agent, (point.moment, line.removesuffix(f" @{step}"))

    def _holder(self, pipeline: int, stage: int) -> AgentId:
        agent = self.fleet.plan().pipelines[pipeline][stage]
        assert agent is not None
        return agent

    def _ran(self, agent: AgentId, step: int) -> list[str]:
        return self.fleet.instructions(agent, step)

    async def _add_newcomer(self, zone: str) -> None:
        await self.fleet.add({f"new-{self._newcomers}": zone})
        self._newcomers += 1
