"""Which unit tests run which function of the core, from one run of the tests as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import coverage
import pytest

from bamboo_sim.mutation import killers
from bamboo_sim.mutation.mutants import Mutant
from bamboo_sim.mutation.sources import CORE


@dataclass(frozen=True)
class CoverageMap:
    """Only tests that run the changed function can notice a change inside it."""

    durations: dict[str, float]  # test -> processor time in the measured run, s
    functions: dict[str, list[tuple[int, int, list[str]]]]
    """module -> (first line, last line, tests) of each function's body, by line"""

    def tests(self, mutant: Mutant) -> tuple[str, ...]:
        """Tests that may kill a mutant: first its own package's, the quickest of them first."""
        functions = self.functions.get(mutant.module, [])
        inside = (tests for first, last, tests in functions if first <= mutant.line <= last)
        found = next(inside, list(self.durations))  # code outside functions concerns all
        own = f"{killers.TESTS}/{mutant.module.split('/')[0]}/"
        return tuple(sorted(found, key=lambda t: (not t.startswith(own), self.durations[t], t)))


def measure(say: killers.Say) -> None:
    """Run all tests of the core in this process and say durations, functions, and a failure."""
    tracer = coverage.Coverage(
        data_file=None, config_file=False, include=[f"{CORE}/*"], messages=False
    )
    tracer.start()
    killers.import_core()
    killers.use_few_examples()
    watch = _Watch(tracer, say)
    status = killers.run_pytest([killers.TESTS], watch)
    tracer.stop()
    if status:
        say({"failed": watch.failed or f"pytest ends with exit status {status}"})
        return
    data, functions = tracer.get_data(), {}
    for file in data.measured_files():
        name = file.removeprefix(f"{CORE}/")
        functions[name] = _tests_of_functions(file, data.contexts_by_lineno(file))
    say({"durations": watch.durations, "functions": functions})


class _Watch:
    def __init__(self, tracer: coverage.Coverage, say: killers.Say) -> None:
        self._tracer, self._say = tracer, say
        self.durations: dict[str, float] = {}
        self.failed = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._say({"at": item.nodeid})
        self._tracer.switch_context(item.nodeid)
        self.durations[item.nodeid] = 0.0
        result = yield
        self._tracer.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] = round(self.durations[report.nodeid] + report.duration, 4)
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"collection of {report.nodeid}"


def _tests_of_functions(file: str, lines: dict[int, list[str]]) -> list[tuple[int, int, list[str]]]:
    """For the body of every outermost function: its lines and the tests that run one of them."""
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    found = []
    for first, last in sorted(_bodies(tree)):
        tests: dict[str, Any] = {}
        for line in range(first, last + 1):
            tests.update(dict.fromkeys(lines.get(line, ())))
        if "" not in tests:  # else it also runs while modules are imported, and so concerns all
            found.append((first, last, list(tests)))
    return found


def _bodies(node: ast.AST) -> Iterator[tuple[int, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            last = child.body[-1]
            yield child.body[0].lineno, last.end_lineno or last.lineno
        else:
            yield from _bodies(child)
