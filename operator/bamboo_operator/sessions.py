"""Open streams of one job's agents: where a message to an agent is put."""

from __future__ import annotations

import asyncio

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import OperatorMessage


class Session:
    """One stream. ``outgoing`` holds what is to be written; None ends it."""

    def __init__(self, agent: AgentId) -> None:
        self.agent = agent
        self.outgoing: asyncio.Queue[OperatorMessage | None] = asyncio.Queue()

    def send(self, message: OperatorMessage) -> None:
        """Queue a message."""
        self.outgoing.put_nowait(message)

    def close(self) -> None:
        """End the stream once everything has been written."""
        self.outgoing.put_nowait(None)


class Sessions:
    """agent -> its newest stream."""

    def __init__(self) -> None:
        self._open: dict[AgentId, Session] = {}

    def open(self, agent: AgentId) -> Session:
        """A new stream; an older one of the same agent is ended."""
        self.close(agent)
        session = self._open[agent] = Session(agent)
        return session

    def discard(self, session: Session) -> bool:
        """The stream has ended; False if a newer one has taken its place."""
        if self._open.get(session.agent) is not session:
            return False
        del self._open[session.agent]
        return True

    def send(self, agent: AgentId, message: OperatorMessage) -> None:
        """To an agent that is connected; dropped if it is not."""
        session = self._open.get(agent)
        if session is not None:
            session.send(message)

    def close(self, agent: AgentId) -> None:
        """End an agent's stream, if there is one."""
        session = self._open.pop(agent, None)
        if session is not None:
            session.close()

    def all(self) -> list[Session]:
        """Every open stream."""
        return list(self._open.values())

    def __len__(self) -> int:
        return len(self._open)
