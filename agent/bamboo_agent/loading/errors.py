"""Errors of samples, from the process that reads them to the one that needs them.

What decides whose fault an error is must arrive: its type, its text and its causes.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.targets import UnevenTargetsError
from bamboo_agent.factory_names import FactoryError
from bamboo_agent.user_code import causes, text_of, told

_KNOWN: tuple[type[Exception], ...] = (SampleError, UnevenTargetsError, FactoryError)
_BASES: tuple[type[BaseException], ...] = (OSError, MemoryError, RuntimeError, Exception)
_BY_NAME = {kind.__name__: kind for kind in _BASES}


class LoadingError(Exception):
    """The process that reads samples has failed, and no code of the user's."""


def record_of(error: BaseException) -> dict[str, Any]:
    """The error as JSON."""
    kind = next((kind.__name__ for kind in _KNOWN if isinstance(error, kind)), "")
    return {
        "error": kind,
        "text": text_of(error) if kind else told(error),
        "causes": [_record_of_cause(cause) for cause in causes(error)],
        "trace": "".join(traceback.format_exception(error)),
    }


def _record_of_cause(cause: BaseException) -> dict[str, str]:
    base = next((kind.__name__ for kind in _BASES if isinstance(cause, kind)), "Exception")
    return {"name": type(cause).__name__, "base": base, "text": text_of(cause)}


def error_of(record: Mapping[str, Any]) -> Exception:
    """Inverse of :func:`record_of`. The traceback is a note of the error, which logs show."""
    known = {kind.__name__: kind for kind in _KNOWN}
    error = known.get(record["error"], LoadingError)(record["text"])
    inner: BaseException = error
    for cause in record["causes"]:
        # a class of the same name: what is told of it begins with that
        made = type(cause["name"], (_BY_NAME[cause["base"]],), {})(cause["text"])
        inner.__cause__ = inner = made
    error.add_note(f"It was raised in the process that reads samples:\n{record['trace']}")
    return error
