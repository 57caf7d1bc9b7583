"""Logs: one JSON object per line on standard error, with job, agent and fence."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from bamboo_core.api import texts
from bamboo_core.model.ids import Fence

JOB_VARIABLE = "BAMBOO_JOB"
LEVEL_VARIABLE = "BAMBOO_LOG_LEVEL"


class JsonFormatter(logging.Formatter):
    """Formats records. ``extra={"fields": {...}}`` adds members."""

    def __init__(self, *, job: str, agent: str, fence: Callable[[], Fence]) -> None:
        super().__init__()
        self._job = job
        self._agent = agent
        self._fence = fence

    def format(self, record: logging.LogRecord) -> str:
        """One line: time, level, logger, message, job, agent, fence, further fields."""
        line = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "job": self._job,
            "agent": self._agent,
            "fence": str(self._fence()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return texts.as_json(line)


def configure(
    *,
    job: str,
    agent: str,
    level: str,
    fence: Callable[[], Fence] = Fence,
    stream: TextIO | None = None,
) -> logging.Handler:
    """Send all logs of this process to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(job=job, agent=agent, fence=fence))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return handler


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
