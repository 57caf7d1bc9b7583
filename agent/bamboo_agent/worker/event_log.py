"""A log of all events and effects of a worker's executor, for replay (trace validation).

Written if ``BAMBOO_EVENT_LOG`` names a folder. One JSON object per line, in order. "at" is the
executor's time.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.protocol.executor import (
    Drop,
    Effect,
    Executor,
    Retract,
    Run,
    SendOperator,
    StepEnded,
    Transmit,
)
from bamboo_core.protocol.messages import CommitRecord, Continuation, Directive, Stop
from bamboo_wire import encode

VARIABLE = "BAMBOO_EVENT_LOG"


def describe(effect: Effect) -> str:
    """One effect as one line, precise enough to compare two runs."""
    if isinstance(effect, Run):
        return f"run {effect.instruction}"
    if isinstance(effect, Transmit):
        return f"send {effect.item} to {effect.peer} in {effect.fence}"
    if isinstance(effect, Drop):
        words = "drop for room " if effect.for_room else "drop "
        return words + ", ".join(str(item) for item in effect.items)
    if isinstance(effect, StepEnded):
        return f"ended {effect.commit}"
    if isinstance(effect, Retract):
        return "forget all claims" if effect.is_new else "retract the claims"
    assert isinstance(effect, SendOperator)
    return f"send {type(effect.message).__name__}"


class LoggedExecutor:
    """Tells the executor the time, in seconds of time.monotonic(), and logs each call of its events
    before it returns the effects."""

    def __init__(self, executor: Executor, file: TextIO | None) -> None:
        self._executor, self._file = executor, file

    def stop(self, stop: Stop) -> list[Effect]:
        """See :meth:`Executor.stop`."""
        return self._log({"stop": _packed(stop)}, self._now().stop(stop))

    def install(self, directive: Directive) -> list[Effect]:
        """See :meth:`Executor.install`."""
        return self._log({"install": _packed(directive)}, self._now().install(directive))

    def proceed(self, continuation: Continuation) -> list[Effect]:
        """See :meth:`Executor.proceed`."""
        return self._log({"proceed": _packed(continuation)}, self._now().proceed(continuation))

    def arrive(
        self, item: Item, fence: Fence, commit: CommitRecord | None, at: float
    ) -> list[Effect]:
        """See :meth:`Executor.arrive`. at: when the item came, perhaps during an instruction."""
        self._executor.now = at
        effects = self._executor.arrive(item, fence, commit)
        return self._log({"arrive": str(item), "fence": fence, "commit": _record(commit)}, effects)

    def done(self, commit: CommitRecord | None) -> list[Effect]:
        """See :meth:`Executor.done`."""
        return self._log({"done": _record(commit)}, self._now().done(commit))

    def issued(self) -> list[Effect]:
        """See :meth:`Executor.issued`."""
        return self._log({"issued": None}, self._now().issued())

    def abandon(self) -> list[Effect]:
        """See :meth:`Executor.abandon`."""
        return self._log({"abandon": None}, self._now().abandon())

    def skip(self) -> list[Effect]:
        """See :meth:`Executor.skip`."""
        return self._log({"skip": None}, self._now().skip())

    def saved(self, item: Item) -> list[Effect]:
        """See :meth:`Executor.saved`."""
        return self._log({"saved": str(item)}, self._now().saved(item))

    def unsaved(self, steps: Set[int]) -> list[Effect]:
        """See :meth:`Executor.unsaved`."""
        return self._log({"unsaved": sorted(steps)}, self._now().unsaved(steps))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _now(self) -> Executor:
        self._executor.now = time.monotonic()
        return self._executor

    def _log(self, event: dict[str, Any], effects: list[Effect]) -> list[Effect]:
        if self._file is not None:
            event["at"] = self._executor.now
            event["effects"] = [describe(effect) for effect in effects]
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        return effects


def _packed(message: Stop | Directive | Continuation) -> str:
    return base64.b64encode(encode.operator_message(message).SerializeToString()).decode()


def _record(commit: CommitRecord | None) -> dict[str, Any] | None:
    return None if commit is None else asdict(commit)


def open_log(agent: AgentId, layers: int, ahead: int) -> TextIO | None:
    """The agent's log file in the configured folder; None if logging is off. ahead: see
    :attr:`Executor.ahead`."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    file = (path / f"{agent}.jsonl").open("w", encoding="utf-8")
    file.write(json.dumps({"agent": agent, "layers": layers, "ahead": ahead}) + "\n")
    return file
