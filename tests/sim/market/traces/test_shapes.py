"""One way in to all shapes: which shape a file has, and the fleet that it gives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.sim.market.fleets import AllServe

from bamboo_sim.market.simulation.engine import Terms, run
from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces import history, shapes
from bamboo_sim.market.traces.records import TraceError
from bamboo_sim.market.traces.trace import Trace

ZONES = ("a", "b", "c")
FILES = {
    "events as CSV": "0,add,x\n5000,remove,x\n5000,add,y\n",
    "events as JSON lines": '[0, "add", {"nodes": ["x", "y"]}]\n[9000, "DONE", {}]\n',
    "count series": "2021-12-11, 11:11:30, 2\n2021-12-11, 11:11:20, 3\n",
    "lifetimes": "zone,machine_type,start_utc,end_utc,ended_by\n"
    "z,m,2019-02-18T16:58:00Z,2019-02-18T17:58:00Z,preempted\n"
    "z,m,2019-02-18T16:59:00Z,2019-02-18T17:59:00Z,stopped_by_user\n",
    history.SHAPE: "node,zone,capacity,start,end,ended_by,dollars_per_hour\n"
    "x,z,spot,2026-11-30T08:00:00Z,2026-11-30T09:00:00Z,preempted,0.9\n",
}


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_bytes(text.encode())
    return path


def read(folder: Path, text: str) -> Trace:
    return shapes.read(written(folder, text))


def test_every_shape_has_a_file_here() -> None:
    assert [shape.name for shape in shapes.TRACES] == list(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("before", ["", "\n  \n", "\ufeff"], ids=["plain", "blank", "mark"])
def test_the_content_says_the_shape(name: str, before: str, tmp_path: Path) -> None:
    if before.strip(" \n") != before and name in ("lifetimes", history.SHAPE):
        before = ""  # a header stands first
    found = read(tmp_path, before + FILES[name])
    assert found.shape == name
    assert found == read(tmp_path, (before + FILES[name]).replace("\n", "\r\n"))


@pytest.mark.parametrize("shape", shapes.TRACES, ids=lambda shape: shape.name)
def test_the_example_of_a_shape_begins_it_alone(shape: shapes.Shape[Trace]) -> None:
    first = next(found for found in shapes.TRACES if found.begins(shape.example))
    assert first is shape


@pytest.mark.parametrize("text", ["# Notes\n", "a,b,c\n1,2,3\n", "{}\n", "node;zone;start\n"])
def test_an_unknown_shape_is_refused_with_those_that_are_known(text: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="begins none of the shapes that are known") as error:
        read(tmp_path, text)
    assert all(f"{shape.name}: {shape.example}" in str(error.value) for shape in shapes.TRACES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace:1: it is empty; write the file as one of"),
        ("\n \n", "trace:1: it is empty"),
        ("0,ad,x\n", "trace:1: '0,ad,x': a line is `MILLISECONDS,add|remove,NODE`"),
        ("zero,add,x\n", "trace:1: 'zero,add,x': a line is"),
        ('[0, "gone", {}]\n', "trace:1: "),
        ('[0, "DONE", {}]\n', "trace:1: no line adds a node; add one."),
        ("2021-12-11, noon, 5\n", "trace:1: '2021-12-11, noon, 5': a line is `YYYY"),
        ("zone,start_utc,end_utc\n", "trace:1: the header has no ended_by, machine_type; add"),
        ("zone,machine_type,start_utc,end_utc,ended_by\n", "trace:2: no machine follows"),
        (FILES["lifetimes"] + "z,m\n", "trace:4: it has not the header's 5 cells; mend it."),
        (FILES["lifetimes"] + "z,m,1,2,3,4\n", "trace:4: it has not the header's 5 cells"),
        ("node,zone,start\n", "trace:1: the header has no capacity, end, ended_by, dollars"),
    ],
)
def test_a_malformed_file_is_refused_by_the_reader_of_its_shape(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"0,add,\xff\xfe\n")
    with pytest.raises(TraceError, match="no text in UTF-8; save it as that"):
        shapes.read(path)


def test_a_fleet_begins_at_0_and_done_says_how_long_it_was_watched(tmp_path: Path) -> None:
    found = read(tmp_path, '[5000, "add", {"nodes": ["x"]}]\n[9000, "DONE", {}]\n')
    assert (found.begin_ms, found.end_ms) == (5000, 9000)
    events = list(found.events(1, boot_ms=100, zones=ZONES, within_ms=0))
    assert [(event.at_ms, event.kind) for event in events] == [(0, Kind.ADD), (100, Kind.READY)]


def test_a_machine_that_its_user_stopped_goes_and_is_no_loss(tmp_path: Path) -> None:
    found = read(tmp_path, FILES["lifetimes"])
    events = list(found.events(1, boot_ms=0, zones=ZONES, within_ms=0))
    assert sum(event.kind is Kind.REMOVE for event in events) == 2
    assert found.bursts(0) == [(found.begin_ms + 3_600_000, 1)]
    assert {event.node.zone for event in events} == {"z"}


def test_the_seed_draws_who_goes_in_a_count_series(tmp_path: Path) -> None:
    lines = [f"2021-12-11, 11:{i:02}:00, {20 - i}" for i in range(15)]
    found = read(tmp_path, "\n".join(lines))

    def fleet(seed: int) -> list[object]:
        return list(found.events(seed, boot_ms=0, zones=("a",), within_ms=0))

    assert fleet(1) == fleet(1) != fleet(2)
    assert found.bursts(600_000) == [(i * 60_000, 1) for i in range(1, 15)]


def test_every_recorded_file_is_a_fleet_that_runs(recorded: Path) -> None:
    files = [path for path in recorded.rglob("*.*") if path.suffix in (".csv", ".txt")]
    prices = {(zone, "spot"): 1.0 for zone in ZONES}
    shapes_seen = set()
    for path in files:
        found = shapes.read(path)
        shapes_seen.add(found.shape)
        events = list(found.events(1, boot_ms=45_000, zones=ZONES, within_ms=0))
        assert all(before < after for before, after in pairwise(events))
        given = {(zone, "spot"): 1.0 for zone in found.zones}
        terms = Terms(prices=prices | given, best_per_node=10, until_ms=events[-1].at_ms + 1)
        removals = sum(event.kind is Kind.REMOVE for event in found.seen(1))
        assert run(AllServe(), events, terms).removals == removals > 0
    assert len(files) == 11
    assert shapes_seen == FILES.keys() - {history.SHAPE}
