"""A sample of the table of users' code; ``python benchmarks/probe.py`` runs all of it."""

from __future__ import annotations

import pytest
from tests.rotation import in_turn

from bamboo_sim.user_code.case import Case, Equal
from bamboo_sim.user_code.cases import CASES
from bamboo_sim.user_code.judge import judge

TRAINED = [case for case in CASES if isinstance(case.expected, Equal)]
OWN = [case for case in TRAINED if case.has_own_interpreters]
FORKED = [case for case in TRAINED if not case.has_own_interpreters]
OTHERS = [case for case in CASES if case not in TRAINED]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "case",
    [
        *in_turn(len(OWN), OWN),
        *in_turn(len(FORKED) // 2, FORKED),
        *in_turn(len(OTHERS) // 3, OTHERS),
    ],
    ids=lambda case: case.name,
)
def test_the_case_comes_out_as_it_must(case: Case) -> None:
    verdict = judge(case)
    assert verdict.is_expected, f"{case.expected}, but {verdict}"
