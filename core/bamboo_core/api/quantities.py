"""Quantities of Kubernetes ("500m", "2Gi") as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_EXPONENT = re.compile(r"(.*)[eE]([+-]?[0-9]+)", re.DOTALL)
_LARGEST_EXPONENT = 99

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
    if exponent := _EXPONENT.fullmatch(words):
        power = max(-_LARGEST_EXPONENT, min(int(exponent[2]), _LARGEST_EXPONENT))
        return Fraction(exponent[1]) * Fraction(10) ** power
    digits = words.rstrip("numkKMGTPEi")
    suffix = words[len(digits) :]
    if suffix not in _SUFFIXES:
        raise ValueError(f"{words!r} is not a quantity")
    return Fraction(digits) * _SUFFIXES[suffix]
