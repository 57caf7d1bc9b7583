"""Kubernetes resource quantities: parsing, and division as in resourceFieldRef."""

import math
import re
from fractions import Fraction

from bamboo_devcluster.errors import SpecError

_SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d{1,2})|([A-Za-z]*))\Z")


def parse_quantity(text: str, field: str = "quantity") -> Fraction:
    """Return the exact value of a quantity such as `500m`, `4Gi` or `1e3`."""
    match = _QUANTITY.match(text)
    if not match or (match[3] or "") not in _SUFFIXES:
        raise SpecError(field, f"{text!r} is not a quantity; write for example 500m, 2 or 4Gi")
    number = Fraction(match[1])
    if match[2]:
        return number * Fraction(10) ** int(match[2][1:])
    return number * _SUFFIXES[match[3] or ""]


def divide_quantity(text: str, divisor: str) -> str:
    """Return quantity / divisor rounded up, as resourceFieldRef reports it."""
    by = parse_quantity(divisor if parse_quantity(divisor or "0") else "1")
    return str(math.ceil(parse_quantity(text) / by))
