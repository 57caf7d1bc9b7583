"""Runs a case, and says whether what came out is what must come out."""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bamboo_sim.user_code import interpreters
from bamboo_sim.user_code.case import Case, Equal, Refused, Unlike
from bamboo_sim.user_code.processes import EndedError, serve_here
from bamboo_sim.user_code.training import GRIDS, Runs, Trained, differences, set_up

_MOST_TOLD, _LONGEST = 3, 500


class How(StrEnum):
    """What a job came to."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    UNLIKE = "agents are unlike"
    EQUAL = "equal"
    UNEQUAL = "unequal"
    ENDED = "ended late"


@dataclass(frozen=True)
class Verdict:
    """text: the refusal, what was unequal, or how the job ended."""

    case: Case
    how: How
    text: str = ""
    seconds: float = 0.0

    @property
    def is_expected(self) -> bool:
        """Whether it is what the case must come to."""
        expected = self.case.expected
        if isinstance(expected, Refused):
            if expected.or_equal and self.how is How.EQUAL:
                return True
            return self.how is How.REFUSED and not self.missing
        return self.how is (How.UNLIKE if isinstance(expected, Unlike) else How.EQUAL)

    @property
    def missing(self) -> list[str]:
        """The words that a refusal lacks."""
        expected = self.case.expected
        words = expected.words if isinstance(expected, Refused) else ()
        return [word for word in words if not re.search(word, self.text, re.I)]

    def __str__(self) -> str:
        lacks = f" [lacks {self.missing}]" if self.how is How.REFUSED and self.missing else ""
        return f"{self.how}: {self.text}{lacks}" if self.text else str(self.how)


def judge(case: Case) -> Verdict:
    """Run the case in processes that know nothing of each other."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bamboo-case-") as folder:
        how, text = _run(case, Path(folder))
    return Verdict(case, how, text, round(time.monotonic() - started, 1))


def _run(case: Case, folder: Path) -> tuple[How, str]:
    expected, job = case.expected, case.job(folder)
    try:
        if isinstance(expected, Equal) or (isinstance(expected, Refused) and expected.or_equal):
            return _train(case, folder)
        found = set_up(job, folder, 2 if isinstance(expected, Unlike) else 1)
    except EndedError as ended:
        if ended.failure is None or not ended.failure.user_error:
            return How.ENDED, str(ended)[:_LONGEST]
        return How.REFUSED, ended.failure.message
    except Exception as error:  # the other cases run, whatever this one has met
        return How.ENDED, f"{type(error).__name__}: {error}"[:_LONGEST]
    return (How.UNLIKE if len(found) > 1 else How.ACCEPTED), ""


def _train(case: Case, folder: Path) -> tuple[How, str]:
    runs, grids = Runs(case.job(folder), folder, serve_here), GRIDS
    if case.has_own_interpreters:  # each takes seconds to start
        runs, grids = Runs(case.job(folder), folder, interpreters.serve), ((1, 2),)
    reference = runs.undisturbed()
    others: dict[str, Trained] = {}
    for grid in grids:
        name = f"{grid[0]}x{grid[1]}"
        others[f"{name} through a loss"] = runs.through_a_loss(grid)
        if grid != (1, 1):  # a loss of the only agent is followed by a restore
            others[f"{name} through a restore"] = runs.through_a_restore(grid)
    found = [f"{name}: {x}" for name, run in others.items() for x in differences(reference, run)]
    if isinstance(case.expected, Equal) and case.expected.like:
        (twin := folder / "twin").mkdir()
        plain = Runs(case.like(case.expected.like).job(twin), twin, serve_here).undisturbed()
        found += [f"{case.expected.like}: {x}" for x in _unequal_training(plain, reference)]
    return (How.UNEQUAL, _shortened(found)) if found else (How.EQUAL, "")


def _unequal_training(plain: Trained, other: Trained) -> list[str]:
    """Weights and losses only: another optimizer has another state."""
    for trained in (plain, other):
        trained.fingerprints = set()
        for layer in trained.layers:
            for name in [x for x in layer.tensors if not x.startswith("param/")]:
                del layer.tensors[name]
    layers = [type(x)(x.tensors) for x in plain.layers], [type(x)(x.tensors) for x in other.layers]
    plain.layers, other.layers = layers
    return differences(plain, other)


def _shortened(found: list[str]) -> str:
    more = f"; and {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
    return "; ".join(found[:_MOST_TOLD]) + more
