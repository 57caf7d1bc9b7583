"""Equivalents, verdicts that are kept, and the totals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bamboo_sim.mutation import equivalents, even_sample, figures, sources, verdicts
from bamboo_sim.mutation.coverage_map import CoverageMap
from bamboo_sim.mutation.figures import Judged
from bamboo_sim.mutation.mutants import Mutant
from bamboo_sim.mutation.verdicts import Verdict, Verdicts
from bamboo_sim.programs import results_file

MUTANT = Mutant("graph/a.py", "swap_op", 'if a < "b":', 1, 7, "<= b")


def judged(killed_by: str, reason: str = "", module: str = "graph/a.py") -> Judged:
    mutant = Mutant(module, "number", "x = 1", 0, 1, "2")
    return Judged(mutant, Verdict(killed_by, 2.0, "c"), reason)


def test_justified_equivalents_do_not_count() -> None:
    rows = [judged("tests/core/a.py::f")] * 7 + [judged("exploration"), judged("time-out: a::b")]
    rows += [judged(""), judged("", "same"), judged("import", "said to be the same")]
    found = figures.figures(rows)
    assert (found["mutants"], found["killed"], found["survived"], found["equivalent"]) == (
        12, 10, 1, 1,
    )  # fmt: skip
    assert found["killed_over_all"] == round(10 / 11, 4)
    assert found["equivalents_share"] == round(1 / 12, 4)
    assert found["killed_by_tests"] == 8
    assert found["killed_by_exploration"] == found["killed_by_time_out"] == 1
    assert figures.figures([])["killed_over_all"] == 0.0


def test_modules_have_their_own_rows() -> None:
    rows = [judged("import", module="b.py"), judged("", module="a.py"), judged("", "same", "b.py")]
    assert list(figures.by_module(rows).items()) == [
        ("a.py", {"mutants": 1, "killed": 0, "survived": 1, "equivalent": 0}),
        ("b.py", {"mutants": 2, "killed": 1, "survived": 0, "equivalent": 1}),
    ]


def test_the_result_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    rows = [judged("", module=f"{i % 35}.py") for i in range(200)] + [judged("import")] * 400
    figures.write(rows, {"seed": 0})
    text = (tmp_path / "mutation.json").read_text()
    assert len(text.splitlines()) <= 300
    assert len(json.loads(text)["samples"]["survivors"]) == 200
    with pytest.raises(ValueError, match="201 mutants survive"):
        figures.write([*rows, judged("")], {"seed": 0})


def test_a_verdict_holds_for_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path)
    Verdicts().add("a", Verdict("x::y", 1.5, "old"))
    again = Verdicts()
    assert again.valid("a", "old") == again.newest("a") == Verdict("x::y", 1.5, "old")
    assert again.valid("a", "new") is None
    assert again.newest("b") is None


def test_the_map_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "PROGRESS", tmp_path)
    coverage = CoverageMap({"t::a": 0.5}, {"graph/a.py": [(1, 2, ["t::a"])]})
    verdicts.save_map("old", coverage)
    verdicts.save_map("new", coverage)
    assert verdicts.load_map("new") == coverage
    assert verdicts.load_map("old") is None


def test_only_tests_that_run_the_function_try_the_quickest_of_the_package_first() -> None:
    names = ["tests/core/job/t.py::a", "tests/core/graph/t.py::b", "tests/core/graph/t.py::c"]
    durations = dict(zip([*names, "tests/core/api/t.py::d"], [0.1, 0.3, 0.2, 0.0], strict=True))
    coverage = CoverageMap(durations, {"graph/a.py": [(2, 5, ["x"]), (7, 9, names)]})
    a, b, c = names
    assert coverage.tests(MUTANT) == (c, b, a)
    outside = Mutant("graph/a.py", "number", "x = 1", 0, 6, "2")
    assert set(coverage.tests(outside)) == set(durations)


def test_every_listed_equivalent_is_a_mutant_of_the_code_as_it_is() -> None:
    listed = equivalents.load().values()
    known = {
        mutant.id: mutant.becomes
        for members in sources.paths().values()
        for path in members
        if str(path.relative_to(sources.CORE)) in {entry.module for entry in listed}
        for mutant in even_sample.module(path).mutants
    }
    stale = [e.module + ": " + e.line for e in listed if known.get(e.id) != e.becomes]
    assert stale == [], "the code has changed: find out whether the entry still holds"


def test_an_entry_can_be_copied(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    text = equivalents.entry(MUTANT)
    file.write_text(text.replace('reason = ""', 'reason = "the same"'))
    assert list(equivalents.load(file)) == [MUTANT.id]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('reason = ""', 'reason = ""'), "e.toml, entry 1: reason must be a str; add it"),
        (("occurrence = 1", 'occurrence = "1"'), "entry 1: occurrence must be a int; add it"),
        (('reason = ""', 'reason = "x"\nwhy = 1'), "entry 1: why is not known; remove it"),
    ],
)
def test_a_bad_entry_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    file = tmp_path / "e.toml"
    text = equivalents.entry(MUTANT).replace(*change)
    file.write_text(text if "reason" in change[0] else text.replace('reason = ""', 'reason = "x"'))
    with pytest.raises(ValueError, match=message):
        equivalents.load(file)


def test_an_entry_occurs_once(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text((equivalents.entry(MUTANT).replace('reason = ""', 'reason = "x"') + "\n") * 2)
    with pytest.raises(ValueError, match=r"entry 2 occurs twice; remove one"):
        equivalents.load(file)


@pytest.mark.parametrize(
    ("killed_by", "kind"),
    [
        ("", "survived"),
        ("tests/core/a.py::f[x: 1]", "tests"),
        ("collection of tests/core/a.py", "tests"),
        ("exploration", "exploration"),
        ("import", "import"),
        ("time-out: tests/core/a.py::f", "time-out"),
        ("crash: exploration", "crash"),
    ],
)
def test_kinds_of_killers(killed_by: str, kind: str) -> None:
    assert Verdict(killed_by, 0.0, "").kind == kind
