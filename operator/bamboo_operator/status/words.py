"""Texts and numbers as the status has them: short, whatever they come from."""

from __future__ import annotations

from bamboo_core.api import texts

_MOST_MESSAGE_BYTES = 1024
_LARGE = 1e9


def number(value: float, digits: int) -> str:
    """Short even if the number is huge: a loss may explode."""
    return f"{value:.{digits}f}" if abs(value) < _LARGE else f"{value:.{digits}e}"


def clipped(text: str) -> str:
    """The text as far as the API server takes it."""
    return texts.cut(text, _MOST_MESSAGE_BYTES)
