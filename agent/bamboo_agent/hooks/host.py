"""The process of one hook: calls the user's factory, then its ``step`` for each record.

    python -m bamboo_agent.hooks.host --fd N

Messages are JSON objects over a :class:`~bamboo_agent.ipc.pipe.Pipe`. It gets
``{"factory": NAME, "args": ARGS}``, then ``{"step": RECORD}`` and at last ``{"close": true}``. It
answers ``{"ready": true}`` or ``{"refused": TEXT}`` or ``{"failed": TEXT}``, then
``{"told": true}`` for each record, with ``"error": TEXT`` if it raised. refused: trying again
cannot help.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from bamboo_agent.factory_names import FactoryError, find_factory, told
from bamboo_agent.hooks.confinement import confine
from bamboo_agent.hooks.record import StepRecord
from bamboo_agent.ipc.pipe import Pipe, PipeClosedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the supervisor closes the pipe."""
    parser = argparse.ArgumentParser(prog="bamboo_agent.hooks.host")
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args(arguments)
    confine()
    try:
        return _Host(Pipe(socket.socket(fileno=given.fd))).run()
    except PipeClosedError:
        return 0


class _Host:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._got: list[bytes] = []

    def run(self) -> int:
        first = self._next()
        tracker = self._build(first["factory"], first["args"])
        if tracker is None:
            return 1
        self._say({"ready": True})
        while "close" not in (message := self._next()):
            error = _tried(tracker.step, StepRecord(**message["step"]))
            self._say({"told": True} | ({"error": error} if error else {}))
        if callable(close := getattr(tracker, "close", None)) and (error := _tried(close)):
            self._say({"failed": f"raised {error} in close"})
        return 0

    def _build(self, name: str, args: dict[str, Any]) -> Any:
        """The tracker; None: there is none, and the supervisor has been told why."""
        try:
            tracker = find_factory(name)(**args)
        except FactoryError as error:
            is_late = isinstance(error.__cause__, OSError)
            self._say({"failed" if is_late else "refused": str(error)})
            return None
        except BaseException as error:
            _show_traceback()
            self._say({"failed": f"raised {told(error)}"})
            return None
        if not callable(getattr(tracker, "step", None)):
            kind = type(tracker).__name__
            self._say({"refused": f"returned a {kind} without a method step(record)"})
            return None
        return tracker

    def _next(self) -> dict[str, Any]:
        while not self._got:
            select.select([self._pipe], [], [])
            self._got = self._pipe.receive()
        return json.loads(self._got.pop(0))  # type: ignore[no-any-return]

    def _say(self, message: dict[str, Any]) -> None:
        self._pipe.send(json.dumps(message).encode())
        while self._pipe.wants_write:
            select.select([], [self._pipe], [])
            self._pipe.flush()


def _tried(call: Callable[..., object], *arguments: object) -> str:
    """Call the user's code. What it has raised, in one text; empty: nothing."""
    try:
        call(*arguments)
    except BaseException as error:
        _show_traceback()
        return told(error)
    return ""


def _show_traceback() -> None:
    with contextlib.suppress(Exception):  # the user's code may have put another stderr there
        traceback.print_exc()


if __name__ == "__main__":
    sys.exit(main())
