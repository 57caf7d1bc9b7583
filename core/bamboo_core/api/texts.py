"""Texts that leave a process: always UTF-8, and no longer than whoever takes them allows.

Python keeps bytes of a file's name that are not UTF-8 as lone surrogates. No message, file or
object of Kubernetes can hold those, and the error that names the file must not be lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

MOST_EVENT_BYTES: Final = 1024
"""Of an Event's message. The API server refuses a longer one."""
MOST_TERMINATION_BYTES: Final = 4096
"""Of a container's termination message. The kubelet takes no more."""
UNTOLD: Final = "; spec.hooks: "
"""In a container's termination message: which hooks were not told all steps follows."""
MOST_LINE_BYTES: Final = 1000
"""Of the essential line of an error: it fits an event."""

_END = "..."
_UNREADABLE = "\ufffd"
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but newlines and tabs, and characters that change the order of others."""


def valid(text: str) -> str:
    """The text with each lone surrogate as an escape, such as ``\\udce9``."""
    return text.encode(errors="backslashreplace").decode()


def plain(text: str) -> str:
    """The valid text with an escape for each character that could change how a terminal shows it,
    such as ``\\x1b``. Newlines and tabs stay."""
    return _HIDDEN.sub(_escape, valid(text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def cut(text: str, most: int) -> str:
    """The plain text in at most ``most`` bytes of UTF-8, which are at least 3.

    A longer text is cut between two characters and ends with "...".
    """
    data = plain(text).encode()
    if len(data) <= most:
        return data.decode()
    return data[: most - len(_END)].decode(errors="ignore") + _END


def end(text: str, most: int) -> str:
    """As :func:`cut`, but it keeps the end of the text, and begins with "..."."""
    data = plain(text).encode()
    if len(data) <= most:
        return data.decode()
    return _END + data[len(data) - most + len(_END) :].decode(errors="ignore")


def whole(text: str) -> str:
    """The text without spaces and halves of characters at its ends.

    A kubelet keeps so many bytes of a log or a message, wherever a character ends, and JSON has a
    replacement character for each byte of a half.
    """
    return text.strip().strip(_UNREADABLE).strip()


def as_json(line: Mapping[str, Any]) -> str:
    """One line of a log. A value that is no JSON is told by its text.

    JSON has an escape for a lone surrogate, but strict readers drop the whole line.
    """
    return json.dumps(_valid_parts(line), default=lambda value: valid(str(value)))


def _valid_parts(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, Mapping):
        return {valid(str(key)): _valid_parts(part) for key, part in value.items()}
    return [_valid_parts(part) for part in value] if isinstance(value, list | tuple) else value
