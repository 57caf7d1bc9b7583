"""Texts of others without what a terminal would obey: whoever writes them is no administrator."""

from __future__ import annotations

import re
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # C0 without tab and newline, DEL, and C1


def plain(text: str) -> str:
    """The text without control characters. Tabs and newlines stay."""
    return _CONTROL.sub("", text)


def make_plain(found: Any) -> Any:
    """The same for all texts of parsed JSON, in place. It may be deeper than Python's recursion."""
    whole = [found]
    left: list[Any] = [whole]
    while left:
        part = left.pop()
        items: list[tuple[Any, Any]] = list(enumerate(part))
        if isinstance(part, dict):
            items = [(plain(key), value) for key, value in part.items()]
            part.clear()
        for key, value in items:
            part[key] = plain(value) if isinstance(value, str) else value
            if isinstance(value, dict | list):
                left.append(value)
    return whole[0]
