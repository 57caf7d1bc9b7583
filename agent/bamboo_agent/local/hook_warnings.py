"""Warnings about hooks that came too late for an event: agents write them into their logs as they
end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from bamboo_agent import hooks
from bamboo_agent.hooks.record import NOT_CLOSED, NOT_TOLD
from bamboo_core.api.events import EventReason, Severity
from bamboo_core.api.local_run import Happened


def warnings_in(logs: Path) -> Iterator[Happened]:
    """One for each hook that has not been told all, or has not closed, agent by agent. logs: their
    folder."""
    for path in sorted(logs.glob("*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if NOT_TOLD not in line and NOT_CLOSED not in line:
                continue
            try:
                said = json.loads(line)
            except ValueError:  # something else has written it
                continue
            if isinstance(said, dict) and str(said.get("logger")).startswith(hooks.__name__):
                text = f"{path.stem}: {said.get('message')}; its log is {path}"
                yield Happened(EventReason.HOOK_FAILED, text, Severity.WARNING)
