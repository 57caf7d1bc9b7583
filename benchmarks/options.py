"""Command lines of the benchmarks: numbers that make no measurement are refused in one sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """For ``add_argument(type=...)``: a whole number that is not smaller."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} should be a whole number of at least {least}"
            )
        return value

    return number


def amount(text: str) -> float:
    """For ``add_argument(type=...)``: a time, in any unit."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} should be a number of at least 0")
    return value


def none(description: str | None) -> None:
    """Of a program that takes no arguments: any is refused."""
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=description, formatter_class=form).parse_args()
