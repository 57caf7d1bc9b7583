"""The console that commands print on."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Text is shown as it is. The cluster's texts may have brackets, which would be markup, and
    words between colons, which would be emoji."""
    return Console(markup=False, emoji=False)
