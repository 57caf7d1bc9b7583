"""The docs quote the result files, which are short; command lines reject bad values."""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bamboo_sim import arguments, results_file
from bamboo_sim.protocol.exploration import exhaustive

RESULT_LINES = 300
RESULT = {
    "commit": "abc",
    "command": "python b.py",
    "machine": {"cores": 2, "cpu": "X", "load_1m": 0.5},
    "figures": {"pause_s": 0.25, "latency_0.25_slots": 7},
}
SECTION = "# Page\n\n## `b`\n\nMeasured\n\n| figure | value | goal |\n| `pause_s` | 9 | <= 1 |\n"


@pytest.fixture(scope="module")
def quote(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "benchmarks" / "quote.py"))


def test_the_page_quotes_the_results(quote: dict[str, Any]) -> None:
    page = quote["PAGE"].read_text(encoding="utf-8")
    assert quote["quoted"](page, quote["load"]()) == page, "run python benchmarks/quote.py"


def test_the_page_leaves_out_no_scenario_of_the_kill_points(quote: dict[str, Any]) -> None:
    page = quote["PAGE"].read_text(encoding="utf-8")
    for name in ("kill_points", "kill_points_over_gloo"):
        section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
        figures = {f for f in quote["load"]()[name]["figures"] if f.endswith("_survived")}
        assert {f for f in figures if f"| `{f}` |" not in section} == set()


def test_other_pages_quote_the_results(quote: dict[str, Any]) -> None:
    for path in quote["OTHERS"]:
        page = path.read_text(encoding="utf-8")
        assert "<!-- figures of " in page
        assert quote["marked"](page, quote["load"]()) == page, "run python benchmarks/quote.py"


def test_each_marked_page_is_kept_equal(root: Path, quote: dict[str, Any]) -> None:
    marked = {p.name for p in (root / "docs").glob("*.md") if "\n<!-- figures of " in p.read_text()}
    assert marked == {path.name for path in quote["OTHERS"]}


def test_figures_after_a_mark_are_replaced(quote: dict[str, Any]) -> None:
    row = "| `pause_s` | 9 | |\n"
    page = f"{row}<!-- figures of b -->\nMeasured\n{row}## Next\n{row}"
    lines = quote["marked"](page, {"b": RESULT}).splitlines()
    assert lines[2].startswith("Measured at abc on 2 cores")
    assert [line for line in lines if "pause_s" in line] == [
        "| `pause_s` | 9 | |",
        "| `pause_s` | 0.25 | |",
        "| `pause_s` | 9 | |",
    ]
    with pytest.raises(ValueError, match=r"no benchmarks/results/b\.json"):
        quote["marked"](page, {})


def test_a_result_file_is_a_summary(root: Path) -> None:
    files = sorted((root / "benchmarks" / "results").glob("*.json"))
    lines = {path.name: len(path.read_text().splitlines()) for path in files}
    assert not {name: count for name, count in lines.items() if count > RESULT_LINES}


def test_a_result_names_a_commit_of_the_history(root: Path) -> None:
    """Else nobody can say what was measured."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    try:
        is_shallow = git("rev-parse", "--is-shallow-repository")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if is_shallow.returncode:
        pytest.skip("this is no clone of the repository, so it has no history")
    if is_shallow.stdout.strip() == "true":
        pytest.skip("this clone is shallow: run git fetch --unshallow to have the history")
    files = sorted((root / "benchmarks" / "results").glob("*.json"))
    commits = {path.stem: json.loads(path.read_text())["commit"] for path in files}
    unknown = {
        name: commit
        for name, commit in commits.items()
        if git("merge-base", "--is-ancestor", commit.rstrip("+"), "HEAD").returncode
    }
    assert not unknown, "commits that are not in HEAD's history: measure again"


def test_short_values_and_plain_arrays_take_one_line() -> None:
    rows = [{"seat": "0.1", "step_s": 0.25}, {"seat": "1.1", "step_s": 0.5, "exit": 143}]
    values = {"kills": results_file.columns(rows), "pairs": [[0, 1]] * 60, "many": [1] * 500}
    text = results_file.dumps(values)
    assert json.loads(text) == values
    assert values["kills"]["exit"] == [None, 143]
    lines = text.splitlines()
    assert lines[1].startswith(' "kills": {"seat": ["0.1", "1.1"], ')
    assert (lines.count("  [0, 1],"), len(lines)) == (59, 66)


def test_a_recorded_command_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["a.py", "--only", "two words"])
    path = results_file.write("a", samples={}, figures={})
    assert json.loads(path.read_text())["command"].endswith(" --only 'two words'")


@pytest.mark.parametrize("name", ["verification", "benchmarks"])
def test_the_docs_know_how_many_units_are_exhaustive(root: Path, name: str) -> None:
    units = exhaustive.units(seed=1, only="every")
    page = " ".join((root / "docs" / f"{name}.md").read_text(encoding="utf-8").split())
    assert f" {len(units)} units" in page
    if name == "verification":
        rows = {unit.row for unit in units}
        assert f" {len(units)} units in {len(rows)} rows (" in page
        assert sum("Eager" in row for row in rows) == 5  # in words there


def test_figures_and_machine_are_replaced(quote: dict[str, Any]) -> None:
    page = quote["quoted"](SECTION, {"b": RESULT})
    assert "| `pause_s` | 0.25 | <= 1 |" in page
    assert "Measured at abc on 2 cores of X, load 0.5, by `python b.py`." in page


def test_a_result_without_a_section_gets_one(quote: dict[str, Any]) -> None:
    page = quote["quoted"]("# Page\n", {"b": RESULT})
    assert "## `b`" in page
    assert "| `latency_0.25_slots` | 7 | |" in page
    assert quote["quoted"](page, {"b": RESULT}) == page


def test_a_section_without_a_result_is_refused(quote: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no benchmarks/results/b\.json"):
        quote["quoted"](SECTION, {})


def test_an_unknown_figure_is_refused(quote: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no figure `pause_s`"):
        quote["quoted"](SECTION, {"b": {**RESULT, "figures": {}}})


@pytest.mark.parametrize("text", ["0", "-3", "x", "1.5"])
def test_invalid_counts_are_rejected(text: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--kills", type=arguments.at_least(1))
    with pytest.raises(argparse.ArgumentError, match="is not an integer of at least 1"):
        parser.parse_args([f"--kills={text}"])
    assert parser.parse_args(["--kills", "1"]).kills == 1


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "x"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of at least 0"):
        arguments.amount(text)
    assert arguments.amount("0.5") == 0.5


def test_a_program_without_arguments_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["placement.py", "--bogus"])
    with pytest.raises(SystemExit) as ended:
        arguments.none("What it does.")
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "zzz"], "--only zzz matches no family; families: absences, "),
        (["--exhaustive", "--processes", "0"], "is not an integer of at least 1"),
        (["--seconds", "nan"], "is not a number of at least 0"),
    ],
)
def test_the_explorer_refuses_what_it_cannot_do(
    root: Path, arguments: list[str], words: str
) -> None:
    command = [sys.executable, "-m", "bamboo_sim.protocol", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr
