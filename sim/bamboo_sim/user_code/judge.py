"""Runs a case, and says whether what came out is what must come out."""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.messages import Failure, Fingerprint, Ready
from bamboo_sim.user_code.case import Case, Equal, Refused, Unlike
from bamboo_sim.user_code.processes import CaseFleet, EndedError
from bamboo_sim.user_code.training import GRIDS, Runs, Trained, differences
from bamboo_sim.workers import plans

_MOST_TOLD = 3


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
    expected = case.expected
    trains = isinstance(expected, Equal) or (isinstance(expected, Refused) and expected.or_equal)
    count = 2 if isinstance(expected, Unlike) else 1
    found = _set_up(case.job(folder), folder, count)
    if isinstance(found, Failure):
        if not found.user_error:
            return How.ENDED, f"not the user's fault: {found.reason}: {found.message}"
        return How.REFUSED, found.message
    if len(found) > 1:
        return How.UNLIKE, ""
    if not trains:
        return How.ACCEPTED, ""
    try:
        return _train(case, folder)
    except (EndedError, AssertionError) as error:
        return How.ENDED, str(error)[:500]


def _set_up(job: JobSpec, folder: Path, count: int) -> Failure | set[Fingerprint]:
    """What a worker says of the job, or the fingerprints of all workers."""
    logs = folder / "set-up"
    logs.mkdir()
    fleet = CaseFleet(job, plans.names(count), logs)
    try:
        fleet.ready()
    except EndedError as ended:
        return ended.failure or Failure("", str(ended), user_error=False, exit_code=0)
    finally:
        fleet.close()
    return {m.fingerprint for _, m in fleet.messages if isinstance(m, Ready)}


def _train(case: Case, folder: Path) -> tuple[How, str]:
    runs = Runs(case.job(folder), folder)
    reference = runs.undisturbed()
    others: dict[str, Trained] = {}
    for grid in GRIDS:
        name = f"{grid[0]}x{grid[1]}"
        others[f"{name} through a loss"] = runs.through_a_loss(grid)
        others[f"{name} through a restore"] = runs.through_a_restore(grid)
    found = [f"{name}: {x}" for name, run in others.items() for x in differences(reference, run)]
    if isinstance(case.expected, Equal) and case.expected.like:
        twin = case.like(case.expected.like).job(folder / "twin")
        (folder / "twin").mkdir()
        plain = Runs(twin, folder / "twin").undisturbed()
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
