"""Which checkpoints may be deleted: one rule for who deletes them and for who remembers them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

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
    best: Collection[Mark] = (),
) -> list[Mark]:
    """Those of the checkpoints ``marks`` that nobody may need any more.

    A checkpoint goes once ``keep`` good ones of higher steps are sealed in the attempt of
    ``newest``, the one sealed last, unless it is among ``best``; or once an attempt has begun
    before it. sealed: good checkpoints; forks: attempt, and the step with which it began.
    """
    attempt, last = newest
    own = sorted({step for a, step in sealed if a == attempt and step <= last})
    least = own[-keep] if len(own) >= keep else -1  # a lower step is not needed
    began = list(forks)
    return [
        (a, step)
        for a, step in marks
        if a <= attempt
        and (
            (step < least and (a, step) not in best)
            or any(a < b and step > base for b, base in began)
        )
    ]


def best(
    values: Mapping[Mark, float | None], forks: Iterable[Mark], *, is_max: bool
) -> Mark | None:
    """The checkpoint with the best value among those from which the present weights come: what a
    restore has left behind does not count. Of equal ones the earliest; None: there is none.

    values: of checkpoints; None, or no finite number, is never best. forks: see removable.
    """
    began = list(forks)
    found = [
        (-value if is_max else value, step, attempt)
        for (attempt, step), value in values.items()
        if value is not None
        and math.isfinite(value)
        and not any(attempt < b and step > base for b, base in began)
    ]
    if not found:
        return None
    _, step, attempt = min(found)
    return attempt, step


def worth_keeping(
    values: Mapping[Mark, float | None],
    bad: Collection[Mark],
    forks: Collection[Mark],
    *,
    is_max: bool,
) -> set[Mark]:
    """The best of the checkpoints, and the best of those that are not ``bad``: who deletes may not
    know yet that one has been written again."""
    good = {mark: value for mark, value in values.items() if mark not in bad}
    found = (best(each, forks, is_max=is_max) for each in (values, good))
    return {mark for mark in found if mark is not None}
