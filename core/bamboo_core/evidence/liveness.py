"""Which agents are alive: contact with the operator, and suspicions among agents.

An agent is lost if it is suspected and silent, or silent for long. A suspicion counts only in the
epoch in which it was raised, and as long as the agent that raised it repeats it. Two live agents
that cannot reach each other get one new epoch, since that makes their connection anew; if the link
breaks again, one of them loses its seat. Times are attentive time (bamboo_core.protocol.clock).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause, Suspicion

Link = tuple[AgentId, AgentId]
"""Two agents, in the order of their names."""


@dataclass(frozen=True)
class Patience:
    """Seconds after which an agent is lost, a link is broken, or agents wait in vain."""

    silence_s: float = 1.0  # of a suspected agent
    unreachable_s: float = 3.0  # of any agent
    link_s: float = 1.0  # without progress, while one end suspects the other
    wait_s: float = 3.0  # for an item that nobody is going to send

    def with_rarer(self, later_s: float) -> Patience:
        """The same for agents whose heartbeats come so many seconds later than usual."""
        return Patience(
            silence_s=self.silence_s + later_s,
            unreachable_s=self.unreachable_s + 2 * later_s,
            link_s=self.link_s + later_s,
            wait_s=self.wait_s + later_s,
        )


@dataclass
class Evidence:
    """Signs of life of each agent, and suspicions against it."""

    patience: Patience
    heard: dict[AgentId, float] = field(default_factory=dict)  # time of the last sign of life
    gone: set[AgentId] = field(default_factory=set)  # agents whose stream is closed
    # agent that suspects others -> suspected agent -> (since, cause)
    suspicions: dict[AgentId, dict[AgentId, tuple[float, Cause]]] = field(default_factory=dict)
    tried: set[Link] = field(default_factory=set)  # broken links that have had a new epoch

    def hear(self, agent: AgentId, now: float) -> None:
        """Something has come from the agent."""
        self.heard[agent] = now
        self.gone.discard(agent)

    def disconnect(self, agent: AgentId, now: float) -> None:
        """The agent's stream is closed; its silence begins now."""
        if agent not in self.gone:
            self.heard[agent] = now
            self.gone.add(agent)

    def forget(self, agent: AgentId) -> None:
        """The agent is no longer watched."""
        self.heard.pop(agent, None)
        self.gone.discard(agent)
        self.suspicions.pop(agent, None)
        for others in self.suspicions.values():
            others.pop(agent, None)

    def suspect(self, by: AgentId, suspicions: Iterable[Suspicion], now: float) -> bool:
        """All suspicions of the present epoch that ``by`` holds now; whether any is new."""
        before = self.suspicions.get(by, {})
        held = {}
        for suspicion in suspicions:
            known = before.get(suspicion.agent)
            is_known = known is not None and known[1] is suspicion.cause
            held[suspicion.agent] = known if is_known and known else (now, suspicion.cause)
        self.suspicions[by] = held
        return bool(held.keys() - before.keys())

    def begin_epoch(self) -> None:
        """Suspicions that still hold will be reported again."""
        self.suspicions.clear()

    def settle(self) -> None:
        """Training goes on: forgive links that were broken."""
        self.tried.clear()

    def lost(
        self, agents: Collection[AgentId], now: float, *, may_be_refuted: bool = False
    ) -> list[tuple[AgentId, str]]:
        """Which of the agents are lost now, with the evidence.

        may_be_refuted: words of agents wait to be read, so suspicions do not count yet.
        """
        out = []
        for agent in sorted(agents):
            why = self._why_lost(agent, now, may_be_refuted=may_be_refuted)
            if why:
                out.append((agent, why))
        return out

    def _why_lost(self, agent: AgentId, now: float, *, may_be_refuted: bool) -> str:
        quiet_s = now - self.heard.get(agent, now)
        is_quiet = agent in self.gone or quiet_s >= self.patience.silence_s
        if is_quiet and not may_be_refuted:
            found = [(by, held[agent]) for by, held in self.suspicions.items() if agent in held]
            if found:
                by, (_, cause) = min(found)
                return f"{cause} seen by {by}, and the operator does not hear it"
        if quiet_s >= self.patience.unreachable_s:
            return f"not heard from for {quiet_s:.1f} s"
        return ""

    def broken(
        self, agents: Collection[AgentId], *, progress_at: float, patience_s: float, now: float
    ) -> list[Link]:
        """Links among live agents that hold up the training.

        progress_at: time of the last commit; patience_s: longest duration of a step, in seconds.
        """
        members, found = set(agents), set[Link]()
        wait_s = max(self.patience.link_s, patience_s)
        for by, held in self.suspicions.items():
            for agent, (since, cause) in held.items():
                bound_s = wait_s if cause is Cause.LIVENESS_SILENT else self.patience.link_s
                is_stuck = now - max(since, progress_at) >= bound_s
                if is_stuck and agent in members and by in members:
                    found.add((min(agent, by), max(agent, by)))
        return sorted(found)

    def is_channel_broken(self, agents: Collection[AgentId]) -> bool:
        """Whether one of the agents has lost its connection to another. The link's rule acts soon,
        and until then what they wait for does not come."""
        return any(
            cause is Cause.CHANNEL_BROKEN and agent in agents and by in agents
            for by, held in self.suspicions.items()
            for agent, (_, cause) in held.items()
        )


def expel(links: Collection[Link], is_sole_holder: Callable[[AgentId], bool]) -> list[AgentId]:
    """A small set of agents (chosen greedily) that covers all links; sole holders come last."""
    left, out = sorted(links), []
    while left:
        count = Counter(a for link in left for a in link)
        worst = min(count, key=lambda a: (is_sole_holder(a), -count[a], a))
        out.append(worst)
        left = [link for link in left if worst not in link]
    return out
