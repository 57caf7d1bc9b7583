"""Lines about progress in an agent's log, for `bamboo logs`: rare, so that logs stay short."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bamboo_core.protocol.messages import AgentMessage, Progress

log = logging.getLogger(__name__)

_EVERY_S = 10.0


class ProgressLog:
    """Logs a committed step with its loss and metrics, at most every 10 s. now: monotonic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = 0.0

    def see(self, message: AgentMessage) -> None:
        """Log the message if it is about progress, and the last line is old enough."""
        if not isinstance(message, Progress) or self._now() < self._next_at:
            return
        self._next_at = self._now() + _EVERY_S
        commit = message.commit
        fields: dict[str, object] = {"step": commit.step + 1, "loss": commit.loss}
        if commit.metrics:
            fields["metrics"] = commit.metrics
        text = f"step {commit.step + 1} committed, loss {commit.loss:.4f}"
        for name, value in sorted(commit.metrics.items()):
            text += f", {name} {value:.4g}"
        log.info("%s", text, extra={"fields": fields})
