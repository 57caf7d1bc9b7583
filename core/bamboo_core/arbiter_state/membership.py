"""The agents of a job as its arbiter knows them: sessions, readiness, and who counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.planning.requests import Participant
from bamboo_core.protocol import admission, channels
from bamboo_core.protocol.admission import Refusal
from bamboo_core.protocol.channels import Route
from bamboo_core.protocol.messages import Fingerprint, Hello, Ready


@dataclass
class AgentRecord:
    """A connected agent, or one that may come back."""

    hello: Hello
    key: bytes  # its peers must prove that they know it
    ready: Ready | None = None
    is_connected: bool = True
    departs_at: float = inf  # by its own notice

    def will_leave(self, at: float) -> None:
        """The agent has given notice; of several times the earliest counts."""
        self.departs_at = min(self.departs_at, at)


class Suspect(NamedTuple):
    """An agent that counts as lost, though its end has not been seen."""

    why: str
    record: AgentRecord | None  # None: it has no session

    @property
    def is_connected(self) -> bool:
        """Whether its session stands, so that it can be asked again."""
        return self.record is not None and self.record.is_connected


@dataclass
class Membership:
    """Every agent is in at most one of ``agents``, ``suspected`` and ``fenced``."""

    spec: JobSpec
    agents: dict[AgentId, AgentRecord] = field(default_factory=dict)  # those that count
    members: set[AgentId] = field(default_factory=set)  # they must report and have a program
    suspected: dict[AgentId, Suspect] = field(default_factory=dict)  # the next plan fences them
    fenced: set[AgentId] = field(default_factory=set)  # left out of a plan, for ever
    dead: set[AgentId] = field(default_factory=set)  # their end has been seen
    idle: set[AgentId] = field(default_factory=set)  # of an attempt that is over, until a new plan
    without_seat: set[AgentId] = field(default_factory=set)  # the last plan had no use for them
    drained: frozenset[AgentId] = frozenset()  # the desired state wants them to leave
    slow: set[AgentId] = field(default_factory=set)  # they are to be replaced
    ready_at: float = -inf  # when an agent last became ready

    # ------------------------------------------------------------ transitions

    def connect(self, hello: Hello, key: bytes) -> None:
        """A session began. An agent keeps its first key as long as it is known."""
        self.suspected.pop(hello.agent, None)
        record = self.agents.setdefault(hello.agent, AgentRecord(hello, key))
        record.hello, record.is_connected = hello, True

    def remember(self, hello: Hello) -> None:
        """While nobody is a member: one with a plan took part under an earlier leader."""
        if hello.fence != Fence() and not self.knows(hello.agent):
            self.idle.add(hello.agent)

    def disconnect(self, agent: AgentId) -> bool:
        """A session has ended; whether the agent still counts."""
        if agent in self.agents:
            self.agents[agent].is_connected = False
            return True
        if agent in self.suspected:
            self.suspected[agent] = Suspect(self.suspected[agent].why, None)
        return False

    def admit(
        self, agent: AgentId, record: AgentRecord, ready: Ready, now: float
    ) -> Refusal | None:
        """Note that the agent is ready; return why it cannot be used, if so."""
        refusal = admission.check(self.spec, ready) or self._compare(agent, ready)
        if refusal is not None:
            record.ready = None
            return refusal
        if record.ready is None:
            self.ready_at = now
        record.ready = ready
        return None

    def _compare(self, agent: AgentId, ready: Ready) -> Refusal | None:
        """Against the members: one may know what another does not."""
        return _refusal(agent, ready.fingerprint, self._known(but=agent))

    def _known(self, but: AgentId | None = None) -> dict[Fingerprint, AgentId]:
        """The fingerprints of the members that are ready, each with the first that has it."""
        found: dict[Fingerprint, AgentId] = {}
        for agent in sorted(self.members & self.agents.keys()):
            ready = self.agents[agent].ready
            if ready is not None and agent != but:
                found.setdefault(ready.fingerprint, agent)
        return found

    def awaits_reference(self) -> bool:
        """Whether members may still become ready with which newcomers have to be compared."""
        records = [self.agents[agent] for agent in self.members & self.agents.keys()]
        return bool(records) and all(record.ready is None for record in records)

    def strangers(
        self,
        agents: Set[AgentId],
        kind: ProcessorKind,
        is_enough: Callable[[Set[AgentId]], bool] | None = None,
    ) -> dict[AgentId, Refusal]:
        """Those of the ready agents, which are no members, that differ from the members; without
        ready members: from most of them, or from those of the job's kind of processor.

        kind: of the job until now. These agents win if the others are not more, or if they are
        enough for what is wanted.
        """
        known = self._known()
        prints = {agent: self._fingerprint(agent) for agent in sorted(agents)}
        if not known and prints:
            for agent in _winners(prints, kind, is_enough or (lambda _: False)):
                known.setdefault(prints[agent], agent)
        found: dict[AgentId, Refusal] = {}
        for agent, mine in prints.items():
            refusal = _refusal(agent, mine, known)
            if refusal is None:
                known.setdefault(mine, agent)
            else:
                found[agent] = refusal
        return found

    def _fingerprint(self, agent: AgentId) -> Fingerprint:
        ready = self.agents[agent].ready
        assert ready is not None
        return ready.fingerprint

    def suspect(self, agent: AgentId, why: str) -> None:
        """The agent does not count any more; the next plan settles what becomes of it."""
        self.suspected[agent] = Suspect(why, self.agents.pop(agent, None))

    def reinstate(self, agent: AgentId) -> None:
        """A connected suspect counts again."""
        record = self.suspected.pop(agent).record
        assert record is not None
        self.agents[agent] = record

    def reinstate_all(self) -> None:
        """Every connected suspect counts again."""
        for agent in self.askable():
            self.reinstate(agent)

    def forget(self, agent: AgentId) -> None:
        """The agent's pod goes away."""
        self.agents.pop(agent, None)
        self.suspected.pop(agent, None)

    # ------------------------------------------------------------ queries

    def knows(self, agent: AgentId) -> bool:
        """Whether it is, or was, an agent of the job."""
        return any(agent in x for x in (self.agents, self.suspected, self.fenced, self.dead))

    def node_of(self, agent: AgentId) -> str:
        """The node of an agent, whether it counts or not; its own name if that is not known."""
        suspect = self.suspected.get(agent)
        record = self.agents.get(agent) or (suspect.record if suspect is not None else None)
        return record.hello.node if record is not None and record.hello.node else agent

    def is_connected(self, agent: AgentId) -> bool:
        """Whether the agent counts and its session stands."""
        return agent in self.agents and self.agents[agent].is_connected

    def is_departing(self, agent: AgentId) -> bool:
        """Whether the agent will leave, by its notice or by the desired state; or has left."""
        record = self.agents.get(agent)
        return record is None or record.departs_at < inf or agent in self.drained

    def connected(self) -> frozenset[AgentId]:
        """Agents with a session."""
        return frozenset([a for a, x in self.agents.items() if x.is_connected])

    def askable(self) -> set[AgentId]:
        """Suspects with a session: they can be asked again."""
        return {agent for agent, suspect in self.suspected.items() if suspect.is_connected}

    def in_session(self) -> set[AgentId]:
        """Agents with a session that may still be used, suspects included."""
        return self.askable() | self.connected()

    def ready(self) -> tuple[AgentId, ...]:
        """Agents that can be used, sorted."""
        return tuple(sorted(a for a, x in self.agents.items() if x.ready is not None))

    def has_ready(self) -> bool:
        """Whether any agent can be used."""
        return any(x.ready is not None for x in self.agents.values())

    def reachable(self) -> set[AgentId]:
        """Agents that can be asked for what they hold, departing ones included."""
        return {a for a, x in self.agents.items() if x.is_connected and x.ready is not None}

    def usable(self) -> set[AgentId]:
        """Agents that can be given work and will stay."""
        return {a for a in self.reachable() - self.slow if not self.is_departing(a)}

    def standby(self) -> set[AgentId]:
        """Usable agents that are not members."""
        others = self.reachable() - self.slow - self.members  # few of many: asked at each heartbeat
        return {a for a in others if not self.is_departing(a)}

    def departures(self) -> dict[AgentId, float]:
        """When agents will be gone, by their own notice."""
        return {a: x.departs_at for a, x in self.agents.items() if x.departs_at < inf}

    def zones(self, agents: Collection[AgentId]) -> dict[str, int]:
        """zone -> how many of the agents are there."""
        count: dict[str, int] = {}
        for agent in agents:
            zone = self.agents[agent].hello.zone
            count[zone] = count.get(zone, 0) + 1
        return count

    def participants(self) -> dict[AgentId, Participant]:
        """Facts about each member for the planner."""
        return {
            a: Participant(
                x.hello.zone, x.hello.node, x.hello.data_address, x.hello.liveness_address, x.key
            )
            for a, x in sorted(self.agents.items())
            if a in self.members
        }

    def reference(self) -> Ready:
        """One member's view of model and data; all are equal but for measured costs."""
        found = (x.ready for a, x in sorted(self.agents.items()) if a in self.members)
        return next(r for r in found if r is not None)

    def processor(self) -> ProcessorKind:
        """The members' kind of processor, as far as any of them knows it; they do not differ."""
        found = ProcessorKind()
        for agent in sorted(self.members & self.agents.keys()):
            ready = self.agents[agent].ready
            if ready is not None:
                found = found.filled(_kind_of(ready.fingerprint))
        return found

    def route(self, spec: JobSpec) -> Route | None:
        """How items travel between the agents, who are alike; None if none is ready."""
        found = next((x.ready for x in self.agents.values() if x.ready is not None), None)
        if found is None:
            return None
        return channels.choose(spec.transport, found.fingerprint.device, found.nccl)

    def smallest_memory(self) -> int:
        """Bytes of the members' smallest device; 0 if no member knows its own."""
        found = (
            x.ready.memory_bytes for a, x in self.agents.items() if a in self.members and x.ready
        )
        return min((x for x in found if x), default=0)

    def longest_instruction_s(self) -> float:
        """By the members' own profiles: no agent runs more than two stages in one instruction."""
        whole_s = max(
            (
                sum(c.backward_s + c.forward_s for c in x.ready.costs)
                for a, x in self.agents.items()
                if a in self.members and x.ready is not None
            ),
            default=0.0,
        )
        return whole_s * min(1.0, 2 / self.spec.pipelines.stages)


def _refusal(
    agent: AgentId, found: Fingerprint, others: Mapping[Fingerprint, AgentId]
) -> Refusal | None:
    """Why the agent does not fit others, which have these fingerprints."""
    for wanted, other in others.items():
        refusal = admission.compare(agent, found, other, wanted)
        if refusal is not None:
            return refusal
    return None


def _kind_of(found: Fingerprint) -> ProcessorKind:
    return ProcessorKind(found.device, found.products)


def _winners(
    prints: Mapping[AgentId, Fingerprint],
    kind: ProcessorKind,
    is_enough: Callable[[Set[AgentId]], bool],
) -> list[AgentId]:
    """The agents from which others may not differ: those of the job's kind of processor, if most
    are not others or if they are enough; else most of all."""
    groups = _groups(prints)
    own = [agents for found, agents in groups if _kind_of(found).is_like(kind)]
    if own:
        agents = min(own, key=_rank)
        if 2 * len(agents) >= len(prints) or is_enough(frozenset(agents)):
            return agents
    return min((agents for _, agents in groups), key=_rank)


def _groups(
    prints: Mapping[AgentId, Fingerprint],
) -> list[tuple[Fingerprint, list[AgentId]]]:
    """The agents in groups that do not differ, each with what any of them knows.

    Agents that know least are put last into a group, the largest from which they do not differ.
    """
    by_print: dict[Fingerprint, list[AgentId]] = {}
    for agent, found in sorted(prints.items()):
        by_print.setdefault(found, []).append(agent)
    ranked = sorted(by_print.items(), key=lambda x: (admission.unknown(x[0]), -len(x[1]), x[1][0]))
    groups: list[tuple[Fingerprint, list[AgentId]]] = []
    for found, agents in ranked:
        fit = [n for n, (known, _) in enumerate(groups) if admission.are_alike(found, known)]
        if not fit:
            groups.append((found, agents))
            continue
        best = min(fit, key=lambda n: _rank(groups[n][1]))
        known, there = groups[best]
        groups[best] = (admission.joined(known, found), sorted([*there, *agents]))
    return groups


def _rank(agents: list[AgentId]) -> tuple[int, AgentId]:
    return -len(agents), agents[0]
