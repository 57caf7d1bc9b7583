"""Drops lines of agents' own logs from what a kubelet reports as the last words of a container."""

from __future__ import annotations

import json

_ORDINARY = ("debug", "info")
"""Levels of lines that say nothing about an end."""
_MEMBERS = ("time", "level", "logger", "message")
"""Every line has them, as texts."""


def without(words: str) -> str:
    """The words without ordinary lines of an agent's log. Its others are reduced to their messages.

    A kubelet keeps so many bytes of a log, so the first line may be the end of one.
    """
    lines = words.split("\n")
    own = [_own(line) for line in lines]
    if not any(own):
        return words
    if own[0] is None and lines[0].endswith("}") and len(lines) > 1:
        del lines[0], own[0]
    said = (_told(line, members) for line, members in zip(lines, own, strict=True))
    return "\n".join(text for text in said if text is not None)


def _own(line: str) -> dict[str, str] | None:
    """The members of a line of an agent's log. None: it is another text."""
    if not line.startswith("{"):
        return None
    try:
        members = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_own = all(isinstance(members.get(name), str) for name in _MEMBERS)
    return members if is_own else None


def _told(line: str, members: dict[str, str] | None) -> str | None:
    if members is None:
        return line
    return None if members["level"] in _ORDINARY else members["message"]
