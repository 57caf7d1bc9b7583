"""What a change of the core becomes: killed by a test, by a history, by a limit; or it survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fresh import run

_WORK = """
from bamboo_sim.mutation import killers
from bamboo_sim.mutation.killers import Work

def killed_by(work):
    return ended(lambda say: killers.attack(work, say)).killed_by

source = (killers.ROOT / "core/bamboo_core/graph/holdings.py").read_text()
body = "    def __init__("
assert body in source
"""


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("source", ""),
        ('source + "\\nundefined"', "import"),
        ('source + "\\nHoldingsIndex.__init__ = None"', "tests/core/graph/test_closure.py::"),
        (
            'source + "\\ndef f(*a, **k):\\n    while 1: pass\\nHoldingsIndex.__init__ = f"',
            "time-out: tests/core/graph/test_closure.py::",
        ),
        (
            'source + "\\nimport os\\nHoldingsIndex.__init__ = lambda *a, **k: os._exit(7)"',
            "crash: tests/core/graph/test_closure.py::",
        ),
    ],
)
def test_the_unit_tests_judge(change: str, found: str, tmp_path: Path) -> None:
    code = f"""
killers._LEAST_LIMIT_S, killers._USUAL_S = 1.0, 0.0
work = Work({change}, "graph/holdings.py", folders=("tests/core/graph",), explore_s=0)
result = killed_by(work)"""
    killer = run(_WORK + code, tmp_path)
    assert killer.startswith(found)
    assert bool(killer) == bool(found)


def test_the_exploration_judges(tmp_path: Path) -> None:
    code = """
change = source + "\\nHoldingsIndex.__init__ = None"
result = killed_by(Work(change, "graph/holdings.py", tests=(), explore_s=1.0))"""
    assert run(_WORK + code, tmp_path) == "exploration"


def test_the_killer_of_an_earlier_version_goes_first(tmp_path: Path) -> None:
    code = """
change = source + "\\nHoldingsIndex.__init__ = None"
tests = ["test_an_agent_holds_what_it_says", "x"]
folder = "tests/core/graph"
def words(first, tests, usual):
    work = Work(change, "graph/holdings.py", tests=tests, first=first, durations=usual, explore_s=1)
    return [w for w in ended(lambda say: killers.attack(work, say)).words if "at" in w]
usual = {}
class Names:
    def pytest_collection_modifyitems(self, items):
        usual.update({i.nodeid: 0.1 for i in items})
        items.clear()
def collect(say):
    killers.import_core()
    killers.run_pytest([folder], Names())
    say({"names": list(usual)})
(names,) = [w["names"] for w in ended(collect).words if "names" in w]
usual = dict.fromkeys(names, 0.1)
last = names[-1]
result = [words("", tuple(names), usual)[1]["at"] == names[0],
          words(last, tuple(names), usual)[1]["at"] == last,
          words("exploration", tuple(names), usual)[1]["at"]]"""
    assert run(_WORK + code, tmp_path) == [True, True, "exploration"]


def test_every_test_of_the_core_can_be_collected(tmp_path: Path) -> None:
    code = """
import contextlib, io
from bamboo_sim.mutation import killers

class RunsNone:
    failed, found = [], 0

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collection_modifyitems(self, items):
        self.found = len(items)
        items.clear()

watch = RunsNone()
with contextlib.redirect_stdout(io.StringIO()):
    killers.run_pytest([killers.TESTS], watch)
result = [watch.failed, watch.found]"""
    failed, found = run(code, tmp_path)
    assert failed == []
    assert found > 1000
