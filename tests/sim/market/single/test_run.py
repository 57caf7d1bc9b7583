"""`bamboo sim run`: one system on one fleet, the same as its row among others, with all it does."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.sim.market.compare.test_comparison import small

from bamboo_sim.market.__main__ import main
from bamboo_sim.market.compare.comparison import Comparison, Table, compared
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.simulation.outcome import Activity
from bamboo_sim.market.single.names import named, written
from bamboo_sim.market.single.run import Single, single


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("step-times")


@pytest.fixture(scope="module")
def compared_all(place: Path) -> Comparison:
    return compared(small(), place, 1)


@pytest.fixture(scope="module")
def found(place: Path, compared_all: Comparison) -> Single:
    del compared_all  # whose step times are kept
    return single(small(), "ours-replica", 1, place, 1)


@pytest.mark.parametrize(
    "key",
    [
        (Table.COMMON, "ours, Auto"), (Table.COMMON, "varuna"), (Table.COMMON, "on demand"),
        (Table.OWN, "oobleck"), (Table.ASSUMED, "gemini"),
    ],
)  # fmt: skip
def test_it_is_the_run_that_a_comparison_has(
    key: tuple[Table, str], place: Path, compared_all: Comparison
) -> None:
    one = single(small(), written(key), 1, place, 1)
    row = compared_all.row(key[1], key[0])
    assert 1000 * one.outcome.samples / one.outcome.end_ms == row.samples_per_s
    assert sum(one.outcome.dollars.values()) == row.dollars
    assert one.outcome.fatal == row.fatal


def test_states_fill_the_time_and_have_the_shares(found: Single) -> None:
    states = found.states
    assert (states[0].begin_ms, states[-1].end_ms) == (0, found.outcome.end_ms)
    for state, after in pairwise(states):
        assert state.end_ms == after.begin_ms
        assert state.activity is not after.activity
    for activity in Activity:
        ms = sum(x.end_ms - x.begin_ms for x in states if x.activity is activity)
        assert ms == found.outcome.activity_ms[activity]
    assert states[-1].samples == found.outcome.samples


def test_every_pause_is_there_with_its_cause(found: Single) -> None:
    causes = Counter(pause.cause for pause in found.outcome.pauses)
    assert causes["loss"] == 2  # two nodes go at one instant
    assert causes["join"] >= 1
    paused = sum(pause.ms for pause in found.outcome.pauses)
    assert paused == found.outcome.activity_ms[Activity.PAUSED]


def test_names_of_systems_are_different_and_lead_back(compared_all: Comparison) -> None:
    keys = [row.key for row in compared_all.rows]
    assert len({written(key) for key in keys}) == len(keys)
    assert all(named(written(key), keys) == key for key in keys)
    assert written((Table.COMMON, "torchft, fixed groups")) == "torchft-fixed-groups"
    assert written((Table.OWN, "bamboo, lazy")) == "bamboo-lazy-published"


def test_an_unknown_policy_is_refused_with_all_names_before_work(tmp_path: Path) -> None:
    def told(what: str, done: int, total: int) -> None:
        raise AssertionError(f"{what} was computed")

    with pytest.raises(
        MarketError, match="--policy ours is unknown; give one of bamboo-eager, "
    ) as e:
        single(small(), "ours", 1, tmp_path, 1, told)
    assert all(name in str(e.value) for name in ("ours-none", "oobleck-published", "gemini"))


TRACE = "".join(f"0,add,node{n}\n" for n in range(1, 6)) + "600000,remove,node1\n900000,add,node6\n"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


def asked(trace: Path, *options: str) -> int:
    return main(["run", "--model", "alexnet", "--processes", "1", *options, str(trace)])


def test_the_text_has_money_pauses_and_states(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(trace, "--policy", "ours-replica") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ours, Replica on trace.csv: alexnet")
    for title in ("Dollars by zone", "States over time", "Pauses by cause:", "Every pause:"):
        assert title in shown
    assert "0.1667" in shown  # the hour of the loss
    assert "price of spot = 0.91" in shown


def test_json_adds_up_and_is_the_record(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = trace.with_name("record.json")
    assert asked(trace, "--json", "--record", str(record), "--policy", "checkpoint") == 0
    printed = capsys.readouterr().out
    assert printed == record.read_text(encoding="utf-8") + "\n"
    found: dict[str, Any] = json.loads(printed)
    assert sum(x["dollars"] for x in found["spent"]) == pytest.approx(found["dollars"])
    assert {x["capacity"] for x in found["spent"]} == {"spot"}
    assert found["pauses"][0]["at_s"] == 600.0
    assert found["states"][-1]["end_s"] == 900.0
    assert sum(found["over_time"]["nodes"][z][0] for z in found["over_time"]["nodes"]) == 5


def test_a_seed_draws_other_zones(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zones = set()
    for seed in ("1", "2", "3"):
        assert asked(trace, "--json", "--seed", seed) == 0
        found = json.loads(capsys.readouterr().out)
        zones.add(json.dumps(found["over_time"]["nodes"]))
    assert len(zones) == 3


def test_a_system_on_a_steady_fleet_has_no_pauses(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(trace, "--policy", "on-demand") == 0
    shown = capsys.readouterr().out
    assert shown.count("\n  none\n") == 2
    assert "on demand  on-demand" in shown
