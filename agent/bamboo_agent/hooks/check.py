"""Checks the names of hooks before a job starts, in a process of its own.

    python -m bamboo_agent.hooks.check    (the hooks as JSON on standard input)

The user's modules are imported and the arguments compared with the factories' parameters. No
factory is called: every agent checks, and each call would begin a run in a tracker.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from bamboo_agent.factory_names import FactoryError, find_factory
from bamboo_agent.hooks.confinement import confine, environment
from bamboo_core.api.spec import FactorySpec

log = logging.getLogger(__name__)

MOST_S = 120.0
_MODULE = "bamboo_agent.hooks.check"
_LAUNCH = "bamboo_agent.supervisor.launch"


class NameCheck:
    """A check that runs in the background from now on."""

    def __init__(self, hooks: Sequence[FactorySpec]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not hooks:
            return
        self._answer, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", _LAUNCH, str(os.getpid()), _MODULE),
                    str(write),
                ],
                stdin=subprocess.PIPE,
                env=environment(os.environ),
                pass_fds=[write],
            )
        finally:
            os.close(write)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([[x.factory, x.args] for x in hooks]).encode())
        self._process.stdin.close()

    def finish(self) -> None:
        """Wait for the check. FactoryError names a hook that can never work.

        A hook whose module cannot be imported for a reason that may pass, such as a server that
        does not answer, is none.
        """
        if self._process is None:
            return
        try:
            self._process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            log.warning("spec.hooks: the import has not ended within %g s", MOST_S)
        with os.fdopen(self._answer, "rb") as answer:
            os.set_blocking(answer.fileno(), False)  # what a hook has started may keep it open
            text = (answer.read() or b"").decode(errors="replace")
        if text:
            raise FactoryError(text)


def main() -> int:
    """Write what is wrong with the hooks to the given descriptor; nothing if they can be called."""
    answer = int(sys.argv[1])
    os.set_inheritable(answer, False)
    hooks = json.load(sys.stdin)
    confine(gives_way=False)  # the start of the job waits for it
    for index, (name, args) in enumerate(hooks):
        if text := problem(name, args):
            os.write(answer, f"spec.hooks[{index}]: {text}".encode(errors="backslashreplace"))
            return 1
    return 0


def problem(name: str, args: dict[str, Any]) -> str:
    """Why the factory can never be called; empty: it can, or its module cannot be imported now."""
    try:
        factory = find_factory(name)
    except FactoryError as error:
        return "" if isinstance(error.__cause__, OSError) else str(error)
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # of a function in C
        return ""
    try:
        signature.bind(**args)
    except TypeError as error:
        return f"{name} cannot be called with args {sorted(args)}: {error}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
