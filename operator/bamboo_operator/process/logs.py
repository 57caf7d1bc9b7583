"""Logs as JSON, one line for each record: a constant message, the rest in fields."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

from bamboo_core.api import texts

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Everything in ``extra`` becomes a field."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in vars(record).items() if k not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return texts.as_json(line)


def configure(level: str) -> None:
    """Log to stderr. Of kopf only warnings: it logs whole bodies."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("kopf", "kopf.objects", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
