"""How far a long computation is, on stderr: a result on stdout stays the same."""

from __future__ import annotations

import sys
from time import monotonic

from bamboo_sim.market.compare.times import Told


def teller() -> Told:
    """A line that is written again and again where somebody watches; else one for each part."""
    return Teller() if sys.stderr.isatty() else tell_parts


class Teller:
    """One line that is written again and again."""

    def __init__(self) -> None:
        self._begun = monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        text = f"{what}: {done} of {total}, {monotonic() - self._begun:.0f} s"
        print(f"\r{text:<79}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def tell_parts(what: str, done: int, total: int) -> None:
    """Where nobody watches, a line when a part is done."""
    if done == total:
        print(f"{what}: {total}", file=sys.stderr, flush=True)
