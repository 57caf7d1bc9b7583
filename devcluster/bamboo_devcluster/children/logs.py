"""The last words of a program, for the message about its exit."""

import os
from pathlib import Path

_TAIL_BYTES = 4096
_LINE_CHARACTERS = 300


def log_tail(path: Path) -> str:
    """Return the end of a log; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(tail: str) -> str:
    """Return the last line that is not blank, shortened, or a sentence that there is none."""
    lines = tail.strip().splitlines()
    return lines[-1][:_LINE_CHARACTERS] if lines else "nothing was logged"
