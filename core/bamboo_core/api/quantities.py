"""Quantities of Kubernetes ("500m", "2Gi") as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([numkKMGTPEi]*))")
_LARGEST_EXPONENT = 99
_LONGEST = 80

_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{letter + "i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
}


def parse(text: str | int | float) -> Fraction:
    """ValueError if the text is not a quantity.

    Exponents are limited to 99, far above the limit of Kubernetes: 1e999999999 would take hours.
    """
    words = str(text)
    if len(words) > _LONGEST:
        raise ValueError(f"{words[:_LONGEST]!r}... is not a quantity")
    found = _QUANTITY.fullmatch(words)
    if found is None or (found[3] or "") not in _SUFFIXES:
        raise ValueError(f"{words!r} is not a quantity")
    number, exponent, suffix = found.groups()
    if exponent is None:
        return Fraction(number) * _SUFFIXES[suffix]
    power = max(-_LARGEST_EXPONENT, min(int(exponent), _LARGEST_EXPONENT))
    return Fraction(number) * Fraction(10) ** power
