"""`bamboo sim fit`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.sim.market.markets.draws import drawn, market

from bamboo_sim.market.__main__ import main
from bamboo_sim.market.markets.opening import opened
from bamboo_sim.market.simulation.events import Kind

HISTORY = """node,zone,capacity,start,end,ended_by,dollars_per_hour
a1,a,spot,2026-11-30T08:00:00Z,2026-11-30T10:00:00Z,preempted,0.9
a2,a,spot,2026-11-30T08:00:00Z,2026-11-30T10:00:20Z,preempted,0.9
a3,a,spot,2026-11-30T10:06:00Z,,running,1.1
b1,b,spot,2026-11-30T08:00:00Z,2026-11-30T12:00:00Z,stopped,0.8
"""
COUNTS = "2026-11-30, 08:00:00, 4\n2026-11-30, 09:00:00, 1\n2026-11-30, 10:00:00, 4\n"
NAMES = {Kind.ADD: "add", Kind.REMOVE: "remove"}


def written(folder: Path, text: str) -> str:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return str(path)


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The rows of the table by their names."""
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split("  ", 1) for line in lines if "  " in line)


def test_the_table_of_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", written(tmp_path, HISTORY)]) == 0
    rows = {name: text.strip() for name, text in shown(capsys).items()}
    assert rows["losses"] == "2 nodes; bursts: 1"
    assert rows["hazard"].startswith("0.202 (0.000 to ")
    assert rows["hazard"].endswith(" losses per node-hour")
    assert rows["gaps between bursts"] == "none: fewer than two bursts"
    assert rows["bursts by their size"] == "2: 1"
    assert rows["share of losses in bulks"].startswith("100.0%")
    assert rows["time to refill"] == (
        "median 6.0, 90 % within 6.0, most 6.0 minutes; not replaced: 1"
    )
    assert rows["zones"] == "a, b"
    assert rows["spot in a"] == "0.9643 dollars per hour, mean over time, range 0.9 to 1.1"


def test_within_says_what_a_burst_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--within", "19.999", "--json", written(tmp_path, HISTORY)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bursts"], found["burst_sizes"], found["within_s"]) == (2, {"1": 2}, 19.999)
    assert found["gap_minutes"]["p50"] == pytest.approx(1 / 3)
    assert found["dollars_per_hour"][1] == {
        "zone": "b",
        "capacity": "spot",
        "mean": 0.8,
        "least": 0.8,
        "most": 0.8,
    }


def test_a_count_series_has_no_refills_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, target = written(tmp_path, COUNTS), tmp_path / "market.json"
    assert main(["fit", trace]) == 0
    assert shown(capsys)["time to refill"].strip() == "none: a count series has no names"
    assert main(["fit", "--json", trace]) == 0
    assert json.loads(capsys.readouterr().out)["refill_minutes"] is None
    assert main(["fit", trace, "--write", str(target)]) == 1
    assert "no time to refill is known; give --refill-minutes." in capsys.readouterr().err
    assert not target.exists()
    assert main(["fit", trace, "--write", str(target), "--refill-minutes", "8"]) == 0
    assert opened(str(target))["refill_minutes"] == 8


def test_a_market_is_drawn_measured_written_and_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, target = market(), tmp_path / "market.json"
    events = [event for event in drawn(made, 1, hours=100) if event.kind in NAMES]
    lines = [f"{event.at_ms},{NAMES[event.kind]},n{event.node.number}" for event in events]
    trace = written(tmp_path, "\n".join(lines))
    assert main(["fit", trace, "--within", "0", "--json", "--write", str(target)]) == 0
    found = json.loads(capsys.readouterr().out)
    again = opened(str(target))
    assert again["nodes"] == made["nodes"]
    for parameter, tolerance in (("hazard", 0.15), ("bulk_chance", 0.15), ("refill_minutes", 0.15)):
        assert again[parameter] == pytest.approx(made[parameter], rel=tolerance)
    interval = found["losses_per_node_hour"]
    source = again.parameters["hazard"].source
    assert (
        source == f"fitted to trace; 95% interval {interval['low']:.4g} to {interval['high']:.4g}"
    )
    assert next(iter(again.events(1))).kind is Kind.ADD


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-file"], "bamboo: no-such-file: No such file or directory."),
        (["TRACE", "--refill-minutes", "8"], "bamboo: --refill-minutes is for the market that is"),
        (["TRACE", "--write", "no/such/folder"], "bamboo: no/such/folder: No such file or direc"),
        (["TRACE", "--write", "other", "--refill-minutes", "0"], "refill_minutes is 0.0; give a"),
        (["TRACE", "--write", "TRACE"], "bamboo: --write names the trace itself; name another"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written(tmp_path, HISTORY)
    assert main(["fit", *(trace if word == "TRACE" else word for word in arguments)]) == 1
    assert said in capsys.readouterr().err
    assert Path(trace).read_text(encoding="utf-8") == HISTORY


def test_a_malformed_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, HISTORY.replace("0.8", "cheap"))
    assert main(["fit", trace]) == 1
    assert f"{trace}:5: dollars_per_hour is 'cheap'; write a number" in capsys.readouterr().err
