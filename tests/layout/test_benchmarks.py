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

from bamboo_sim.programs import arguments, results_file
from bamboo_sim.protocol.exploration import exhaustive

RESULT_LINES = 300
RESULT = {
    "commit": "abc",
    "command": "python b.py",
    "machine": {"cores": 2, "cpu": "X", "load_1m": 0.5},
    "figures": {"pause_s": 0.25, "latency_0.25_slots": 7},
}
HEAD = f"| what | goal | measured | met | figure | result file | command |\n{'|---' * 7}|\n"
FILE = "[b](../benchmarks/results/b.json)"


@pytest.fixture(scope="module")
def quote(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "benchmarks" / "quote.py"))


def test_the_page_quotes_the_results(quote: dict[str, Any]) -> None:
    page = quote["PAGE"].read_text(encoding="utf-8")
    assert quote["headlines"](page, quote["load"]()) == page, "run python benchmarks/quote.py"


def test_the_page_is_one_table_of_seven_columns_in_which_each_row_has_a_figure(
    quote: dict[str, Any],
) -> None:
    page = quote["PAGE"].read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) > 30
    assert [line for line in page.splitlines() if line.startswith("|-")] == ["|---" * 7 + "|"]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {len(row) for row in cells} == {7}
    assert all(what and value and figure for what, _, value, _, figure, _, _ in cells)
    assert any("| **no** |" in line for line in rows)


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


def test_the_docs_know_how_many_units_are_exhaustive(root: Path) -> None:
    units = exhaustive.units(seed=1, only="every")
    page = " ".join((root / "docs/verification.md").read_text(encoding="utf-8").split())
    rows = {unit.row for unit in units}
    assert f" {len(units)} units in {len(rows)} rows (" in page
    assert sum("Eager" in row for row in rows) == 5  # in words there


def test_a_row_gets_its_figure_whether_it_meets_the_goal_and_its_command(
    quote: dict[str, Any],
) -> None:
    rows = [
        f"| pause, s | <= 0.2 | 9 | yes | `pause_s` | {FILE} | |",
        f"| slots | >= 7 | 9 | | `latency_0.25_slots` | {FILE} | `old` |",
        f"| slots | | 9 | | `latency_0.25_slots` | {FILE} | |",
    ]
    page = HEAD + "\n".join(rows) + "\n\ntext\n"
    assert quote["headlines"](page, {"b": RESULT}).splitlines()[2:] == [
        f"| pause, s | <= 0.2 | 0.25 | **no** | `pause_s` | {FILE} | `python b.py` |",
        f"| slots | >= 7 | 7 | yes | `latency_0.25_slots` | {FILE} | |",
        f"| slots | | 7 | | `latency_0.25_slots` | {FILE} | |",
        "",
        "text",
    ]


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        ("", None),
        ("<= 0.25", True),
        ("< 0.25", False),
        (">= 0.35 (the paper)", False),
        ("0", False),
        ("0.2 to 0.3", True),
        ("0.3 to 0.4", False),
        ("<= 1,000", True),
        ("= `step_s`", False),
        ("<= 0.5 x `step_s`", True),
        ("<= 0.4 x `step_s`", False),
    ],
)
def test_goals_are_read(quote: dict[str, Any], goal: str, met: bool | None) -> None:
    assert quote["is_met"](goal, "pause_s", {"pause_s": 0.25, "step_s": 0.5}) is met


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            "| x | | 9 | | `pause_s` | [c](../benchmarks/results/c.json) | |",
            r"no benchmarks/results/c",
        ),
        (f"| x | | 9 | | `other_s` | {FILE} | |", "no figure `other_s`"),
        (f"| x | soon | 9 | | `pause_s` | {FILE} | |", "the goal soon cannot be read"),
        ("| x | | 0.25 | | pause | no file | |", "names no figure of a result file"),
    ],
)
def test_a_row_without_a_figure_is_refused(quote: dict[str, Any], row: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        quote["headlines"](HEAD + row + "\n", {"b": RESULT})


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
