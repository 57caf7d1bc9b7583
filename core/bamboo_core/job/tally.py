"""Counts what becomes of a job's agents: preempted or lost with their node, or failed. Pure.

An agent that is lost may have failed by itself, which only its pod's end shows, a little later. So
a loss without notice is undecided until that end is known, at most for :data:`DECIDE_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from bamboo_core.api.events import EventFact, EventReason
from bamboo_core.api.reasons import is_users
from bamboo_core.arbiter_state.events import Record
from bamboo_core.controller.view import ClusterView, LastWords, Losses, PodView
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import Hello

DECIDE_S = 10.0
"""A kubelet reports the end of a container within a few seconds."""
GONE_S = 2.0
"""The event of a pod's deletion, with its exit code, may come later than a list without it."""
MOST_WORDS = 64
"""Failed or refused agents whose last words are kept for the controller, which counts each once."""
_MOST_PLACES = 4096


class _Place(NamedTuple):
    node: str
    machine: str


class Tally:
    """The agents of one job. ``now`` is the clock of the arbiter.

    heard: agents that an earlier leader has heard.
    """

    def __init__(self, losses: Losses, heard: Iterable[AgentId] = ()) -> None:
        self.losses = self._shown = losses  # since the job began
        self._failed: deque[LastWords] = deque(maxlen=MOST_WORDS)
        self._counted: set[AgentId] = set()  # lost or failed
        self._undecided: dict[AgentId, float] = {}  # until when
        self._places = dict.fromkeys(heard, _Place("", ""))
        self._pods: dict[AgentId, PodView] = {}
        self._gone: AbstractSet[AgentId] = set()  # undecided; their pods were just not there

    @property
    def failed(self) -> tuple[LastWords, ...]:
        """The newest failures that agents have told, oldest first."""
        return tuple(self._failed)

    def connected(self, hello: Hello) -> None:
        """An agent's session has begun."""
        self._places[hello.agent] = _Place(hello.node, hello.machine)
        if len(self._places) > max(_MOST_PLACES, 2 * len(self._pods)):
            gone = (agent for agent in self._places if agent not in self._pods)
            self._places.pop(next(gone))  # the oldest

    @property
    def heard(self) -> dict[AgentId, str]:
        """Agents that have ever been heard -> their machines; empty: not known."""
        return {agent: place.machine for agent, place in self._places.items()}

    def observe(self, view: ClusterView) -> None:
        """The pods as they are now, and those that have ended and are deleted already."""
        self._pods = {pod.agent: pod for pod in view.pods}
        self._gone = self._undecided.keys() - self._pods.keys()

    def hear(self, record: Record, leaving: AbstractSet[AgentId], now: float) -> None:
        """Count what an event says. leaving: agents with notice, or that are drained.

        A notice itself does not count: it is repeated to every operator.
        """
        for agent in record.agents[:1]:
            is_noticed = agent in leaving
            match record.reason:
                case EventReason.WORKER_FAILED | EventReason.AGENT_REFUSED:
                    self._fail(agent, record)
                case EventReason.AGENT_LOST | EventReason.AGENT_LEFT if is_noticed:
                    self._lose(agent, is_noticed=True)
                case EventReason.AGENT_LOST if agent not in self._counted:
                    self._undecided.setdefault(agent, now + DECIDE_S)
                case _:
                    pass

    def settle(self, now: float) -> bool:
        """Decide about lost agents; whether the losses have changed since the last call."""
        for agent, until in list(self._undecided.items()):
            pod = self._pods.get(agent)
            if agent in self._gone:
                until = self._undecided[agent] = min(until, now + GONE_S)
            if pod is not None and (pod.has_failed or pod.exit_code == ExitCode.RELEASED):
                # Nobody preempts by exit code 0. Without an order the controller counts a failure.
                del self._undecided[agent]
                self._counted.add(agent)
            elif now >= until or (pod is not None and pod.has_ended and not pod.awaits_reason):
                # By this code it got SIGTERM. Who heard its notice may lead no more.
                is_noticed = pod is not None and pod.exit_code == ExitCode.DRAINED
                self._lose(agent, is_noticed=is_noticed)
        self._gone = set()
        is_news = self.losses != self._shown
        self._shown = self.losses
        return is_news

    def close(self) -> None:
        """The job is over: whose end is not known yet is lost. Nobody looks again."""
        for agent in list(self._undecided):
            self._lose(agent, is_noticed=False)

    def _fail(self, agent: AgentId, record: Record) -> None:
        self._undecided.pop(agent, None)
        self._counted.add(agent)
        if any(words.agent == agent for words in self._failed):
            return
        cause = str(record.facts.get(EventFact.CAUSE, ""))
        place = self._places.get(agent, _Place("", ""))
        words = LastWords(agent, cause, record.message, is_users(cause), place.node, place.machine)
        is_refused = record.reason is EventReason.AGENT_REFUSED
        self._failed.append(replace(words, is_refused=is_refused))

    def _lose(self, agent: AgentId, *, is_noticed: bool) -> None:
        self._undecided.pop(agent, None)
        if agent in self._counted:
            return
        self._counted.add(agent)
        self.losses = Losses(self.losses.total + 1, self.losses.noticed + is_noticed)
