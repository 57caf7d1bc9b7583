"""Types for command-line arguments of the benchmarks and the explorer."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """A type for ``add_argument``: an integer of at least ``least``."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {least}")
        return value

    return number


def amount(text: str) -> float:
    """A type for ``add_argument``: a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def none(description: str | None) -> None:
    """Parse the command line of a program without arguments; refuse any argument."""
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=description, formatter_class=form).parse_args()
