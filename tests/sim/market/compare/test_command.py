"""`bamboo sim compare` as a program: its tables, its assumptions, and the same bytes again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_core.api.spec import RedundancySpec
from bamboo_sim.market.__main__ import main
from bamboo_sim.market.compare import comparison, progress
from bamboo_sim.market.markets import market_files

TRACE = "".join(
    f"{at_ms},{kind},node{number}\n"
    for at_ms, kind, number in (
        *[(0, "add", n) for n in range(1, 7)],
        (600_000, "remove", 1),
        (900_000, "add", 7),
        (1_500_000, "remove", 2),
        (1_500_000, "remove", 5),
        (1_800_000, "add", 8),
    )
)
OPTIONS = ("--model", "alexnet", "--processes", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trace, where step times are kept, too."""
    made = tmp_path_factory.mktemp("compare")
    (made / "trace.csv").write_text(TRACE, encoding="utf-8")
    return made


def program(place: Path, *options: str, cache: str = "cache") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "bamboo_sim.market", "compare", *OPTIONS, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "XDG_CACHE_HOME": str(place / cache)},
    )


@pytest.fixture(scope="module")
def shown(place: Path) -> subprocess.CompletedProcess[str]:
    found = program(place, "trace.csv")
    assert found.returncode == 0, found.stderr
    return found


def test_a_second_process_prints_the_same_bytes(
    shown: subprocess.CompletedProcess[str], place: Path
) -> None:
    """From what the first one kept, and from nothing."""
    warm, cold = program(place, "trace.csv"), program(place, "trace.csv", cache="other")
    assert warm.stdout == cold.stdout == shown.stdout
    assert "steps of whole grids: " in cold.stderr  # and nothing where nothing is computed
    assert "steps" not in warm.stderr


def test_every_table_names_its_network(shown: subprocess.CompletedProcess[str]) -> None:
    titles = [line for line in shown.stdout.splitlines() if line.endswith("(10 Gb/s, 0.5 ms)")]
    assert len(titles) == 3
    assert titles[-1].startswith("Assumed: only prose is known")
    assert shown.stdout.splitlines()[0] == "trace.csv: 0.50 h, at most 6 nodes, 3 lost; runs: 1."
    assert "Network: 10 Gb/s, 0.5 ms." in shown.stdout.splitlines()[1]


def test_prices_have_a_date_and_all_values_a_source(
    shown: subprocess.CompletedProcess[str],
) -> None:
    _, assumed = shown.stdout.split("\nAssumed:\n")
    values = [line for line in assumed.splitlines() if " = " in line]
    assert len(values) > 15
    assert all(line.endswith("]") and "[]" not in line for line in values)
    prices = [line for line in values if line.strip().startswith("price")]
    assert all("[2023-04; " in line for line in prices)
    assert len(prices) == 2


def test_json_has_the_same_figures(place: Path, shown: subprocess.CompletedProcess[str]) -> None:
    printed = program(place, "trace.csv", "--json")
    (found,) = json.loads(printed.stdout)["comparisons"]
    assert (found["network"], found["model"], found["nodes"]) == ("10 Gb/s, 0.5 ms", "alexnet", 6)
    assert list(found["tables"]) == ["common", "own", "assumed"]
    ours = next(row for row in found["tables"]["common"] if row["name"] == found["default"])
    line = next(line for line in shown.stdout.splitlines() if line.startswith(found["default"]))
    assert line.split()[2:5] == [
        f"{ours[name]:.{digits}f}"
        for name, digits in (("samples_per_s", 2), ("hours", 2), ("dollars", 2))
    ]
    assert sum(ours["share"].values()) == pytest.approx(1)
    assert all(entry["source"] for entry in found["assumptions"]["parameters"])
    bound = next(row for row in found["tables"]["common"] if row["name"] == found["bound"])
    assert bound["rank"] is None
    assert line.split()[6:8] == [f"{value:.0f}" for value in ours["interval"]]
    assert ours["interval"][0] <= ours["samples_per_dollar"] <= ours["interval"][1]


def test_the_record_is_the_json_and_the_same_bytes_again(place: Path) -> None:
    """With several seeds of victims and zones, and in several processes."""
    options = ("trace.csv", "--seeds", "3")
    first = program(place, *options, "--record", "one.json")
    again = program(place, *options, "--record", "two.json", "--processes", "2")
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    written = (place / "one.json").read_bytes()
    assert written == (place / "two.json").read_bytes()
    printed = program(place, *options, "--json")
    assert printed.stdout.encode() == written + b"\n"
    assert "Where ours stands:" in first.stdout


def test_several_traces_are_compared_together(place: Path) -> None:
    (place / "calm.csv").write_text("".join(TRACE.splitlines(keepends=True)[:7]), encoding="utf-8")
    printed = program(place, "trace.csv", "calm.csv", "--json")
    found = json.loads(printed.stdout)
    assert [each["source"] for each in found["comparisons"]] == ["trace.csv", "calm.csv"]
    bound, mine = (
        [
            next(row for row in each["tables"]["common"] if row["name"] == each[name])
            for each in found["comparisons"]
        ]
        for name in ("bound", "default")
    )
    ours = next(each for each in found["all_fleets"] if each["name"] == "ours, None")
    assert ours["ratios"] == [
        row["samples_per_dollar"] / best["samples_per_dollar"]
        for row, best in zip(mine, bound, strict=True)
    ]
    assert ours["mean"] ** 2 == pytest.approx(ours["ratios"][0] * ours["ratios"][1])
    shown = program(place, "trace.csv", "calm.csv").stdout
    table = shown[shown.index("All fleets: ") :].splitlines()
    assert table[1].split() == ["trace.csv", "calm.csv", "mean", "rank"]
    assert table[2].split()[-1] == "1"
    assert len(table) == 2 + len(found["all_fleets"])


def test_a_price_that_is_given_is_said(place: Path) -> None:
    shown = program(place, "trace.csv", "--price", "0.5", "--seeds", "2", "--notice", "60")
    assert "price of spot = 0.5 dollars per node-hour [given]" in shown.stdout
    assert "runs: 2." in shown.stdout
    assert "Samples/s of the runs, least to most: ours, None " in shown.stdout
    assert "notice_ms = 60000 ms before a loss" in shown.stdout


HISTORY = """node,zone,capacity,start,end,ended_by,dollars_per_hour
a,east,spot,2026-11-30T08:00:00Z,,running,0.5
b,west,spot,2026-11-30T08:00:00Z,,running,1.5
c,west,spot,2026-11-30T08:00:00Z,2026-11-30T08:20:00Z,preempted,1.5
d,west,spot,2026-11-30T08:00:00Z,,running,1.5
e,west,spot,2026-11-30T08:30:00Z,,running,1.5
"""


def test_prices_of_a_history_are_those_of_its_zones(place: Path) -> None:
    (place / "history.csv").write_text(HISTORY, encoding="utf-8")
    shown = program(place, "history.csv")
    assert shown.returncode == 0, shown.stderr
    wanted = "prices = spot in east 0.5, spot in west 1.5 dollars per node-hour [history.csv]"
    assert wanted in shown.stdout


def test_a_market_is_a_fleet_too(place: Path) -> None:
    calm = market_files.named()["calm"]
    nodes = calm.parameters["nodes"]._replace(value=6)
    small = replace(calm, parameters={**calm.parameters, "nodes": nodes})
    (place / "market.json").write_text(market_files.text(small), encoding="utf-8")
    shown = program(place, "market.json", "--hours", "0.2", "--network", "free", "--stages", "3")
    assert shown.returncode == 0, shown.stderr
    assert "market.json: 0.20 h, at most 6 nodes" in shown.stdout
    assert "fixed depth: 3 stages" in shown.stdout
    assert "Network: free (100000 Gb/s, 0 ms)." in shown.stdout


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("0,add,node1\n60000,remove,node1\n", "has at most 1 nodes at once; give one with 2 to"),
        ("0,add,node1\n0,add\n", "trace.csv:2: "),
    ],
)
def test_a_source_that_makes_no_fleet_is_refused(
    content: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content, encoding="utf-8")
    assert main(["compare", *OPTIONS, str(path)]) == 1
    assert wanted in capsys.readouterr().err


def test_a_fleet_that_is_too_small_for_the_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("0,add,node1\n0,add,node2\n90000,remove,node1\n", encoding="utf-8")
    assert main(["compare", "--model", "gpt2_1.5b_p3", str(path)]) == 1
    assert "has at most 2 nodes at once, and gpt2_1.5b_p3 needs 6 stages" in capsys.readouterr().err


@pytest.mark.parametrize("stages", ["7", "9"])
def test_a_depth_that_nodes_or_layers_cannot_have_is_refused(
    stages: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *OPTIONS, "--stages", stages, str(place / "trace.csv")]) == 1
    wanted = f"--stages is {stages}, and alexnet can have 2 to 6 on 6 nodes; give one of these."
    assert wanted in capsys.readouterr().err


def test_a_name_that_is_no_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "no-such"]) == 1
    assert "'no-such' is no file, and no market by name" in capsys.readouterr().err


def test_someone_who_watches_sees_one_line_grow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = progress.Teller()
    teller("steps", 1, 2)
    teller("steps", 2, 2)
    lines = capsys.readouterr().err
    assert lines.count("\n") == 1
    assert lines.count("\r") == 2
    assert "steps: 2 of 2, 0 s" in lines


def test_the_default_mode_is_that_of_the_product() -> None:
    assert f"ours, {RedundancySpec().mode}" == comparison.DEFAULT
