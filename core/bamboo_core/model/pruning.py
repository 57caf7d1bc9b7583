"""Which checkpoints may be deleted: one rule for who deletes them and for who remembers them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Mark = tuple[int, int]
"""Attempt and step of a checkpoint."""

LEAST_KEPT = 2
"""The newest one is verified by the commit of its step, which may not have come yet."""


def removable(
    marks: Iterable[Mark],
    *,
    newest: Mark,
    keep: int,
    sealed: Collection[Mark],
    forks: Iterable[Mark],
) -> list[Mark]:
    """Those of the checkpoints ``marks`` that nobody may need any more.

    A checkpoint goes once ``keep`` good ones of higher steps are sealed in the attempt of
    ``newest``, the one sealed last; or once an attempt has begun before it. sealed: good
    checkpoints; forks: attempt, and the step with which it began.
    """
    attempt, last = newest
    own = sorted({step for a, step in sealed if a == attempt and step <= last})
    least = own[-keep] if len(own) >= keep else -1  # a lower step is not needed
    began = list(forks)
    return [
        (a, step)
        for a, step in marks
        if a <= attempt and (step < least or any(a < b and step > base for b, base in began))
    ]
