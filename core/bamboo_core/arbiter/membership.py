"""The agents that an arbiter knows: their sessions, what they found, whether they will go away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter import admission
from bamboo_core.arbiter.admission import Refusal
from bamboo_core.model.ids import AgentId
from bamboo_core.planning.requests import Participant
from bamboo_core.protocol.messages import Hello, Ready


@dataclass
class AgentRecord:
    """A connected agent, or one that may come back. departs_at: by its own notice; attempt: that
    of what it does, by its hello and its reports."""

    hello: Hello
    key: bytes
    ready: Ready | None = None
    is_connected: bool = True
    departs_at: float = inf
    attempt: int = 0

    def will_leave(self, at: float) -> None:
        """It has said so; of several instants the earliest counts."""
        self.departs_at = min(self.departs_at, at)


class Membership:
    """``drained``: agents that the goal wants to leave; ready_at: when one last became ready."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self.agents: dict[AgentId, AgentRecord] = {}
        self.drained: frozenset[AgentId] = frozenset()
        self.ready_at = -inf

    def connect(self, hello: Hello, key: bytes) -> None:
        """A session began. An agent keeps its first key as long as it is known."""
        known = self.agents.setdefault(hello.agent, AgentRecord(hello, key))
        known.hello, known.is_connected = hello, True
        known.attempt = hello.fence.attempt

    def admit(
        self,
        agent: AgentId,
        known: AgentRecord,
        ready: Ready,
        members: Collection[AgentId],
        now: float,
    ) -> Refusal | None:
        """The agent is ready, which is noted in ``known``; why it cannot be used, if so."""
        refusal = admission.check(self._spec, ready) or self._compare(agent, ready, members)
        if refusal is not None:
            known.ready = None
            return refusal
        if known.ready is None:
            self.ready_at = now
        known.ready = ready
        return None

    def _compare(
        self, agent: AgentId, ready: Ready, members: Collection[AgentId]
    ) -> Refusal | None:
        """Against a member, else against the first that became ready."""
        others = [a for a, x in self.agents.items() if x.ready is not None and a != agent]
        other = next((a for a in others if a in members), others[0] if others else None)
        if other is None:
            return None
        reference = self.agents[other].ready
        assert reference is not None
        return admission.compare(agent, ready.fingerprint, other, reference.fingerprint)

    def is_connected(self, agent: AgentId) -> bool:
        """Whether its session stands."""
        return agent in self.agents and self.agents[agent].is_connected

    def is_departing(self, agent: AgentId) -> bool:
        """Whether it will go away, by itself or by the goal; unknown agents are gone."""
        known = self.agents.get(agent)
        return known is None or known.departs_at < inf or agent in self.drained

    def connected(self) -> tuple[AgentId, ...]:
        """Agents with a session, sorted."""
        return tuple(sorted(a for a, x in self.agents.items() if x.is_connected))

    def ready(self) -> tuple[AgentId, ...]:
        """Agents that can be used, sorted."""
        return tuple(sorted(a for a, x in self.agents.items() if x.ready is not None))

    def reachable(self) -> set[AgentId]:
        """Connected agents that can be asked for what they hold, leavers included."""
        return {a for a, x in self.agents.items() if x.is_connected and x.ready is not None}

    def usable(self) -> set[AgentId]:
        """Those of them that can be given work and will stay."""
        return {a for a in self.reachable() if not self.is_departing(a)}

    def departures(self) -> dict[AgentId, float]:
        """When agents will be gone, of those that said so."""
        return {a: x.departs_at for a, x in self.agents.items() if x.departs_at < inf}

    def zones(self, agents: Collection[AgentId]) -> dict[str, int]:
        """zone -> how many of the agents are there."""
        count: dict[str, int] = {}
        for agent in agents:
            zone = self.agents[agent].hello.zone
            count[zone] = count.get(zone, 0) + 1
        return count

    def participants(self, agents: Collection[AgentId]) -> dict[AgentId, Participant]:
        """What a plan needs to know of each."""
        return {
            a: Participant(
                x.hello.zone, x.hello.node, x.hello.data_address, x.hello.liveness_address, x.key
            )
            for a, x in sorted(self.agents.items())
            if a in agents
        }

    def reference(self, agents: Collection[AgentId]) -> Ready:
        """One agent's view of model and data; all are equal but for measured costs."""
        found = (x.ready for a, x in sorted(self.agents.items()) if a in agents)
        return next(r for r in found if r is not None)

    def smallest_memory(self, agents: Collection[AgentId]) -> int:
        """Bytes of the smallest device among those who know theirs; 0 if nobody does."""
        found = (x.ready.memory_bytes for a, x in self.agents.items() if a in agents and x.ready)
        return min((x for x in found if x), default=0)

    def longest_instruction_s(self, agents: Collection[AgentId]) -> float:
        """By the agents' own profiles; nobody runs more than two stages in one instruction."""
        whole_s = max(
            (
                sum(c.backward_s + c.forward_s for c in x.ready.costs)
                for a, x in self.agents.items()
                if a in agents and x.ready is not None
            ),
            default=0.0,
        )
        return whole_s * min(1.0, 2 / self._spec.pipelines.stages)
