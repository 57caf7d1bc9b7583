"""Open streams of one job's agents."""

from __future__ import annotations

import asyncio

from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import OperatorMessage


class Session:
    """One stream. ``outgoing`` holds the messages to write; None ends the stream.

    Bytes are a message that is encoded already. Who writes them calls ``outgoing.task_done`` after
    each.
    """

    def __init__(self, agent: AgentId) -> None:
        self.agent = agent
        self.outgoing: asyncio.Queue[OperatorMessage | bytes | None] = asyncio.Queue()

    def send(self, message: OperatorMessage | bytes) -> None:
        self.outgoing.put_nowait(message)

    def close(self) -> None:
        """End the stream after everything queued is written."""
        self.outgoing.put_nowait(None)


class Sessions:
    """The newest stream of each agent."""

    def __init__(self) -> None:
        self._open: dict[AgentId, Session] = {}

    def open(self, agent: AgentId) -> Session:
        """A new stream. An older one of the same agent ends."""
        self.close(agent)
        session = self._open[agent] = Session(agent)
        return session

    def discard(self, session: Session) -> bool:
        """The stream has ended. False: a newer one had replaced it."""
        if self._open.get(session.agent) is not session:
            return False
        del self._open[session.agent]
        return True

    def send(self, agent: AgentId, message: OperatorMessage | bytes) -> None:
        """Send to an agent; dropped if it is not connected."""
        session = self._open.get(agent)
        if session is not None:
            session.send(message)

    def close(self, agent: AgentId) -> None:
        """End an agent's stream, if there is one."""
        session = self._open.pop(agent, None)
        if session is not None:
            session.close()

    async def written(self) -> None:
        """Wait until all messages so far are written. It never ends for a stream that is stuck."""
        await asyncio.gather(*(session.outgoing.join() for session in self.all()))

    def all(self) -> list[Session]:
        return list(self._open.values())

    def __len__(self) -> int:
        return len(self._open)
