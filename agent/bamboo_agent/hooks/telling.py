"""Which agent tells the hooks a committed step, and which steps it repeats. A pure rule.

The coordinator of the plan tells, since it makes the commits. All agents hear of each committed
step and remember the newest ones. A new coordinator tells those first: the one before may have been
lost before its hooks were told. It does so after every change of the coordinator, since it cannot
know whether the one before has told all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Directive, Progress

REMEMBERED = 100
"""Newest committed steps that an agent remembers."""


@dataclass
class Telling:
    """The part of one agent. tells: it tells hooks what is committed."""

    agent: AgentId
    tells: bool = False
    _newest: deque[Progress] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def install(self, directive: Directive) -> list[Progress]:
        """A plan begins. Steps to tell now, in order: all that are remembered, if this agent is the
        new coordinator."""
        before, self.tells = self.tells, directive.coordinator == self.agent
        return list(self._newest) if self.tells and not before else []

    def committed(self, progress: Progress) -> list[Progress]:
        """A step is committed. Steps to tell now: it, if this agent tells. None is told again that
        a later plan reports again."""
        if self._newest and _key(progress) <= _key(self._newest[-1]):
            return []
        self._newest.append(progress)
        return [progress] if self.tells else []


def _key(progress: Progress) -> tuple[int, int]:
    return progress.fence.attempt, progress.commit.step
