"""Whether checkpoints can be written, by what the agents say; told to users once for each cause."""

from __future__ import annotations

from bamboo_core.protocol.messages import AgentMessage, BadCheckpoint, Ready, Sealed


class Storage:
    """trouble: why no checkpoint can be written, with the agent; empty: nothing is known of any."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    def hear(self, message: AgentMessage) -> bool:
        """Take note of an agent's message; whether a user should hear of the trouble now."""
        before = self.trouble
        match message:
            case Ready(storage_error=error) if error:
                self.trouble = error
            case BadCheckpoint(cause=cause) if cause:
                self.trouble = cause
            case Sealed():
                self.trouble = ""
            case _:
                pass
        return self.trouble not in ("", before)
