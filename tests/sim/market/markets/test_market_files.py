"""Files of markets: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sim.market.markets.draws import VALUES, market

from bamboo_sim.market.markets import market_files
from bamboo_sim.market.markets.opening import Replay, opened
from bamboo_sim.market.markets.parameters import UNITS, MarketError
from bamboo_sim.market.traces.records import TraceError


@given(st.floats(0.01, 100), st.integers(1, 100), st.sampled_from([{"2": 1}, {"3": 2, "7": 1}]))
def test_a_market_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, hazard: float, nodes: int, sizes: Any
) -> None:
    made = market(hazard=hazard, nodes=nodes, bulk_sizes=sizes)
    folder = tmp_path_factory.getbasetemp()
    assert opened(str(written(folder, market_files.text(made)))) == made
    content = json.loads(market_files.text(made))
    assert content["format"] == market_files.FORMAT
    assert content["parameters"]["hazard"] == {
        "value": hazard,
        "unit": UNITS["hazard"],
        "source": "a test",
    }


def written(folder: Path, text: str) -> Path:
    path = folder / "market.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_file_draws_the_same_fleets(tmp_path: Path) -> None:
    made = market()
    read = opened(str(written(tmp_path, market_files.text(made))))
    assert read == made
    assert list(islice(read.events(3), 200)) == list(islice(made.events(3), 200))


def test_named_markets_have_a_source_for_each_number() -> None:
    named = market_files.named()
    assert sorted(named) == ["bamboo-p3", "brutal", "calm", "gcp-bulk"]
    for name, made in named.items():
        assert opened(name) == made
        assert all(parameter.source for parameter in made.parameters.values())
        assert {key: parameter.unit for key, parameter in made.parameters.items()} == UNITS
        assert sum(made.sizes.values()) == pytest.approx(1)
    hazards = [named[name]["hazard"] for name in ("calm", "gcp-bulk", "bamboo-p3", "brutal")]
    assert hazards == sorted(hazards)
    brutal = named["brutal"].sizes
    assert sum(size * chance for size, chance in brutal.items()) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("nodes", 0, "give an integer of at least 1"),
        ("nodes", 2.5, "give an integer of at least 1"),
        ("nodes", True, "give an integer of at least 1"),
        ("zones", [], "give a list of different names"),
        ("zones", ["a", "a"], "give a list of different names"),
        ("zones", "abc", "give a list of different names"),
        ("hazard", 0, "nodes that are never lost are on demand"),
        ("hazard", float("nan"), "give a number above 0 and at most 3600"),
        ("hazard", "0.5", "give a number above 0 and at most 3600"),
        ("bulk_chance", 1.1, "give a number from 0 to 1"),
        ("bulk_sizes", {"1": 1}, "give weights above 0 by sizes of at least 2"),
        ("bulk_sizes", {"2": 0}, "give weights above 0 by sizes of at least 2"),
        ("bulk_sizes", {"many": 1}, "give weights above 0 by sizes of at least 2"),
        ("bulk_sizes", {}, "give sizes, or bulk_chance 0"),
        ("gap_cv", 0, "give a number from 0.1 to 10"),
        ("refill_minutes", 0, "give a number above 0"),
        ("refill_minutes", float("inf"), "give a number above 0"),
        ("boot_seconds", -1, "give a number of at least 0"),
        ("bulks", 1, "is unknown; use only nodes, zones"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(MarketError) as error:
        market(**{name: value})
    assert f"parameters.{name} is " in str(error.value)
    assert remedy in str(error.value)


def test_no_bulks_need_no_sizes() -> None:
    assert market(bulk_chance=0, bulk_sizes={}).sizes == {1: 1}


GOOD = {name: {"value": value, "unit": "", "source": ""} for name, value in VALUES.items()}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"format": "x"}, "market.json: format is 'x'; write 'bamboo market'."),
        ({"format": market_files.FORMAT}, "market.json: name is None; write a name."),
        ({"parameters": []}, "market.json: parameters is []; write an object."),
        ({"parameters": {"nodes": 3}}, "parameters.nodes is 3; write an object with value, unit"),
        ({"parameters": {**GOOD, "nodes": {"value": 1}}}, "parameters.nodes is {'value': 1}; wri"),
        (
            {"parameters": {name: GOOD[name] for name in GOOD if name != "hazard"}},
            "market.json: parameters has no hazard (losses per node-hour); add it.",
        ),
    ],
)
def test_a_wrong_file_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    whole = content if "format" in content else {"format": "bamboo market", "name": "m"} | content
    with pytest.raises(MarketError) as error:
        opened(str(written(tmp_path, json.dumps(whole))))
    assert said in str(error.value)


def test_what_is_no_json_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"market\.json:2: .*; mend the JSON"):
        opened(str(written(tmp_path, '{"format": 1,\n]')))


def test_a_recorded_fleet_is_a_source_with_its_zones_dealt(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("7,add,x\n7,add,y\n9,remove,x\n9,remove,y\n", encoding="utf-8")
    source = opened(str(path))
    assert isinstance(source, Replay)
    assert source.prices == {}
    assert list(source.events(1)) == list(source.events(1))
    zones = {event.node.zone for seed in range(20) for event in source.events(seed)}
    assert zones == {"zone-a", "zone-b", "zone-c"}
    assert all(len({event.node.zone for event in source.events(seed)}) == 1 for seed in range(20))


def test_neither_a_name_nor_a_file_is_refused_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(MarketError, match="names are bamboo-p3, brutal, calm, gcp-bulk"):
        opened("stormy")
    path = tmp_path / "notes"
    path.write_text("# Notes\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"market: \{.format"):
        opened(str(path))
