"""Many kills in one long job: each at an exact instruction, each followed by a new agent.

Every step's bits are compared with those of a job without faults. So one run covers what many runs
with one kill each would cover, and the entry of new agents as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_core.arbiter_state.events import ArbiterPhase
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.program import Op, parse_instruction
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.fleet.switches import group_switch

COMMIT = "COMMIT"


@dataclass(frozen=True)
class Point:
    """A seat, and a moment at an instruction that the seat runs in every step.

    instruction: a name from :func:`name_of`, which does not depend on the cut. For COMMIT, the
    seat's agent is made the coordinator first. Or one of the names in
    :mod:`bamboo_sim.fleet.switches.group_switch`: the next time that one of the agent's groups is
    there.
    """

    pipeline: int
    stage: int
    moment: str
    instruction: str

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.stage} {self.moment} {self.instruction}"


def name_of(text: str, own: Range) -> str:
    """ "F m3" for "F[0:2] m3" in the seat of layers ``own``; "UPDATE copy" for other layers."""
    instruction = parse_instruction(text)
    words = [word for word in text.split(" ")[1:] if word.startswith("m")]
    if instruction.hi and (instruction.lo, instruction.hi) != own:
        words.append("copy")
    return " ".join([instruction.op.value, *words])


@dataclass(frozen=True)
class InjectedFault:
    step: int
    points: tuple[Point, ...]  # that the victims reached
    died_at: float  # time.monotonic() of the first death
    seats: tuple[tuple[str, ...], ...]  # names of all instructions of each victim in a step; not
    # known for a death in a group


_LEADS = (3, 10, 30)
"""Steps from now in which an agent is to die; the next one if a busy machine was too slow."""


class Campaign:
    """Kills one after the other; a new agent in the victim's zone follows each."""

    def __init__(self, fleet: LocalFleet) -> None:
        self.fleet = fleet
        self._newcomers = 0

    def has_full_plan(self) -> bool:
        """Whether no seat is empty and the plan runs."""
        fleet = self.fleet
        status = fleet.status()
        plan = status.plan
        return (
            status.phase is ArbiterPhase.RUNNING
            and plan is not None
            and len(plan.pipelines) == fleet.operator.goal.pipelines
            and not plan.holes
            and fleet.exits.keys() >= set(plan.leaving)
            and fleet.exits.keys().isdisjoint(plan.live)
        )

    async def steady_step(self) -> int:
        """Wait for the commit of the first steady step of a full plan; the step."""
        fleet = self.fleet
        await fleet.until(self.has_full_plan, "a plan without holes")
        step = fleet.plan().target + 1
        await fleet.committed(step)
        return step

    async def inject(self, *points: Point) -> InjectedFault:
        """Kill the agents of all points in one step, or let them stand still; wait for the next
        commit.

        An agent that does not reach its instruction because of another death is killed after the
        step; its point is not part of the fault.
        """
        fleet = self.fleet
        if points[0].instruction in group_switch.NAMES:
            return await self._inject_in_group(*points)
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
        died: dict[AgentId, float] = {}
        for lead in _LEADS:
            when = max(step, fleet.committed_step) + lead
            for agent, point in victims.items():
                text = f"{ran[agent][point.instruction]} @{when}"
                fleet.arm_kill_switch(agent, point.moment, text, must_act=False)
            if died := await self._deaths(victims, when):
                break
        assert died, f"nobody died at {victims} @{when}\n{fleet.record()}"
        reached = tuple(victims[agent] for agent in died)
        return InjectedFault(when, reached, min(died.values()), tuple(map(tuple, ran.values())))

    async def _inject_in_group(self, point: Point) -> InjectedFault:
        """Kill an agent in one of its groups. Only a new plan makes groups: where one is needed,
        an agent of another pipeline and stage dies first."""
        fleet = self.fleet
        await self.steady_step()
        victim = self._holder(point)
        text = f"{point.moment} {point.instruction}"
        if point.instruction.startswith(group_switch.MAKE):
            rows = fleet.plan().pipelines
            other = rows[(point.pipeline + 1) % len(rows)][(point.stage + 1) % len(rows[0])]
            assert other is not None
            await self._add_newcomer(fleet.pods[other].zone)
            fleet.arm_kill_switch(victim, *text.split(" "))
            fleet.kill(other)
        else:
            fleet.arm_kill_switch(victim, *text.split(" "))
        await fleet.until(lambda: victim in fleet.exits, f"death {text} of {victim}")
        died_at = fleet.died_at(victim)
        assert died_at, f"{victim} did not die {text}\n{fleet.record()}"
        await self._add_newcomer(fleet.pods[victim].zone)
        step = fleet.committed_step
        await fleet.committed(step + 2)
        return InjectedFault(step, (point,), died_at, ())

    async def _deaths(self, victims: dict[AgentId, Point], when: int) -> dict[AgentId, float]:
        """Wait for the step after ``when``; the times of death at the points. Empty: the step was
        over before the switches were armed."""
        fleet = self.fleet
        await fleet.until(
            lambda: victims.keys() <= fleet.exits.keys() or fleet.committed_step > when,
            f"death at {' and '.join(map(str, victims.values()))} @{when}",
        )
        died = {agent: at for agent in victims if (at := fleet.died_at(agent))}
        if not died:
            return {}
        fleet.remove(*(victims.keys() - fleet.exits.keys()))
        await fleet.until(lambda: victims.keys() <= fleet.exits.keys(), f"exits of {victims}")
        await fleet.committed(when + 1)
        return died

    async def _seat_coordinator(self, point: Point) -> None:
        """Make the agent in the point's seat the coordinator: its name sorts before all others."""
        fleet = self.fleet
        await self.steady_step()
        agent = self._holder(point)
        if fleet.plan().coordinator != agent:
            await self._add_newcomer(fleet.pods[agent].zone, prefix="a")
            fleet.kill(agent)
            await fleet.until(lambda: agent in fleet.exits, f"exit of {agent}")
            await self.steady_step()
        assert fleet.plan().coordinator == self._holder(point), fleet.record()

    async def _instructions_of(self, agent: AgentId, point: Point, step: int) -> dict[str, str]:
        """The agent's instructions of ``step`` by name, once the step has ended on the agent. What
        it computes ahead depends on time, and is left out."""
        fleet = self.fleet
        own = fleet.plan().cut[point.stage]
        await fleet.until(
            lambda: fleet.instructions(agent).ended >= step, f"end of step {step} on {agent}"
        )
        ran = fleet.instructions(agent).of(step)
        lines = [line for line in ran if parse_instruction(line).op is not Op.R]
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
