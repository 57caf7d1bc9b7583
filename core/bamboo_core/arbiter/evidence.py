"""Who is alive: contact with the operator, suspicions among agents, and what follows from them.

A suspicion counts only in the epoch in which it was raised. Lost is who is suspected and not heard
of, or not heard of for long. Two agents that both live but cannot reach each other get one new
epoch, since that remakes their connection; a link that is broken again costs one of them its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Cause

Link = tuple[AgentId, AgentId]
"""Two agents, in the order of their names."""


@dataclass(frozen=True)
class Patience:
    """Seconds. silence_s: unheard of and suspected; unreachable_s: unheard of alone; link_s: how
    long a broken link may go without progress."""

    silence_s: float = 1.0
    unreachable_s: float = 3.0
    link_s: float = 1.0


@dataclass
class Evidence:
    """heard: last sign of every connected or recently connected agent; looked_at: last look."""

    patience: Patience
    heard: dict[AgentId, float] = field(default_factory=dict)
    gone: set[AgentId] = field(default_factory=set)
    suspicions: dict[AgentId, dict[AgentId, tuple[float, Cause]]] = field(default_factory=dict)
    tried: set[Link] = field(default_factory=set)
    looked_at: float | None = None

    def look(self, now: float) -> None:
        """Called often. A look that comes late means that nobody could be heard meanwhile: the
        operator itself stood still, and that is nobody else's silence."""
        late_s = 0.0 if self.looked_at is None else now - self.looked_at
        self.looked_at = now
        if late_s > self.patience.silence_s:
            for agent in self.heard:
                self.heard[agent] = min(now, self.heard[agent] + late_s)

    def hear(self, agent: AgentId, now: float) -> None:
        """Something has come from the agent."""
        self.heard[agent] = now
        self.gone.discard(agent)

    def disconnect(self, agent: AgentId, now: float) -> None:
        """Its stream is closed; the time of the last sign begins to count."""
        if agent not in self.gone:
            self.heard[agent] = now
            self.gone.add(agent)

    def forget(self, agent: AgentId) -> None:
        """It is no concern any more."""
        self.heard.pop(agent, None)
        self.gone.discard(agent)
        self.suspicions.pop(agent, None)
        for others in self.suspicions.values():
            others.pop(agent, None)

    def suspect(self, agent: AgentId, by: AgentId, cause: Cause, now: float) -> None:
        """``by`` says so, in the present epoch."""
        self.suspicions.setdefault(agent, {}).setdefault(by, (now, cause))

    def begin_epoch(self) -> None:
        """What is still broken will be told again."""
        self.suspicions.clear()

    def settle(self) -> None:
        """Training goes on: broken links of the past are forgiven."""
        self.tried.clear()

    def lost(self, agents: Collection[AgentId], now: float) -> list[tuple[AgentId, str]]:
        """Those of the agents that count as lost now, with the evidence."""
        out = []
        for agent in sorted(agents):
            why = self._why_lost(agent, now)
            if why:
                out.append((agent, why))
        return out

    def _why_lost(self, agent: AgentId, now: float) -> str:
        quiet_s = now - self.heard.get(agent, now)
        suspicion = self.suspicions.get(agent)
        if suspicion and (agent in self.gone or quiet_s >= self.patience.silence_s):
            by, (_, cause) = min(suspicion.items())
            return f"{cause} seen by {by}, and the operator does not hear it"
        if quiet_s >= self.patience.unreachable_s:
            return f"not heard of for {quiet_s:.1f} s"
        return ""

    def broken(
        self, agents: Collection[AgentId], *, progress_at: float, patience_s: float, now: float
    ) -> list[Link]:
        """Links among living agents that hold the training up.

        progress_at: time of the last commit; patience_s: how long a step may take.
        """
        members, found = set(agents), set[Link]()
        wait_s = max(self.patience.link_s, patience_s)
        for agent, others in self.suspicions.items():
            for by, (since, cause) in others.items():
                bound_s = wait_s if cause is Cause.LIVENESS_SILENT else self.patience.link_s
                is_stuck = now - max(since, progress_at) >= bound_s
                if is_stuck and agent in members and by in members:
                    found.add((min(agent, by), max(agent, by)))
        return sorted(found)


def expel(links: Collection[Link], is_sole_holder: Callable[[AgentId], bool]) -> list[AgentId]:
    """The fewest agents (greedily) without whom no link is broken, sole holders last."""
    left, out = sorted(links), []
    while left:
        count = Counter(a for link in left for a in link)
        worst = min(count, key=lambda a: (is_sole_holder(a), -count[a], a))
        out.append(worst)
        left = [link for link in left if worst not in link]
    return out
