"""`bamboo sim`: what it asks the simulator for, what that prints, and what it says without it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
from click.testing import CliRunner

from bamboo_cli.commands.market.sim import compare
from bamboo_cli.errors import CommandError
from bamboo_cli.main import cli

BAMBOO = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "paper-table"]


def test_the_table_says_what_is_assumed_and_what_is_fitted() -> None:
    shown = subprocess.run(
        [*BAMBOO, "--seeds", "1", "--processes", "1"], capture_output=True, text=True, check=True
    )
    assert [line.split("|")[0].strip() for line in shown.stdout.splitlines() if "|" in line] == [
        *("chance", "0.01", "0.05", "0.10", "0.25", "0.50")
    ]
    _, fitted = shown.stdout.split("Fitted to this slide")
    assert [line.split()[0] for line in fitted.splitlines()[1:]] == ["step_ms", "planned_ms"]
    assert shown.stderr == ""  # no progress where nobody sees it


def test_json_has_rows_and_assumptions() -> None:
    shown = subprocess.run(
        [*BAMBOO, "--seeds", "1", "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(shown.stdout)
    assert [row["loss_chance"] for row in found["rows"]] == [0.01, 0.05, 0.1, 0.25, 0.5]
    assert all(entry["source"] for entry in found["assumptions"])


def test_the_exit_code_is_that_of_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def program(command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", program)
    found = CliRunner().invoke(cli, ["sim", "paper-table", "--seeds", "3", "--processes", "2"])
    assert found.exit_code == 7
    assert asked[0][1:] == [
        *("-m", "bamboo_sim.market", "paper-table", "--seeds", "3", "--processes", "2")
    ]


FIT = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "fit"]
HISTORY = """node,zone,capacity,start,end,ended_by,dollars_per_hour
-a,a,spot,2026-11-30T08:00:00Z,2026-11-30T10:00:00Z,preempted,0.9
-b,a,spot,2026-11-30T08:00:00Z,2026-11-30T10:00:40Z,preempted,0.9
-c,a,spot,2026-11-30T10:06:00Z,,running,1.1
"""


def test_a_fit_is_printed_and_its_market_written(tmp_path: Path) -> None:
    (tmp_path / "-history.csv").write_text(HISTORY, encoding="utf-8")
    command = [*FIT, "--json", "--within", "60", "--write", "market.json", "--", "-history.csv"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(shown.stdout)["burst_sizes"] == {"2": 1}
    written = json.loads((tmp_path / "market.json").read_text(encoding="utf-8"))
    assert written["parameters"]["bulk_sizes"]["value"] == {"2": 1}


def test_a_malformed_trace_is_refused_by_its_line(tmp_path: Path) -> None:
    trace = tmp_path / "history.csv"
    trace.write_text(HISTORY.replace("1.1", "cheap"), encoding="utf-8")
    shown = subprocess.run([*FIT, trace], capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith(f"bamboo: {trace}:4: dollars_per_hour is 'cheap'; write a num")


@pytest.mark.parametrize(
    "bad", [("--within", "-1"), ("--refill-minutes", "0"), ("--within", "long"), ("--seed", "1")]
)
def test_bad_options_of_a_fit_are_refused(bad: tuple[str, str], tmp_path: Path) -> None:
    trace = tmp_path / "history.csv"
    trace.write_text(HISTORY, encoding="utf-8")
    found = CliRunner().invoke(cli, ["sim", "fit", *bad, str(trace)])
    assert found.exit_code == 2
    assert bad[0] in found.output


def test_a_trace_that_is_not_there_is_refused() -> None:
    found = CliRunner().invoke(cli, ["sim", "fit", "no-such-file"])
    assert found.exit_code == 2
    assert "'no-such-file' does not exist" in found.output


def test_a_comparison_is_asked_for_with_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def program(command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", program)
    given = ["sim", "compare", "--network", "free", "--seeds", "2", "--json", "--", "-trace.csv"]
    assert CliRunner().invoke(cli, given).exit_code == 3
    assert CliRunner().invoke(cli, ["sim", "compare", "calm"]).exit_code == 3
    assert asked[0][1:4] == ["-m", "bamboo_sim.market", "compare"]
    assert asked[0][4:] == ["--network=free", "--seeds=2", "--json", "--", "-trace.csv"]
    assert asked[1][4:] == ["--", "calm"]


def test_each_option_of_a_comparison_is_known_to_the_simulator(tmp_path: Path) -> None:
    """A trace without nodes is refused after all options were read."""
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,node1\n60000,remove,node1\n", encoding="utf-8")
    options = {
        "model": "alexnet", "network": "25", "stages": "2", "hours": "1", "seeds": "1",
        "notice": "30", "price": "0.5", "processes": "1", "on-demand-price": "2",
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "compare", "--json"]
    command += [f"--{name}={value}" for name, value in options.items()]
    others = {"is_json", "sources", "html", "markdown", "profile", "global_batch"}
    known = {str(parameter.name) for parameter in compare.params} - others
    known = {name.replace("_", "-") for name in known}
    assert set(options) == known
    shown = subprocess.run([*command, str(trace)], capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert "has at most 1 nodes at once" in shown.stderr


TRACE = "".join(f"0,add,node{n}\n" for n in range(1, 5)) + "600000,remove,node1\n"


def test_pages_of_a_comparison_are_written_beside_the_text(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(TRACE, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "compare", "--model=alexnet"]
    command += ["--html=page.html", "--markdown=page.md", "one.csv", "two.csv"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    stands = shown.stdout.split("Where ours stands:\n  ")[1].splitlines()[0]
    assert stands in text
    assert stands in page
    assert "On all fleets" in page
    assert "On all fleets" in text
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert f"The page is {tmp_path / 'page.html'}" in shown.stderr


def test_the_page_of_a_run_has_its_pauses(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "run", "--model=alexnet"]
    command += ["--policy=ours-replica", "--seed=2", "--html=run.html", "trace.csv"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "<h1>ours, Replica on trace.csv</h1>" in page
    assert page.count("<svg") == 5
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)


def test_the_page_of_an_advice_has_its_plot(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    command = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "advise", "--model=alexnet"]
    command += ["--samples=1e6", "--seeds=2", "--deadline=24", "--budget=500", "--sure=0.5"]
    command += ["--html=advice.html", "--trace=trace.csv"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "advice.html").read_text(encoding="utf-8")
    assert f"<b>{shown.stdout.splitlines()[0]}</b>" in page
    assert page.count("<svg") == 1
    assert page.count("<td>recommended</td>") == 1
    assert page.count("<circle") == page.count("<tr><td>")
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)


def test_options_of_an_own_model_go_to_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def program(command: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", program)
    profile = tmp_path / "profile.json"
    profile.write_text("{}", encoding="utf-8")
    own = [f"--profile={profile}", "--global-batch=64"]
    for command in (["compare", "calm"], ["run", "calm"], ["advise", "--trace=calm"]):
        assert CliRunner().invoke(cli, ["sim", *command, *own]).exit_code == 0
    assert all(option in command for command in asked for option in own)


def test_an_advice_needs_a_trace() -> None:
    found = CliRunner().invoke(cli, ["sim", "advise", "--deadline", "3"])
    assert found.exit_code == 2
    assert "Missing option '--trace'" in found.output


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_a_page_that_cannot_be_written_is_refused_before_work(option: str, tmp_path: Path) -> None:
    place = tmp_path / "no-folder" / "page"
    found = CliRunner().invoke(cli, ["sim", "compare", f"{option}={place}", "calm"])
    assert isinstance(found.exception, CommandError)
    assert f"{option} {place}: the folder" in str(found.exception)


def test_no_page_is_written_where_the_simulator_fails(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("0,add\n", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "bamboo_cli", "sim", "compare", "--html=page.html"]
    shown = subprocess.run(
        [*command, "trace.csv"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert shown.returncode == 1
    assert "trace.csv:1: " in shown.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "bad",
    [
        ("--network", "40"), ("--hours", "0"), ("--seeds", "0"), ("--notice", "-1"),
        ("--price", "0"), ("--stages", "1"), ("--processes", "0"),
    ],
)  # fmt: skip
def test_bad_options_of_a_comparison_are_refused(bad: tuple[str, str]) -> None:
    found = CliRunner().invoke(cli, ["sim", "compare", *bad, "calm"])
    assert found.exit_code == 2
    assert bad[0] in found.output


def test_a_model_that_is_not_known_is_refused_with_those_that_are() -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "bamboo_cli",
        "sim",
        "compare",
        "--model",
        "gpt5",
        "calm",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert "'bert_large'" in shown.stderr


def test_without_the_simulator_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo_cli.commands.market.simulator.find_spec", lambda name: None)
    found = CliRunner().invoke(cli, ["sim", "paper-table"])
    assert isinstance(found.exception, CommandError)
    assert "install bamboo-train[cli] with pip" in str(found.exception)
    assert util.find_spec("bamboo_sim") is not None


@pytest.mark.parametrize("bad", [("--seeds", "0"), ("--processes", "0"), ("--seeds", "many")])
def test_bad_numbers_are_refused(bad: tuple[str, str]) -> None:
    found = CliRunner().invoke(cli, ["sim", "paper-table", *bad])
    assert found.exit_code == 2
    assert bad[0] in found.output
