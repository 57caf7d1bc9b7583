"""A sample that has tried too little fails, whatever kind of sample it is."""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo_core.protocol.executor import Executor
from bamboo_sim.fleet.runs.kill_record import Slice
from bamboo_sim.mutation import campaign, commands, equivalents, sources
from bamboo_sim.mutation.equivalents import Equivalent
from bamboo_sim.programs import results_file, sample
from bamboo_sim.programs.sample import Sample, TooSmallError
from bamboo_sim.protocol import __main__ as exploring
from bamboo_sim.protocol.exploration.detection import Detection, detect
from bamboo_sim.protocol.exploration.tally import NEW_FAMILIES, Tally
from bamboo_sim.protocol.exploration.time_budget import explore, is_chosen, runs
from bamboo_sim.protocol.families.by_name import FAMILIES
from bamboo_sim.protocol.parts.job import Job
from bamboo_sim.protocol.planted.faults import FAULTS
from bamboo_sim.protocol.planted.patches import Planted, both, patched
from bamboo_sim.soak.job import Round
from bamboo_sim.soak.reference import Reference

ROOT = Path(__file__).resolve().parents[3]
SMALL = Job(1, 2, 2, steps=1)
GOOD = Round("1x2 None", "kill+reset", "kill a; reset all", 3.0, 1.5, 0.0, False, False)
IDLE = Round("1x2 None", "", "slow disk (without effect)", 3.0, 1.5, 0.0, False, False)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, least: int = 2) -> Sample:
    return Sample("x", {"rounds": least}, 10.0, "do something", patience_s=50.0, clock=clock)


def test_the_time_counts_from_the_first_round(clock: Clock) -> None:
    rounds = made(clock, least=0)
    clock.now += 30.0
    assert not rounds.is_over
    rounds.begin()
    clock.now += 9.0
    rounds.begin()
    assert not rounds.is_over
    clock.now += 1.0
    assert rounds.is_over


def test_it_goes_on_until_the_least_is_done_but_not_for_ever(clock: Clock) -> None:
    rounds = made(clock)
    rounds.begin()
    rounds.add("rounds")
    clock.now += 40.0
    assert not rounds.is_over
    rounds.add("rounds")
    assert rounds.is_over
    rounds.check()
    rounds = made(clock)
    clock.now += 60.0  # its time and its patience
    assert rounds.is_over
    with pytest.raises(TooSmallError) as error:
        rounds.check()
    assert str(error.value) == (
        "x proves too little: it has done 0 rounds (at least 2) in 60 s; do something"
    )


def test_what_was_not_asked_for_may_be_missing() -> None:
    Sample("x", {"rounds": 0}, 0.0).check()


# ---------------------------------------------------------------- the soak


class NoForkServer:
    def __init__(self, socket: Path) -> None:
        self.socket = socket

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Stop nothing."""


def script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """The names of a benchmark, whose main has these arguments. They can be replaced."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    names = runpy.run_path(str(ROOT / "benchmarks" / name))
    return names["main"].__globals__  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("rounds", "status"), [([], 1), ([GOOD] * 3 + [IDLE] * 9, 1), ([GOOD] * 4, 0)]
)
def test_a_soak_without_enough_rounds_fails(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rounds: list[Round],
    status: int,
) -> None:
    names = script("soak.py", monkeypatch, "--fresh", "--minutes", "0")
    names["ForkServerProcess"] = NoForkServer
    names["reference"] = lambda *_, **__: Reference([], {})
    monkeypatch.setattr(
        names["side_by_side"], "rows", lambda serve, orders: iter([("0.1", x) for x in rounds])
    )
    assert names["main"]() == status
    error = capsys.readouterr().err
    assert ("bamboo: the soak proves too little: it has done" in error) is bool(status)


async def test_a_soak_whose_rounds_never_begin_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sample, "PATIENCE_S", 0.0)
    names = script("soak.py", monkeypatch)
    tried = list[object]()

    async def soak(*arguments: Any) -> AsyncIterator[Round]:
        tried.append(arguments[-1])
        arguments[-1].patience_s = 0.0
        return
        yield GOOD

    names["soak"] = soak
    order = names["Order"](0, "seed", 1, 0.0, 2, tmp_path / "socket", Reference([], {}))
    await names["_serve"](order, None)
    assert len(tried) == 1


# ---------------------------------------------------------------- histories and planted faults


@pytest.fixture
def explored(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run python -m bamboo_sim.protocol with so many histories, and these planted faults."""

    def run(
        *arguments: str, cases: int, detections: list[Detection], without: str | None = None
    ) -> int:
        each = Counter({family: 1 for family in FAMILIES if family != without} if cases else {})
        found = Tally(cases=cases, families=each)
        monkeypatch.setenv("PYTHONHASHSEED", "0")
        monkeypatch.setattr(sys, "argv", ["x", "--seed", "1", *arguments])
        monkeypatch.setattr(exploring, "explore", lambda *_, **__: (found, []))
        monkeypatch.setattr(exploring, "_detect_all", lambda *_: detections)
        return exploring.main()

    return run


FOUND = [Detection(fault, 1, "deadlock") for fault in FAULTS]


@pytest.mark.parametrize(
    ("arguments", "cases", "detections", "error"),
    [
        (["--fault-seconds", "0"], 999, [], "999 histories (at least 1000)"),
        (["--fault-seconds", "0"], 1000, [], ""),
        (["--fault-seconds", "0", "--only", "pairs"], 0, [], "0 histories (at least 1)"),
        (["--seconds", "0"], 0, [], "0 planted faults (at least 90)"),
        (["--seconds", "0"], 0, [Detection(f, 0) for f in FAULTS], "0 planted faults"),
        (["--seconds", "0"], 0, FOUND, ""),
    ],
)
def test_an_exploration_that_has_tried_too_little_fails(
    explored: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    cases: int,
    detections: list[Detection],
    error: str,
) -> None:
    assert explored(*arguments, cases=cases, detections=detections) == bool(error)
    assert error in capsys.readouterr().err


def test_a_fault_is_searched_for_again_though_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """A slow machine has used it up before the last faults are found."""
    late, shares = FAULTS[-1], list[float]()

    def search(fault: Planted, seconds: float, *_: object) -> Detection:
        clock.now += 0.0 if fault is late else seconds
        shares.extend([seconds] if fault is late else [])
        return Detection(fault, 49, "" if fault is late and len(shares) < 2 else "deadlock")

    monkeypatch.setattr(exploring, "time", clock)
    monkeypatch.setattr(exploring, "detect", search)
    detections = exploring._detect_all(1.0, 0, {})
    assert shares[0] == 1.0
    assert shares[1] >= exploring._AGAIN_S
    assert [d.is_right for d in detections] == [True] * len(FAULTS)
    assert (detections[-1].fault, detections[-1].cases) == (late, 98)


@pytest.mark.parametrize(
    ("arguments", "without", "error"),
    [
        ((), "echoes", "0 histories of echoes (at least 1)"),
        (("--only", "echoes"), "echoes", "0 histories of echoes (at least 1)"),
        (("--only", "lists"), "echoes", ""),
    ],
)
def test_an_exploration_without_one_of_its_families_fails(
    explored: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    without: str,
    error: str,
) -> None:
    arguments = ("--fault-seconds", "0", *arguments)
    assert explored(*arguments, cases=5000, detections=[], without=without) == bool(error)
    assert error in capsys.readouterr().err


def test_the_least_has_a_history_of_each_family_that_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--seed", "1"])
    histories, _ = exploring._samples(exploring._options())
    families = {family for family, *_ in runs()}
    assert families == FAMILIES.keys()
    assert dict(histories.least) == {
        "histories": 1000, **{f"histories of {family}": 1 for family in families}
    }  # fmt: skip


def test_an_exploration_of_nothing_is_refused(explored: Callable[..., int]) -> None:
    with pytest.raises(SystemExit):
        explored("--seconds", "0", "--fault-seconds", "0", cases=0, detections=[])


def test_histories_run_beyond_their_time_until_there_are_enough() -> None:
    tally, _ = explore(0.0, 1, only="isolations", least=3)
    assert tally.cases >= 3
    tally, _ = explore(0.0, 1, only="isolations", least=3, patience_s=0.0)
    assert tally.cases == 0


def test_words_choose_families() -> None:
    assert is_chosen("space", "")
    assert is_chosen("space", "deaf,spa")
    assert not is_chosen("space", "deaf,rests")
    families = {family for family, *_ in runs()}
    assert all(word in families for word in NEW_FAMILIES.split(","))


def test_each_family_runs_beyond_the_time_until_it_has_enough() -> None:
    """The histories of one family alone would be enough in all."""
    families = {"finishes", "isolations", "lists", "raises"}
    tally, lines = explore(0.0, 1, only="is", least=1, each=1)
    assert tally.families.keys() == families
    assert min(tally.families.values()) >= 1
    assert tally.families.total() == tally.cases
    assert len(lines) == len(families), "a family that has enough leaves the time to the others"
    tally, lines = explore(0.0, 1, only="is", each=1, patience_s=0.0)
    assert (tally.families.total(), lines) == (0, [])


class Unused:
    def never(self) -> None:
        """Nobody calls it."""

    def neither(self) -> None:
        """Nobody calls it."""


def planted(*names: str) -> Planted:
    plants = [patched(Unused, name, lambda self: None) for name in names]
    return Planted("x", "X1", both(*plants), (("singles", SMALL),))


def test_a_planted_fault_that_never_runs_is_told() -> None:
    found = detect(planted("never", "neither"), 0.0)
    assert (found.is_right, found.has_run) == (False, False)
    assert "never run: Unused.never, Unused.neither; PATCH WHAT THE PRODUCT CALLS NOW" in str(found)
    fault = next(fault for fault in FAULTS if fault.row == "S2")
    found = detect(fault, 60.0, 3)
    assert (found.is_right, found.idle) == (True, ())


def test_a_planted_fault_in_a_name_that_is_gone_is_an_error() -> None:
    with pytest.raises(AttributeError, match="was_renamed"):
        detect(planted("was_renamed"), 0.0)


def test_a_planted_property_counts_its_calls() -> None:
    fault = Planted("x", "X1", patched(Unused, "never", property(lambda self: 1)), ())
    with fault.planted() as executions:
        assert Unused().never == 1  # type: ignore[comparison-overlap]
    assert executions == {"Unused.never": 1}


def test_a_planted_static_method_counts_its_calls() -> None:
    fault = Planted("x", "X1", patched(Executor, "_may", staticmethod(lambda task: task)), ())
    with fault.planted() as executions:
        assert Executor._may(3) == 3  # type: ignore[arg-type, call-arg]
    assert executions == {"Executor._may": 1}


# ---------------------------------------------------------------- mutants


def test_a_quick_run_without_mutants_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "check_folders", lambda folder: None)
    monkeypatch.setattr(campaign, "judge", lambda *_, **__: iter(()))
    options = argparse.Namespace(
        minutes=0.0, only="graph/gradients", mutants=510, seed=1, processes=1, least=0.2
    )
    with pytest.raises(TooSmallError, match=r"scripts/mutate proves too little.* 0 mutants \("):
        commands.run_quickly(options)


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        ("graph/was_moved.py", "x", "names graph/was_moved.py, and there is no such module"),
        ("graph/closure.py", "was = changed", "there is no line 'was = changed' in it; correct"),
    ],
)
def test_an_equivalent_in_a_place_that_is_gone_is_an_error(
    module: str, line: str, words: str
) -> None:
    equivalents.check_modules(equivalents.load().values())
    with pytest.raises(ValueError, match=words):
        equivalents.check_modules([Equivalent(module, "number", line, 0, "1", "so")])


@pytest.mark.parametrize(
    ("name", "value"), [("GROUPS", {"a": ("was_moved/*.py",)}), ("LEFT_OUT", {"was_moved.py": ""})]
)
def test_a_mutated_folder_that_is_gone_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(sources, name, value)
    with pytest.raises(ValueError, match=r"there is no .*was_moved.*; say in .*sources.py where"):
        sources.paths()


def test_a_fingerprint_of_a_folder_that_is_gone_is_an_error() -> None:
    assert results_file.fingerprint(["core"])
    with pytest.raises(ValueError, match="git knows no file by one of the names core was_moved"):
        results_file.fingerprint(["core", "was_moved"])


# ---------------------------------------------------------------- attacks and kill points


@pytest.mark.parametrize(("cases", "status"), [({}, 1), ({"stranger": 6, "insider": 4}, 0)])
def test_an_attack_with_too_few_cases_fails(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cases: dict[str, int],
    status: int,
) -> None:
    names = script("security.py", monkeypatch, "--cases", "10", "--port", "data", "--no-record")
    names["PORTS"]["data"] = lambda *_: {"cases": cases, "breaches": {}}
    assert names["main"]() == status
    assert ("0 data (at least 10)" in capsys.readouterr().err) is bool(status)


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Progress and result files of the test."""
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path / "progress")
    monkeypatch.setattr(results_file, "RESULTS", tmp_path / "results")
    return iter(())


@pytest.mark.usefixtures("progress")
@pytest.mark.parametrize(("deaths", "status"), [([], 1), (["0.0 after VOTE"], 0)])
def test_kill_points_without_a_death_fail(
    monkeypatch: pytest.MonkeyPatch, deaths: list[str], status: int
) -> None:
    names = script("kill_points.py", monkeypatch, "--minutes", "0")
    names["ForkServerProcess"] = NoForkServer
    names["run"] = lambda scenario, faults, _: Slice(scenario.name, [], 1.0, deaths=deaths)
    assert names["main"]() == status


# ---------------------------------------------------------------- the tests themselves


def test_a_stage_of_tests_whose_folder_is_gone_fails() -> None:
    text = (ROOT / "scripts/test").read_text()
    begin = text.index("run_pytest() {")
    function = text[begin : text.index("\n}\n", begin) + 3]
    done = subprocess.run(
        ["/bin/bash", "-ceu", f"source scripts/lib.sh\n{function}\nrun_pytest core was/moved"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        done.stderr
        == "bamboo: there is no directory tests/was/moved; name another in scripts/test.\n"
    )
