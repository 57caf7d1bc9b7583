"""How good a checkpoint is, as its manifest says, and which ones are needed no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from bamboo_core.api.spec import BestMode, BestSpec
from bamboo_core.model import pruning
from bamboo_core.model.pruning import Mark
from bamboo_core.protocol.messages import Fork, Manifest


@dataclass(frozen=True)
class Scored:
    """What makes the job's best checkpoint, and how good this one is. A manifest has all of it, so
    that a folder alone says which one is the best."""

    metric: str
    mode: BestMode
    value: float | None  # None: there was no validation, or it is no finite number
    forks: tuple[tuple[int, int], ...]  # attempt, and the step with which it began


class Facts(NamedTuple):
    """What the operator knows of the checkpoints, for pruning."""

    forks: tuple[Fork, ...] = ()
    bad: frozenset[Mark] = frozenset()  # read and wrong
    best: BestSpec | None = None  # of the spec


def value_of(content: Mapping[str, Any]) -> float | None:
    """The value in a manifest."""
    value = (content.get("best") or {}).get("value")
    return float(value) if value is not None else None


def best_of(content: Mapping[str, Any], good: Iterable[Manifest]) -> Manifest | None:
    """The best of these checkpoints; None: there is none. content: of the newest manifest."""
    how = content.get("best") or {}
    known = {(m.attempt, m.step): m for m in good}
    values = {mark: m.value for mark, m in known.items()}
    forks = [(attempt, step) for attempt, step in how.get("forks", ())]
    mark = pruning.best(values, forks, is_max=how.get("mode") == BestMode.MAX)
    return known[mark] if mark is not None else None


def unneeded(
    good: Iterable[Manifest],
    unsealed: Set[Mark],
    *,
    new: Set[Mark],
    newest: Mark,
    keep: int,
    facts: Facts,
) -> list[Mark]:
    """Checkpoints that may be removed (:func:`pruning.removable`).

    unsealed: those without a manifest, which may only be away for a moment. The best one may be
    among them, so with a best one those stay that were not unsealed before (``new``).
    """
    values = {(m.attempt, m.step): m.value for m in good}
    forks = [(fork.attempt, fork.step) for fork in facts.forks]
    kept = set[Mark]()
    if facts.best is not None:
        kept = pruning.worth_keeping(values, facts.bad, forks, is_max=facts.best.is_max) | new
    return pruning.removable(
        [*values, *unsealed],
        newest=newest,
        keep=keep,
        sealed=values.keys() - facts.bad,
        forks=forks,
        best=kept,
    )
