"""How long a job that is held waits, and how often it asks agents that count as lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from bamboo_core.model.ids import AgentId

RETRY_S = 5.0
"""Until suspects are asked again while the job is held; doubled every time."""

ASKS = 8
"""While something is to be given up at an instant, suspects are asked at least so often in the time
for which a voter is awaited, and once more in the last part of it."""

MOST_WAITS = 3
"""So many times as long an agent may be asked again and again that answers, and whose link to
another one is cut. Each plan with it puts a restore off."""


@dataclass
class Deadlines:
    """Limits on waiting while the job is held. Only a new plan or a restore clears them.

    These and all other instants of this package are attentive time, except departures of agents.
    """

    voter_by: float = inf  # for a voter of the newest plan to report
    copy_by: float = inf  # for a holder of a layer that no member holds
    rest_by: float = inf  # for suspects, before a job that is to be suspended rests
    retry_at: float = inf  # then suspects are asked again

    def clear(self) -> None:
        """There is a plan, or a new attempt."""
        self.voter_by = self.copy_by = self.rest_by = self.retry_at = inf


@dataclass
class Incident:
    """How often suspects are asked. It lasts until training goes on, whatever plans are made."""

    retry_s: float = RETRY_S  # until the next time, if nothing is to be given up sooner
    since: float | None = None  # when a restore became due; None: none is
    asked: dict[AgentId, float] = field(default_factory=dict)  # when the newest STOP left
