"""Kinds of faults. Each returns what it did, and its victims, once it has ended by itself;
:meth:`Injector.heal` ends the rest. Faults of agents are for ever unless they say otherwise."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from bamboo_core.api.outcome import Outcome
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_sim.fleet.injection.effects import OPERATOR, Effect, count
from bamboo_sim.fleet.local_fleet import LocalFleet, Processes
from bamboo_sim.fleet.local_operator import Writes

Did = tuple[str, tuple[str, ...]]
"""A text that says what was done, and the victims: agents or the operator."""


@dataclass(frozen=True)
class Injected:
    """A fault. victims: one of them must show its effect, or an agent that has come since if it is
    in STORAGE."""

    kind: str
    text: str
    victims: tuple[str, ...]


class NobodyLeftError(Exception):
    """No agent is left for a fault whose effect could be told from those of the others."""


PROCESSES: tuple[Processes, ...] = ("both", "worker", "supervisor")
INSTRUCTION_FLOOR_S = 2.0
"""No instruction of a soaked job counts as stuck before. Its supervisor may kill a worker that has
stood still for longer."""
VOLUME = "volume"
"""The folder that a job's ``checkpoints`` are a link to, as if it were mounted there: while it is
away, nothing can be written in its place."""
LEAST_AWAY_S, AWAY_S = 3.0, (7.0, 20.0)
"""How long sessions are refused, at least, and at most in one of two cases each."""
MEET_S = 3.0
"""How much longer a fault lasts, at most, that no agent has met."""
END_S = 120.0
"""Longest wait for the end of a job, or for its suspension. After that the round says why there is
none."""
POLL_S = 0.02
_MOST_ROOM = 1000  # bytes of each file on a full disk; fewer than a layer has


class Injector:
    """Injects the faults of one round.

    Each fault has a victim that no other fault with the same effect has, and is judged by such
    victims only: otherwise one effect would count for two faults.
    """

    def __init__(
        self,
        fleet: LocalFleet,
        chance: random.Random,
        losing: Callable[[AgentId], None] = lambda _: None,
    ) -> None:
        """losing: called just before an agent is killed, or made useless for ever."""
        self.doomed: set[AgentId] = set()
        """Agents that do not come back, although their processes may be there."""
        self.going: set[AgentId] = set()
        """Agents that may end, since they were told to, or their supervisors may kill them."""
        self.refused: dict[AgentId, float] = {}
        """Agents whose sessions were refused, and for how many seconds. One that counts as lost
        meanwhile may end when it comes back."""
        self._losing = losing
        self._fleet, self._chance = fleet, chance
        self._injected: list[Injected] = []
        self._claims: list[tuple[str, tuple[str, ...]]] = []
        self._before = fleet.faults.counted.acts()
        self._live = sorted(fleet.plan().live)
        self._free = list(self._live)
        chance.shuffle(self._free)

    async def inject(self, kind: str) -> None:
        """Inject one fault after a short random time, unless no agent is left for it."""
        await self._pass(0.0, 0.4)
        try:
            text, victims = await KINDS[kind](self)
        except NobodyLeftError:
            text, victims = f"{kind}: no agent is left for it", ()
        self._injected.append(Injected(kind, text, victims))

    def acted(self) -> list[tuple[Injected, int]]:
        """The faults, and how often each has acted so far on the victims that are its own."""
        now = self._fleet.faults.counted.acts()
        found = list[tuple[Injected, int]]()
        for fault in self._injected:
            own = own_victims(fault.kind, fault.victims, self._claims)
            if own and fault.kind in STORAGE:
                own |= {agent for agent, _ in now}
            before, after = (count(x, own, EFFECTS[fault.kind]) for x in (self._before, now))
            found.append((fault, after - before))
        return found

    def heal(self) -> None:
        """End all faults of the network, the disks and the operator."""
        self._fleet.faults.heal()
        operator = self._fleet.operator
        operator.let_go()
        operator.writes = Writes()
        operator.thaw()

    def _doom(self, agent: AgentId) -> AgentId:
        """The agent is about to be lost for ever."""
        self.doomed.add(agent)
        self._losing(agent)
        return agent

    async def _until(self, condition: Callable[[], bool], most_s: float) -> float:
        """Wait for the condition, at most so long. Seconds."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() > began + most_s:
                break
            await asyncio.sleep(POLL_S)
        return round(time.monotonic() - began, 2)

    def _effects(self, effect: Effect, *who: str) -> int:
        """How often it has happened in this round, to these agents (none: to any)."""
        risen = self._fleet.faults.counted.acts() - self._before
        return sum(
            times
            for (agent, x), times in risen.items()
            if x is effect and (not who or agent in who)
        )

    async def _pass(self, least_s: float, most_s: float) -> float:
        """Let a random time pass: it is part of the fault."""
        seconds = self._chance.uniform(least_s, most_s)
        await asyncio.sleep(seconds)
        return round(seconds, 2)

    def _claim(self, kind: str, *victims: str) -> bool:
        """Whether the fault may have these victims: it and each fault before keep one of their
        own. If so, remember them."""
        claims = [*self._claims, (kind, victims)]
        if not all(own_victims(*claim, claims) for claim in claims):
            return False
        self._claims = claims
        return True

    def _victim(self, kind: str) -> AgentId:
        """An agent that no fault of one agent has hit. NobodyLeftError."""
        for agent in reversed(self._free):
            if self._claim(kind, agent):
                self._free.remove(agent)
                return agent
        raise NobodyLeftError

    def _pair(self, kind: str, *, one_way: bool = False) -> tuple[AgentId, AgentId]:
        """Two agents, of which both are victims, or the second one only. NobodyLeftError."""
        pairs = list(permutations(self._live, 2))
        self._chance.shuffle(pairs)
        for one, other in pairs:
            if self._claim(kind, *((other,) if one_way else (one, other))):
                return one, other
        raise NobodyLeftError

    def _several(self, kind: str) -> list[AgentId]:
        """Two agents or more as victims, if there are so many. NobodyLeftError."""
        count = self._chance.randint(min(2, len(self._live)), len(self._live))
        some = self._chance.sample(self._live, count)
        if not self._claim(kind, *some):
            raise NobodyLeftError
        return some

    def _all(self, kind: str) -> tuple[AgentId, ...]:
        """All agents as victims. NobodyLeftError."""
        if not self._claim(kind, *self._live):
            raise NobodyLeftError
        return tuple(self._live)

    def _operator(self, kind: str) -> tuple[str]:
        """The operator as the victim. NobodyLeftError."""
        if not self._claim(kind, OPERATOR):
            raise NobodyLeftError
        return (OPERATOR,)

    # ------------------------------------------------------------ agents

    async def kill(self) -> Did:
        agent = self._doom(self._victim("kill"))
        self._fleet.kill(agent)
        return f"kill {agent}", (agent,)

    async def kill_worker(self) -> Did:
        agent = self._doom(self._victim("kill_worker"))
        self._fleet.kill_worker(agent)
        return f"kill the worker of {agent}", (agent,)

    async def notice(self) -> Did:
        self.going.add(agent := self._victim("notice"))
        self._fleet.terminate(agent)
        return f"SIGTERM {agent}", (agent,)

    async def freeze(self) -> Did:
        agent, what = self._victim("freeze"), self._chance.choice(PROCESSES)
        self._fleet.freeze(agent, what)
        seconds = await self._pass(0.3, 4.0)
        self._fleet.thaw(agent)
        if what == "worker" and seconds > INSTRUCTION_FLOOR_S:
            self.going.add(agent)
        return f"freeze {what} of {agent} for {seconds:g} s", (agent,)

    async def freeze_for_ever(self) -> Did:
        agent = self._doom(self._victim("freeze_for_ever"))
        what = self._chance.choice(("both", "supervisor"))
        self._fleet.freeze(agent, what)  # type: ignore[arg-type]
        return f"freeze {what} of {agent}", (agent,)

    async def hang(self) -> Did:
        agent = self._doom(self._victim("hang"))
        self._fleet.hang(agent)
        return f"hang {agent}", (agent,)

    # ------------------------------------------------------------ network

    async def reset(self) -> Did:
        victims = self._all("reset")
        self._fleet.faults.reset()
        return "reset all", victims

    async def reset_agent(self) -> Did:
        agent = self._victim("reset_agent")
        self._fleet.faults.reset([agent])
        return f"reset {agent}", (agent,)

    async def truncate(self) -> Did:
        one, other = self._pair("truncate")
        self._fleet.faults.truncate(one, other)
        self._fleet.faults.truncate(other, one)
        await self._until(lambda: self._effects(Effect.CUT_FRAME, one, other) > 0, MEET_S)
        return f"truncate {one} - {other}", (one, other)

    async def cut(self) -> Did:
        one, other = self._pair("cut")
        self._fleet.faults.cut(one, other)
        return f"cut {one} - {other} for {await self._pass(0.3, 5.0):g} s", (one, other)

    async def cut_one_way(self) -> Did:
        one, other = self._pair("cut_one_way", one_way=True)
        self._fleet.faults.cut(one, other, one_way=True)
        return f"cut {one} -> {other} for {await self._pass(0.3, 5.0):g} s", (other,)

    async def trickle(self) -> Did:
        one, other = self._pair("trickle")
        self._fleet.faults.trickle(one, other)
        most_s = self._chance.uniform(1.0, 45.0)
        seconds = await self._until(lambda: self._is_out(one, other), most_s)
        seconds += await self._pass(0.0, 2.0)
        return f"trickle {one} - {other} for {seconds:g} s", (one, other)

    def _is_out(self, one: AgentId, other: AgentId) -> bool:
        """Whether the plan does without the link between two agents."""
        arbiter = self._fleet.operator.arbiter
        plan = None if arbiter is None else arbiter.status().plan
        return plan is not None and not {one, other} <= set(plan.live)

    async def cut_session(self) -> Did:
        agent = self._victim("cut_session")
        self._fleet.operator.hold(agent)
        return f"hold the session of {agent} for {await self._pass(0.3, 4.0):g} s", (agent,)

    async def refuse_sessions(self) -> Did:
        """They come back one by one."""
        agents, operator = self._several("refuse_sessions"), self._fleet.operator
        half_s = self._chance.choice(AWAY_S) / 2
        operator.refuse(*agents)
        away_s = 0.0
        for agent in agents:
            least_s, most_s = (0.0, half_s / len(agents)) if away_s else (LEAST_AWAY_S, half_s)
            away_s += await self._pass(least_s, most_s)
            self.refused[agent] = away_s
            operator.admit(agent)
        names = " ".join(agents)
        return f"refuse sessions of {names}, one after the other for {away_s:g} s", tuple(agents)

    async def delay(self) -> Did:
        agent = self._victim("delay")
        self._fleet.faults.delay(agent, late_s := round(self._chance.uniform(0.05, 0.4), 2))
        return f"delay {agent} by {late_s:g} s for {await self._pass(0.5, 2.0):g} s", (agent,)

    # ------------------------------------------------------------ storage

    async def slow_disk(self) -> Did:
        victims = self._all("slow_disk")
        delay_s = round(self._chance.uniform(0.02, 0.3), 2)
        self._fleet.faults.slow_disk(delay_s)
        return f"slow disk of {delay_s:g} s for {await self._pass(0.5, 3.0):g} s", victims

    async def bad_disk(self) -> Did:
        victims = self._all("bad_disk")
        self._fleet.faults.fail_disk()
        return f"failing disk for {await self._pass(0.5, 3.0):g} s", victims

    async def folder_away(self) -> Did:
        victims = self._all("folder_away")
        self._fleet.faults.take_away(self._fleet.folder.parent / VOLUME)
        seconds = await self._pass(0.5, 3.0)
        seconds += await self._until(lambda: self._effects(Effect.ABSENT_FOLDER) > 0, MEET_S)
        return f"folder of the checkpoints away for {seconds:g} s", victims

    async def full_disk(self) -> Did:
        """The job has to be near its end. Only writes after its last step count."""
        victims = self._all("full_disk")
        room = self._chance.choice((0, 1, self._chance.randint(2, _MOST_ROOM)))
        self._fleet.faults.fill_disk(room)
        last = self._fleet.spec.training.steps - 1
        await self._until(lambda: self._fleet.committed_step >= last, END_S)
        self._before = self._fleet.faults.counted.acts()
        await self._until(self._is_last_write_waiting, END_S)
        seconds = await self._pass(0.2, 6.0)
        half = f" after {counted(room, 'byte')} of each file" if room else ""
        return f"full disk{half} at the last write, for {seconds:g} s more", victims

    def _is_last_write_waiting(self) -> bool:
        operator = self._fleet.operator
        if operator.over is not None:
            return True  # it was not needed
        is_known = operator.arbiter is not None and operator.arbiter.status().unwritten is not None
        return is_known and self._effects(Effect.FULL_DISK) > 0

    # ------------------------------------------------------------ suspension

    async def blip_in_suspension(self) -> Did:
        """The job is suspended while sessions are cut. Once it rests, it goes on with new agents,
        which others have to start."""
        victims, operator = self._operator("blip_in_suspension"), self._fleet.operator
        cut = self._chance.sample(self._live, self._chance.randint(1, len(self._live)))
        operator.hold(*cut)
        has_reset = self._chance.random() < 0.5
        if has_reset:
            self._fleet.faults.reset(cut)
        before_s = await self._pass(0.0, 1.0)
        held = self._effects(Effect.HELD)
        operator.change_goal(suspended=True)
        seconds = await self._pass(0.3, 4.0)
        was_held = self._effects(Effect.HELD) > held
        operator.let_go()
        await self._until(lambda: operator.over is not None, END_S)
        if operator.over is not None and operator.over.outcome is Outcome.SUSPENDED:
            if was_held:
                self._fleet.faults.counted.count(OPERATOR, Effect.SUSPENDED)
            await self._until(lambda: self._fleet.exits.keys() >= self._fleet.pods.keys(), END_S)
            operator.over = None
            operator.change_goal(suspended=False)
        how = "hold and reset" if has_reset else "hold"
        return (
            f"{how} the sessions of {' '.join(sorted(cut))}, suspend after {before_s:g} s, let go"
            f" after {seconds:g} s more, and resume"
        ), victims

    # ------------------------------------------------------------ operator

    async def replace_operator(self) -> Did:
        victims = self._operator("replace_operator")
        await self._fleet.operator.stop()
        seconds = await self._pass(0.0, 2.0)
        await self._fleet.operator.start()
        return f"replace the operator after {seconds:g} s", victims

    async def freeze_operator(self) -> Did:
        victims = self._operator("freeze_operator")
        self._fleet.operator.freeze()
        seconds = await self._pass(0.3, 4.0)
        self._fleet.operator.thaw()
        return f"freeze the operator for {seconds:g} s", victims

    async def slow_writes(self) -> Did:
        victims = self._operator("slow_writes")
        delay_s = round(self._chance.uniform(0.3, 3.0), 2)
        lands_first = self._chance.random() < 0.5
        self._fleet.operator.writes = Writes(delay_s, lands_first=lands_first)
        await self.kill()
        seconds = await self._pass(1.0, 4.0)
        return f"kill during durable writes of {delay_s:g} s for {seconds:g} s", victims

    async def failing_writes(self) -> Did:
        victims = self._operator("failing_writes")
        self._fleet.operator.writes = Writes(fail=True)
        await self.kill()
        seconds = await self._pass(0.5, 3.0)
        return f"kill during failing durable writes for {seconds:g} s", victims


KINDS: Mapping[str, Callable[[Injector], Awaitable[Did]]] = {
    name: getattr(Injector, name)
    for name in (
        *("kill", "kill_worker", "notice", "freeze", "freeze_for_ever", "hang"),
        *("reset", "reset_agent", "truncate", "cut", "cut_one_way", "trickle"),
        *("cut_session", "refuse_sessions", "delay"),
        *("slow_disk", "bad_disk", "folder_away", "full_disk", "blip_in_suspension"),
        *("replace_operator", "freeze_operator", "slow_writes", "failing_writes"),
    )
}
EFFECTS: Mapping[str, tuple[Effect, ...]] = {
    "kill": (Effect.KILLED,),
    "kill_worker": (Effect.KILLED,),
    "notice": (Effect.NOTICED,),
    "freeze": (Effect.STOPPED,),
    "freeze_for_ever": (Effect.STOPPED,),
    "hang": (Effect.HUNG,),
    "reset": (Effect.RESET,),
    "reset_agent": (Effect.RESET,),
    "truncate": (Effect.CUT_FRAME,),
    "cut": (Effect.LOST_SEGMENT,),
    "cut_one_way": (Effect.LOST_SEGMENT,),
    "trickle": (Effect.TRICKLED,),
    "cut_session": (Effect.HELD,),
    "refuse_sessions": (Effect.REFUSED,),
    "delay": (Effect.LATE_FRAME, Effect.LATE_HEARTBEAT),
    "slow_disk": (Effect.SLOW_DISK,),
    "bad_disk": (Effect.FAILED_DISK,),
    "folder_away": (Effect.ABSENT_FOLDER,),
    "full_disk": (Effect.FULL_DISK,),
    "blip_in_suspension": (Effect.SUSPENDED,),
    "replace_operator": (Effect.REPLACED,),
    "freeze_operator": (Effect.UNHEARD,),
    "slow_writes": (Effect.SLOW_WRITE,),
    "failing_writes": (Effect.FAILED_WRITE,),
}
"""Kind -> its effects, of which one must happen."""
ALONE = frozenset({"replace_operator", "freeze_operator"})
"""At most one of these in a round: there is one operator."""
STORAGE = frozenset({"slow_disk", "bad_disk", "folder_away", "full_disk"})
"""All agents share the storage, those that come meanwhile, too."""
HIDING = frozenset({"bad_disk", "folder_away"})
"""At most one of these in a round: a disk that fails does not tell whether a folder is there."""
LAST = "full_disk"
"""The fault of a job's last round, and of no other: it needs the job's end."""
LONG = frozenset({"trickle", "blip_in_suspension", LAST})
"""Each is the only fault of its round, since all faults of a round end together."""
LONG_SHARE = 0.28
"""Share of rounds, without the last ones, that have such a fault."""
LOSSES = ("kill", "kill_worker", "freeze_for_ever", "hang", "slow_writes", "failing_writes")
"""Each of these makes an agent useless for ever."""
OFTEN: Mapping[str, int] = {
    "folder_away": 15,
    "truncate": 16,
    "refuse_sessions": 14,
    "replace_operator": 2,
    **dict.fromkeys(LOSSES, 11),
}
"""So many times as often as others. Not every folder that is away is missed by an agent."""
WHOLE = frozenset(
    {
        *("reset", "refuse_sessions", "slow_writes", "failing_writes"),
        *("slow_disk", "bad_disk", "folder_away"),
    }
)
"""Their victims are several agents or all, or the operator: no other fault of a round has their
effect."""


def own_victims(
    kind: str, victims: Sequence[str], claims: Sequence[tuple[str, Sequence[str]]]
) -> frozenset[str]:
    """The victims that no other fault with an effect of this kind has. claims: kind and victims of
    each fault of the round, this one included."""
    shared = set[str]()
    is_itself_seen = False
    for other, theirs in claims:
        if (other, theirs) == (kind, victims) and not is_itself_seen:
            is_itself_seen = True
        elif not set(EFFECTS[kind]).isdisjoint(EFFECTS[other]):
            shared.update(theirs)
    return frozenset(victims) - shared


def choose(chance: random.Random, most: int = 3) -> list[str]:
    """The kinds of one round that is not the last one: those whose effects can be told apart."""
    if chance.random() < LONG_SHARE:
        return [chance.choice(sorted(LONG - {LAST}))]
    chosen = list[str]()
    names = sorted(KINDS.keys() - LONG)
    weights = [OFTEN.get(kind, 1) for kind in names]
    for kind in chance.choices(names, weights, k=chance.randint(1, most)):
        if not any(_excludes(kind, other) for other in chosen):
            chosen.append(kind)
    return chosen


def _excludes(kind: str, other: str) -> bool:
    """Whether no round has both."""
    have_same = not set(EFFECTS[kind]).isdisjoint(EFFECTS[other])
    at_most_one = any({kind, other} <= group for group in (ALONE, HIDING))
    return at_most_one or (have_same and not WHOLE.isdisjoint({kind, other}))
