"""A run continues, and gives no verdict where none is possible."""

from __future__ import annotations

from pathlib import Path

from .fresh import run

_GIVEN = """
from bamboo_sim.mutation import campaign, even_sample, killers, verdicts
from bamboo_sim.mutation.campaign import UnfitError
from bamboo_sim.mutation.killers import Work
from bamboo_sim.mutation.verdicts import Verdict, Verdicts

(members,) = even_sample.modules("graph/tasks").values()
pairs = [(members[0], mutant) for mutant in members[0].mutants[:3]]
started = []

def plan(module, mutant, first):
    started.append(first)
    return Work(module.mutated(mutant), mutant.module)

def attack(work, say):
    say({"killed_by": "tests/core/x.py::f"})

killers.attack = attack
code = verdicts.code()

def judge(**options):
    started.clear()
    return [[v.killed_by, is_new] for _, v, is_new in campaign.judge(pairs, plan, **options)]

def message(work):
    try:
        work()
    except UnfitError as error:
        return str(error)
"""


def test_verdicts_are_reused_while_the_sources_are_the_same(tmp_path: Path) -> None:
    code = """
known = Verdicts()
known.add(pairs[0][1].id, Verdict("exploration", 1.0, code))
known.add(pairs[1][1].id, Verdict("import", 1.0, "an earlier version"))
first = judge(code=code, known=known, processes=2)
result = [sorted(first), list(started), judge(code=code, known=Verdicts()), list(started)]"""
    test = "tests/core/x.py::f"
    first, started, second, started_again = run(_GIVEN + code, tmp_path)
    assert first == [["exploration", False], [test, True], [test, True]]
    assert started == ["import", ""]
    assert sorted(second) == [["exploration", False], [test, False], [test, False]]
    assert started_again == []


def test_no_mutant_starts_after_the_end(tmp_path: Path) -> None:
    assert run(_GIVEN + "result = judge(code=code, until=time.time() - 1)", tmp_path) == []


def test_a_few_mutants_are_judged_however_late_it_is(tmp_path: Path) -> None:
    code = _GIVEN + "result = judge(code=code, until=time.time() - 1, least=2)"
    test = "tests/core/x.py::f"
    assert run(code, tmp_path) == [[test, True], [test, True]]


def test_sources_that_change_meanwhile_end_the_run(tmp_path: Path) -> None:
    code = 'result = message(lambda: judge(code="what it was at the start"))'
    assert run(_GIVEN + code, tmp_path) == (
        "the sources have changed during the run; start it again"
    )


def test_code_that_fails_without_a_change_is_not_mutated(tmp_path: Path) -> None:
    code = """
result = [message(lambda: campaign.check_folders(("tests/core/graph",)))]
killers.attack = lambda work, say: say({"killed_by": "exploration", "why": "no end"})
campaign.coverage_map.measure = lambda say: say({"functions": {}, "durations": {}})
result.append(message(lambda: campaign.measured("x")))
campaign.coverage_map.measure = lambda say: say({"failed": "a::b"})
result.append(message(lambda: campaign.measured("x")))"""
    assert run(_GIVEN + code, tmp_path) == [
        "without any change, tests/core/x.py::f fails; repair that first",
        "without any change, exploration fails (no end); repair that first",
        "without any change, a::b fails; repair that first",
    ]


def test_the_map_is_measured_once(tmp_path: Path) -> None:
    code = """
killers.attack = lambda work, say: None
names = {"graph/tasks.py": [[1, 9, ["a::b"]]]}
campaign.coverage_map.measure = lambda say: say({"functions": names, "durations": {"a::b": 0.5}})
campaign.measured("x")
campaign.coverage_map.measure = None
result = [campaign.measured("x").tests(pairs[0][1])[:1], *campaign.own_folders(pairs[0][1])]
work = campaign.with_map(campaign.measured("x"))(*pairs[0], "gone::test")
result += [work.first, campaign.own_tests_only(*pairs[0], "").folders]"""
    assert run(_GIVEN + code, tmp_path) == [
        ["a::b"], "tests/core/graph", "", ["tests/core/graph"],
    ]  # fmt: skip
