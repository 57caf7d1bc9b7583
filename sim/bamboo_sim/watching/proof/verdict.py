"""The tests of all alerts in figures: which fire on their fault, and which without one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bamboo_sim.watching.proof import cases, promtool
from bamboo_sim.watching.proof.lives import FAULTS, HARMLESS, Life


class UnclearError(Exception):
    """promtool did not say which alert is wrong. The text has its answer."""


@dataclass(frozen=True)
class Verdict:
    """shown: alerts that fire on every fault of theirs. wrongly: lives with alerts that fired in
    them without a fault."""

    shown: frozenset[str]
    wrongly: Mapping[str, frozenset[str]]


def of_rules(
    text: str, harmless: Mapping[str, Life] = HARMLESS, faults: Mapping[str, Life] = FAULTS
) -> Verdict:
    """Try rules on all cases and on these lives. UnclearError if promtool cannot be understood."""
    told = {case.alert for case in cases.CASES}
    with tempfile.TemporaryDirectory(prefix="bamboo-alerts-") as name:
        folder = Path(name)
        done = promtool.try_rules(folder, text, cases.tests())
        wrong = promtool.wrong(done)
        if bool(done.returncode) != bool(wrong):
            raise UnclearError(done.stdout + done.stderr)
        for fault, life in faults.items():
            wrong |= frozenset(life.fires) ^ fired(folder, text, fault, life)
        wrongly = {
            what: fired(folder, text, what, life) - frozenset(life.fires)
            for what, life in harmless.items()
        }
    return Verdict(frozenset(told) - wrong, {what: x for what, x in wrongly.items() if x})


def fired(folder: Path, text: str, name: str, life: Life) -> frozenset[str]:
    """Alerts that fire in this life. UnclearError as for :func:`of_rules`."""
    done = promtool.try_rules(folder, text, [life.test(name)])
    if not done.returncode:
        return frozenset(life.fires)
    if "alertstate" not in done.stdout + done.stderr:
        raise UnclearError(done.stdout + done.stderr)
    return promtool.fired(done)
