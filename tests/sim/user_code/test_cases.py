"""The table of users' code: all that is refused, and a sample of what trains.

``python benchmarks/probe.py`` runs all of it.
"""

from __future__ import annotations

import pytest
from tests.rotation import in_turn

from bamboo_sim.user_code.case import Case, Equal, Refused
from bamboo_sim.user_code.cases import CASES
from bamboo_sim.user_code.judge import judge

TRAINED = [case for case in CASES if isinstance(case.expected, Equal)]
OWN = [case for case in TRAINED if case.has_own_interpreters]
FORKED = [case for case in TRAINED if not case.has_own_interpreters]
OTHERS = [case for case in CASES if case not in TRAINED]
LENIENT = [x for x in OTHERS if isinstance(x.expected, Refused) and x.expected.or_equal]
REFUSED = [case for case in OTHERS if case not in LENIENT]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "case",
    [
        *in_turn(len(OWN), OWN),
        *in_turn(len(FORKED) // 2, FORKED),
        *REFUSED,
        *in_turn(len(LENIENT) // 2, LENIENT),
    ],
    ids=lambda case: case.name,
)
def test_the_case_comes_out_as_it_must(case: Case) -> None:
    verdict = judge(case)
    assert verdict.is_expected, f"{case.expected}, but {verdict}"
