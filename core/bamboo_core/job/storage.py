"""Whether checkpoints can be written, and who has seen them, by the agents' reports. Each cause of
a failed write is one event for users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Received, Record
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.messages import AgentMessage, BadCheckpoint, Ready, Sealed

_MOST_CAVEATS = 16


class Screened(NamedTuple):
    """A message as the arbiter gets it."""

    event: Received
    is_known: bool = False  # users know the cause of this failed write; no further event
    record: Record | None = None  # for users, from here


class Storage:
    """The reports of one job's agents."""

    def __init__(
        self, trouble: str = "", caveats: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.trouble = trouble  # why no checkpoint can be written, with the agent; "": unknown
        self.caveats = dict(caveats)  # path of a checkpoint -> why one node only may have its files
        self._failed = (-1, -1)  # attempt and step of the newest checkpoint that was not written

    def screen(self, event: Received, durable: Durable) -> Screened:
        """After the start, agents that cannot write are admitted: the state lives in agents."""
        agent, message = event.agent, event.message
        if isinstance(message, Ready) and agent in durable.members:
            message = replace(message, storage_error="")  # found at its start, so outdated
        is_news = self.hear(message)
        record = None
        if isinstance(message, Ready) and durable.plan != Fence():
            if is_news:
                text = f"checkpoints cannot be written: {message.storage_error}"
                facts = {EventFact.AGENTS: agent}
                record = Record(Severity.WARNING, EventReason.STORAGE_FAILED, text, facts)
            message = replace(message, storage_error="")
        is_failed_write = isinstance(message, BadCheckpoint) and message.cause != ""
        return Screened(Received(agent, message), is_failed_write and not is_news, record)

    def hear(self, message: AgentMessage) -> bool:
        """True: the message reports a trouble that users do not know yet."""
        before = self.trouble
        if isinstance(message, Sealed):
            self._caveat(message)
        match message:
            case Ready(storage_error=error) if error:
                self.trouble = error
            case BadCheckpoint(attempt, step, cause=cause) if cause:
                self.trouble, self._failed = cause, max(self._failed, (attempt, step))
            case Sealed(manifest) if (manifest.attempt, manifest.step) >= self._failed:
                self.trouble = ""  # a slow storage completes older ones later
            case _:
                pass
        return self.trouble not in ("", before)

    def _caveat(self, message: Sealed) -> None:
        path = message.manifest.path
        self.caveats.pop(path, None)
        if message.caveat:
            self.caveats[path] = message.caveat
        for old in list(self.caveats)[:-_MOST_CAVEATS]:
            del self.caveats[old]
