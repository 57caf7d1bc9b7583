"""The programs that hold torch: they train a job on this machine, or move weights, and tell what
happens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bamboo_cli.errors import ProgramError
from bamboo_cli.local.forwarding import Signals
from bamboo_cli.local.local_spec import variables
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, to_json

_PROGRAM = (sys.executable, "-m", "bamboo_agent.local.main")
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
"""With what faulthandler begins, before the stacks and a list of modules."""
_ENDS = (local_run.Ended, local_run.Written, local_run.Refused)


class Teller:
    """A program that reads a job and tells what happens. Iterate over :meth:`told`; then
    :attr:`code` is the exit code."""

    def __init__(self, command: Sequence[str], spec: JobSpec | None, log: Path, doing: str) -> None:
        """spec: for its standard input; log: of its output; doing: for errors."""
        self.code = 0
        self._command, self._spec, self._log, self._doing = list(command), spec, log, doing

    def told(self) -> Iterator[local_run.Told]:
        """Tell what happens, as it happens. ProgramError if the program ends without telling how;
        SystemExit with 128 + signal once the program has ended by a signal to this process.

        Leaving the iteration closes the pipe, which ends the program, and waits for it.
        """
        read, write = os.pipe()
        with self._log.open("wb") as log, os.fdopen(read, encoding="utf-8") as lines:
            try:
                process = subprocess.Popen(
                    [*self._command, "--tell", str(write)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[write],
                    start_new_session=True,  # it gets signals from here, each of them once
                )
            except OSError as error:
                raise ProgramError(f"cannot run {self._command[0]}: {error}.") from error
            finally:
                os.close(write)
            with Signals(process) as signals:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
                    process.stdin.write(b"" if self._spec is None else to_json(self._spec).encode())
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                ended = False
                try:
                    for line in lines:
                        told = local_run.from_line(line)
                        ended = ended or isinstance(told, _ENDS)
                        yield told
                finally:
                    lines.close()  # it may have more to tell, and must not wait for a reader
                    self.code = process.wait()
        if signals.first is not None:
            raise SystemExit(128 + signals.first)
        if not ended:
            raise ProgramError(self._why())

    def _why(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        line = next(reversed(text.strip().splitlines()), "no output")
        if "No module named 'torch'" in line or "No module named bamboo_agent" in line:
            return (
                f"{self._doing} takes torch, which is missing here ({line}); install"
                " bamboo-train[agent], or use the image of the agents."
            )
        if fatal := _FATAL.search(text):
            return f"{self._doing} has crashed: {fatal[0]}; the stack is in {self._log}."
        if self.code == -signal.SIGKILL:
            line = "it was killed, perhaps for lack of memory"
        elif self.code > 1:  # with 1 Python ends after an error
            line += "; code of the model or the data may have ended the process"
        return f"{self._doing} ended with exit code {self.code}: {line} ({self._log})."


class Program(Teller):
    """One run. SIGINT, SIGTERM, SIGHUP end it with a checkpoint, and a second one at once."""

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        folder: Path,
        *,
        kills: int = 0,
        checks: bool = False,
        program: Sequence[str] = _PROGRAM,
    ) -> None:
        command = [
            *(*program, "--name", name, "--folder", str(folder)),
            *("--kill", str(kills), "--variables", json.dumps(variables(spec))),
            *(["--check"] if checks else []),
        ]
        super().__init__(command, spec, folder / "run.log", "training on this machine")
