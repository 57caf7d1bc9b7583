"""The program that trains a job on this machine: it holds torch, and tells what happens."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bamboo_cli.errors import ProgramError
from bamboo_cli.local.local_spec import variables
from bamboo_core.api import local_run
from bamboo_core.api.spec import JobSpec, to_json

_PROGRAM = (sys.executable, "-m", "bamboo_agent.local.main")


class Program:
    """One run. Iterate over :meth:`told`; then :attr:`code` is the exit code."""

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
        self.code = 0
        self._spec, self._log = spec, folder / "run.log"
        self._command = [
            *(*program, "--name", name, "--folder", str(folder)),
            *("--kill", str(kills), "--variables", json.dumps(variables(spec))),
            *(["--check"] if checks else []),
        ]

    def told(self) -> Iterator[local_run.Told]:
        """What happens, as it happens. ProgramError if the program ends without an end of the run.

        Ctrl-C reaches the program as well: it ends the run with a checkpoint.
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
                )
            except OSError as error:
                raise ProgramError(f"cannot run {self._command[0]}: {error}.") from error
            finally:
                os.close(write)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
                process.stdin.write(to_json(self._spec).encode())
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            ended = False
            try:
                for line in lines:
                    told = local_run.from_line(line)
                    ended = ended or isinstance(told, local_run.Ended)
                    yield told
            finally:
                self.code = self._wait(process)
        if not ended:
            raise ProgramError(self._why())

    @staticmethod
    def _wait(process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # it got the signal, too, and is ending
                continue

    def _why(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        line = next(reversed(text.strip().splitlines()), "no output")
        if "No module named 'torch'" in line or "No module named bamboo_agent" in line:
            return (
                f"jobs are trained with torch, which is missing here ({line}); install"
                " bamboo-train[agent], or use the image of the agents."
            )
        return f"training on this machine ended with exit code {self.code}: {line} ({self._log})."
