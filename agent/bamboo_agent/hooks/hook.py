"""One hook of a job: its backlog, its process, and what is told when it does not work."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from typing import Any

from bamboo_agent.hooks.backlog import Backlog, Restarts
from bamboo_agent.hooks.printed import Printed
from bamboo_agent.hooks.process import Running
from bamboo_agent.hooks.record import NOT_CLOSED, NOT_TOLD, StepRecord
from bamboo_core.api import texts
from bamboo_core.api.spec import FactorySpec
from bamboo_core.model.counts import counted

log = logging.getLogger(__name__)

START_S = 300.0
"""For the import and the factory, which may wait for a server."""
STEP_S = 60.0
"""For one record, and for ``close``."""
_DEAF_S = 1.0


class Hook:
    """Call :meth:`turn` several times a second. Times are in seconds of one monotonic clock.

    warning: what went wrong first; empty: nothing. untold: what it was not told when the agent
    ended, or that it had not closed; empty: nothing. start: makes a process; OSError if it cannot.
    """

    def __init__(self, spec: FactorySpec, start: Callable[[], Running]) -> None:
        self.warning = self.untold = ""
        self._spec, self._make = spec, start
        self._backlog, self._restarts, self._printed = Backlog(), Restarts(), Printed()
        self._process: Running | None = None
        self._is_wanted = False
        self._is_refused = False
        self._is_ready = False  # the factory has returned
        self._is_closing = False  # the process has been told to close
        self._why = ""  # what the process has said before it ended
        self._started_at = 0.0
        self._due_at = inf  # then the process hangs
        self._errors = 0
        self._told_drops = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do, or nothing can be done soon."""
        return self._process is None and (not self._has_work or self._restarts.failures > 0)

    @property
    def is_starting(self) -> bool:
        """Whether its process runs, and the factory has not returned."""
        return self._process is not None and not (self._is_ready or self._is_closing)

    @property
    def _has_work(self) -> bool:
        return not self._is_refused and (self._is_wanted or len(self._backlog) > 0)

    def begin(self) -> None:
        """Records will come."""
        self._is_wanted = True

    def add(self, record: StepRecord) -> None:
        """Tell the hook this record after all earlier ones."""
        if self._is_refused:
            return
        self._backlog.add(record)
        if self._backlog.dropped > self._told_drops:
            self._told_drops = max(1, 2 * self._told_drops)  # the 1st, 2nd, 4th and so on
            self._warn(f"is too slow: {self._backlog.dropped} records were left out")

    def finish(self) -> None:
        """No more records will come: close the tracker once all are told."""
        self._is_wanted = False

    def give_up(self, why: str) -> None:
        """Never start it again."""
        self._is_refused = True
        self._warn(why)
        self.end()

    def abandon(self) -> None:
        """The agent ends: kill the process, and warn of what it has not been told or done."""
        first = self._backlog.first
        if first is not None and not self._is_refused:
            count = counted(len(self._backlog), "record")
            self._leave(f"{NOT_TOLD} {count}, from step {first.step} on, when the agent ended")
        elif self._is_closing and self._process is not None and self._process.ended() is None:
            self._leave(f"{NOT_CLOSED} before the agent ended")
        self.end()

    def _leave(self, text: str) -> None:
        self._warn(text)
        self.untold = f"{self._spec.factory} {text}"

    def end(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None

    def turn(self, now: float) -> None:
        """Do what is due. It waits for nothing."""
        if self._process is None:
            if self._has_work and self._restarts.may(now):
                self._start(now)
            return
        code = self._process.ended()
        for line in self._printed.lines(self._process.printed(), now):
            log.info("%s: %s", self._spec.factory, line)
        for message in self._process.receive():
            self._hear(message, now)
        if code is not None:
            self._ended(code, now)
        elif now >= self._due_at:
            doing = "a step" if self._is_ready else "its start"
            self._why = self._why or f"hung in {'close' if self._is_closing else doing}"
            self._process.kill()
        elif not self._process.is_open and not self._is_closing:  # one that closes takes its time
            self._due_at = min(self._due_at, now + _DEAF_S)
        elif self._is_ready and not self._is_closing:
            self._feed(now)

    # ------------------------------------------------------------ the process

    def _start(self, now: float) -> None:
        self._is_ready, self._is_closing, self._why = False, False, ""
        self._started_at, self._due_at = now, now + START_S
        try:
            self._process = self._make()
        except OSError as error:
            self._restarts.failed(now, 0.0)
            self._warn(f"cannot be started: {error}")
            return
        first = {"factory": self._spec.factory, "args": self._spec.args}
        self._process.send(json.dumps(first).encode())

    def _feed(self, now: float) -> None:
        assert self._process is not None
        was_idle = not self._backlog.is_in_flight
        taken = self._backlog.take()
        for record in taken:
            self._process.send(json.dumps({"step": asdict(record)}).encode())
        if taken and was_idle:
            self._due_at = now + STEP_S
        if not self._is_wanted and not len(self._backlog):
            self._is_closing, self._due_at = True, now + STEP_S
            self._process.send(json.dumps({"close": True}).encode())

    def _hear(self, message: bytes, now: float) -> None:
        said = _parsed(message)
        if "ready" in said:
            self._is_ready, self._due_at = True, inf
        elif "told" in said:
            if error := said.get("error"):
                self._raised(error)
            self._backlog.told()
            self._due_at = now + STEP_S if self._backlog.is_in_flight else inf
        elif text := said.get("refused") or said.get("failed"):
            self._is_refused = "refused" in said
            self._why = str(text)

    def _raised(self, error: object) -> None:
        self._errors += 1
        if self._errors.bit_count() == 1:  # the 1st, 2nd, 4th and so on
            first = self._backlog.first
            where = "" if first is None else f" in step {first.step}"
            count = f"; {self._errors} errors so far" if self._errors > 1 else ""
            self._warn(f"raised {error}{where}{count}")

    def _ended(self, code: int, now: float) -> None:
        process, self._process = self._process, None
        assert process is not None
        process.kill()  # what it has started, too
        process.close()
        if self._is_closing:
            if self._why:
                self._warn(self._why)
            return
        self._warn(self._why or _exit_text(code))
        if not self._is_refused:
            self._backlog.restart()
            self._restarts.failed(now, now - self._started_at)

    def _warn(self, text: str) -> None:
        whole = f"hooks: {self._spec.factory} {text}; training goes on"
        whole = texts.cut(" ".join(whole.split()), texts.MOST_LINE_BYTES)
        log.warning("%s", whole)
        self.warning = self.warning or whole


def _parsed(message: bytes) -> dict[str, Any]:
    """A message of the process; empty: the hook's code has written something else."""
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended its process with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
