"""Many deaths in one long job: each at an exact instruction, each followed by a newcomer.

The bits of every step are compared with those of a job in which nothing happens, so one run shows
what as many runs with one death each would show, and newcomers on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.arbiter.events import ArbiterPhase
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.program import parse_instruction
from bamboo_sim.protocol.fleet.local_fleet import LocalFleet

COMMIT = "COMMIT"


@dataclass(frozen=True)
class Point:
    """Where to die: a seat, and the moment at an instruction that the seat runs in every step.

    instruction: as :func:`name_of` says it, whatever the cut. COMMIT: the seat's holder is made
    the coordinator first.
    """

    pipeline: int
    stage: int
    moment: str
    instruction: str

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.stage} {self.moment} {self.instruction}"


def name_of(text: str, own: Range) -> str:
    """ "F m3" of "F[0:2] m3" in the seat of layers ``own``, "UPDATE copy" of other layers."""
    instruction = parse_instruction(text)
    words = [word for word in text.split(" ")[1:] if word.startswith("m")]
    if instruction.hi and (instruction.lo, instruction.hi) != own:
        words.append("copy")
    return " ".join([instruction.op.value, *words])


@dataclass(frozen=True)
class InjectedFault:
    """What has happened: at ``step``, agents died at these points, first at ``died_at``
    (time.monotonic()). seats: the names of all that each victim runs in a step."""

    step: int
    points: tuple[Point, ...]
    died_at: float
    seats: tuple[tuple[str, ...], ...]


class Campaign:
    """Deaths one after the other; every victim is followed by a newcomer in its zone."""

    def __init__(self, fleet: LocalFleet) -> None:
        self.fleet = fleet
        self._newcomers = 0

    def has_full_plan(self) -> bool:
        """Every seat is taken and the plan runs."""
        fleet = self.fleet
        status = fleet.status()
        plan = status.plan
        return (
            status.phase is ArbiterPhase.RUNNING
            and plan is not None
            and len(plan.pipelines) == fleet.spec.pipelines.count
            and not plan.holes
            and fleet.exits.keys() >= set(plan.leaving)
            and fleet.exits.keys().isdisjoint(plan.live)
        )

    async def steady_step(self) -> int:
        """Wait until the first steady step of a whole plan has been committed."""
        fleet = self.fleet
        await fleet.until(self.has_full_plan, "a plan without holes")
        step = fleet.plan().target + 1
        await fleet.committed(step)
        return step

    async def inject(self, *points: Point) -> InjectedFault:
        """All points' holders die in one step; wait for the commit of the next one.

        Who does not get to its instruction, because of another death, dies when that step is over,
        and is not among the fault's points.
        """
        fleet = self.fleet
        for point in points:
            if point.instruction == COMMIT:
                await self._seat_coordinator(point)
        step = await self.steady_step()
        victims = {self._holder(point): point for point in points}
        ran = {
            agent: await self._instructions_of(agent, point, step)
            for agent, point in victims.items()
        }
        for agent in victims:
            await self._add_newcomer(fleet.pods[agent].zone)
        when = max(step, fleet.committed_step) + 3
        for agent, point in victims.items():
            fleet.arm_kill_switch(agent, point.moment, f"{ran[agent][point.instruction]} @{when}")
        died = await self._deaths(victims, when)
        hit = tuple(victims[agent] for agent in died)
        return InjectedFault(when, hit, min(died.values()), tuple(map(tuple, ran.values())))

    async def _deaths(self, victims: dict[AgentId, Point], when: int) -> dict[AgentId, float]:
        """Wait for the step after ``when``; when those died who came to their points."""
        fleet = self.fleet
        await fleet.until(
            lambda: victims.keys() <= fleet.exits.keys() or fleet.committed_step > when,
            f"death at {' and '.join(map(str, victims.values()))} @{when}",
        )
        died = {agent: at for agent in victims if (at := fleet.died_at(agent))}
        assert died, f"nobody died at {victims} @{when}\n{fleet.record()}"
        fleet.kill(*(victims.keys() - died.keys()))
        await fleet.until(lambda: victims.keys() <= fleet.exits.keys(), f"ends of {victims}")
        await fleet.committed(when + 1)
        return died

    async def _seat_coordinator(self, point: Point) -> None:
        """Let a newcomer take the point's seat whose name comes before all others."""
        fleet = self.fleet
        await self.steady_step()
        agent = self._holder(point)
        if fleet.plan().coordinator != agent:
            await self._add_newcomer(fleet.pods[agent].zone, prefix="a")
            fleet.kill(agent)
            await fleet.until(lambda: agent in fleet.exits, f"the end of {agent}")
            await self.steady_step()
        assert fleet.plan().coordinator == self._holder(point), fleet.record()

    async def _instructions_of(self, agent: AgentId, point: Point, step: int) -> dict[str, str]:
        """All that the agent ran in ``step``, by name; it is known when the step has ended there,
        a little later than the commit."""
        fleet = self.fleet
        own = fleet.plan().cut[point.stage]
        await fleet.until(
            lambda: fleet.instructions(agent).ended >= step, f"end of step {step} on {agent}"
        )
        lines = fleet.instructions(agent).of(step)
        named = {name_of(line, own): line for line in lines}
        assert len(named) == len(lines), lines
        assert point.instruction in named, f"{point}: its holder {agent} runs {list(named)}"
        return named

    def _holder(self, point: Point) -> AgentId:
        agent = self.fleet.plan().pipelines[point.pipeline][point.stage]
        assert agent is not None
        return agent

    async def _add_newcomer(self, zone: str, prefix: str = "new") -> None:
        await self.fleet.add({f"{prefix}-{self._newcomers}": zone})
        self._newcomers += 1
