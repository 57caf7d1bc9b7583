"""Warnings of hooks that are only in the logs of agents."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from bamboo_agent import logs
from bamboo_agent.hooks.hook import log as hooks_log
from bamboo_agent.hooks.record import NOT_CLOSED, NOT_TOLD
from bamboo_agent.local.hook_warnings import warnings_in
from bamboo_core.api.events import Severity


def line_of(text: str, log: logging.Logger = hooks_log) -> str:
    """A line as an agent writes it."""
    stream = io.StringIO()
    handler = logs.configure(job="local/x", agent="agent-1", level="info", stream=stream)
    log.warning(text)
    logging.getLogger().removeHandler(handler)
    return stream.getvalue()


@pytest.mark.parametrize("words", [f"{NOT_TOLD} 3 records, from step 5 on", NOT_CLOSED])
def test_records_that_a_hook_was_not_told_are_found(words: str, tmp_path: Path) -> None:
    text = f"hooks: mine:Slow {words}; training goes on"
    other = logging.getLogger("user")
    (tmp_path / "agent-0.log").write_text(
        f"{NOT_TOLD} in words\n" + line_of(text, other) + json.dumps([NOT_TOLD]) + "\n"
    )
    (tmp_path / "agent-1.log").write_text(
        line_of("spec.hooks[0] raised ValueError") + line_of(text)
    )
    (tmp_path / "run.txt").write_text(line_of(text))
    (found,) = warnings_in(tmp_path)
    assert found.message == f"agent-1: {text}; its log is {tmp_path / 'agent-1.log'}"
    assert (found.reason, found.severity) == ("HookFailed", Severity.WARNING)
