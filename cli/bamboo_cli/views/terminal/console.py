"""The console that commands print on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_UNLIMITED = 10_000


def make_console(*, has_rows: bool = False) -> Console:
    """Text is shown as it is. The cluster's texts may have brackets, which would be markup, and
    words between colons, which would be emoji.

    has_rows: each row stays one line where a program reads it.
    """
    is_read_by_people = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = _UNLIMITED if has_rows and not is_read_by_people else None
    return Console(markup=False, emoji=False, width=width)
