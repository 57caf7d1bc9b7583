"""What tries to kill a mutant: the unit tests of the core, then a short exploration.

Everything here runs in a forked child. The core must not be imported before that.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import pkgutil
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from bamboo_sim.programs.results_file import ROOT

TESTS = "tests/core"
EXPLORATION = "exploration"
SEED = 1  # of the exploration
_EXAMPLES = 20  # of a property, where its test does not say more
_USUAL_S = 2.0  # processor time of a slow test, for those that were not measured
_LEAST_LIMIT_S = 5.0  # of processor time for a test or a family of histories
_MOST_BYTES = 6 << 30

Say = Callable[[dict[str, Any]], None]
"""Sends a message to the parent process."""


@dataclass(frozen=True)
class Work:
    """The work of a child. ``tests`` are run in this order; None means all of ``folders``."""

    source: str = ""  # the mutated module's text; "" for the code as it is
    name: str = ""  # the mutated module's path below core/bamboo_core
    folders: tuple[str, ...] = (TESTS,)
    tests: tuple[str, ...] | None = None
    first: str = ""  # what killed the mutant in an earlier version: it goes first
    durations: dict[str, float] | None = None  # test -> usual processor time, s
    explore_s: float = 10.0


def attack(work: Work, say: Say) -> None:
    """Let every killer try, and say ``killed_by`` if one of them finds the change."""
    os.chdir(ROOT)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    _limit(_LEAST_LIMIT_S * 2)
    say({"at": "import"})
    name = "bamboo_core." + work.name.removesuffix(".py").replace("/", ".")
    finder = _Finder(name, work)
    if work.source:
        sys.meta_path.insert(0, finder)
    try:
        import_core()
    except Exception:
        return say({"killed_by": "import"})
    if work.source and not finder.has_found:
        return say({"unfit": f"{name} was not imported in its changed form"})
    use_few_examples()
    if work.first == EXPLORATION and _explore(work, say):
        return None
    if not _test(work, say) and work.first != EXPLORATION:
        _explore(work, say)
    return None


def import_core() -> None:
    """Import every module of the core."""
    import bamboo_core

    for module in pkgutil.walk_packages(bamboo_core.__path__, "bamboo_core."):
        importlib.import_module(module.name)


def use_few_examples() -> None:
    """The same few examples in every run, and no search for the smallest one that fails."""
    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=_EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, work: Work) -> None:
        self._name, self._work = name, work
        self.has_found = False

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.has_found = True
        file = str(ROOT / "core" / "bamboo_core" / self._work.name)
        loader = _Loader(fullname, file)
        loader.text = self._work.source
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


class _Loader(SourceFileLoader):
    """Loads the changed text in place of the file's."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)


def _limit(more_s: float) -> None:
    """Let the kernel end this process (SIGXCPU) after this much more processor time."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + more_s) + 1, hard))


# ---------------------------------------------------------------- unit tests


def run_pytest(places: Sequence[str], plugin: object) -> int:
    """Run tests in this process, up to the first failure, without this machine's plugins."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)  # it may name a plugin
    options = ["-c", os.devnull, f"--rootdir={ROOT}", f"--confcutdir={ROOT / TESTS}", "-x"]
    options += ["--import-mode=importlib", "--assert=plain", "--tb=no", "-p", "no:cacheprovider"]
    options += ["-o", "pythonpath=.", "-o", "filterwarnings=error"]
    # Rotating tests take turns because they are slow: too slow for each mutant.
    options += ["-o", "markers=rotating(share): not run here", "-m", "not rotating"]
    return int(pytest.main([*options, *places], plugins=[plugin]))


class _Watch:
    """Chooses and orders the tests, limits each, and says which fails."""

    def __init__(self, work: Work, say: Say) -> None:
        self._work, self._say = work, say
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        tests = self._work.tests
        if tests is not None:
            order = {name: i for i, name in enumerate(tests)}
            items[:] = sorted(
                (item for item in items if item.nodeid in order), key=lambda i: order[i.nodeid]
            )
        items.sort(key=lambda item: item.nodeid != self._work.first)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._say({"at": item.nodeid})
        _limit(_LEAST_LIMIT_S + 10 * (self._work.durations or {}).get(item.nodeid, _USUAL_S))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"collection of {report.nodeid}"


def _test(work: Work, say: Say) -> bool:
    """Whether a test fails."""
    if work.tests is None:
        places = list(work.folders)
    else:
        wanted = [*work.tests, *([work.first] if work.first in (work.durations or ()) else [])]
        places = list(dict.fromkeys(name.partition("::")[0] for name in wanted))
    if not places:
        return False
    watch = _Watch(work, say)
    status = run_pytest(places, watch)
    if status not in (0, 5):  # 5: no test was chosen
        say({"killed_by": watch.failed or f"pytest's exit status {status}"})
        return True
    return False


# ---------------------------------------------------------------- exploration


def _explore(work: Work, say: Say) -> bool:
    """Whether a history violates an invariant or raises an error. All families get equal times."""
    if work.explore_s <= 0:
        return False
    say({"at": EXPLORATION})
    from bamboo_sim.protocol.exploration import tally, time_budget

    for module in (tally, time_budget):  # so that a busy machine does not make it shorter
        vars(module)["time"] = time.process_time
    families = list(dict.fromkeys(family for family, *_ in time_budget.runs()))
    found = tally.Tally()
    for family in families:
        share = work.explore_s / len(families)
        _limit(_LEAST_LIMIT_S + 10 * share)
        try:
            time_budget.explore(share, SEED, tally=found, only=family)
        except Exception as error:
            say({"killed_by": EXPLORATION, "why": repr(error)[:200]})
            return True
        if found.violations:
            say({"killed_by": EXPLORATION, "why": found.violations[0][1][:200]})
            return True
    return False
