"""Finds the functions that users name in a job's spec, and tells their errors; without torch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


class FactoryError(Exception):
    """A user's factory is missing, raises, or returns the wrong type."""


def find_factory(
    name: str, *, field: str = "", before_import: Callable[[str], None] | None = None
) -> Callable[..., Any]:
    """The function named ``module:function``. before_import: called with the module's name.

    field: the field of the spec that has the name, for errors; empty: it is not known.
    FactoryError says what is wrong with the name; its cause is what the import has raised.
    """
    where = f"{field}: " if field else ""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise FactoryError(f"{where}{name!r} is not of the form module:function")
    if before_import is not None:
        before_import(module_name)
    module = _import(module_name, where)
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [x for x in dir(module) if x[:1] != "_"])
        wish = f"; near names are {', '.join(near)}" if near else "; name a function that it has"
        raise FactoryError(f"{where}module {module_name!r} has no {attribute!r}{wish}") from error
    if not callable(found):
        raise FactoryError(f"{where}{name!r} is not a function")
    return found  # type: ignore[no-any-return]


def text_of(error: BaseException) -> str:
    """The error's text. Users' errors may fail to tell it."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"


def told(error: BaseException) -> str:
    """The error's type, and its text if it has one, without a full stop: more may follow."""
    text, kind = text_of(error).rstrip(), type(error).__name__
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1]
    return f"{kind}: {text}" if text.strip() else kind


def causes(error: BaseException) -> Iterator[BaseException]:
    """The causes of the error, as a traceback shows them; the nearest first."""
    seen: set[int] = set()
    cause = _cause(error)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = _cause(cause)


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _import(name: str, where: str) -> ModuleType:
    """Runs the user's code, which may raise anything or call sys.exit. where: before errors."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise FactoryError(f"{where}cannot import {name!r}: {text_of(error)}") from error
    except (Exception, SystemExit) as error:
        raise FactoryError(f"{where}cannot import {name!r}: {told(error)}") from error
