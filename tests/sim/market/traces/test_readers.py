"""Recorded fleets: what readers take and refuse, and what the recorded ones are known to say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sim.market.fleets import AllServe, terms

from bamboo_sim.market.simulation.engine import run
from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces import count_files, event_files, lifetimes
from bamboo_sim.market.traces.bursts import Bursts, bursts, chains, drops
from bamboo_sim.market.traces.records import Seen, TraceError, fleet

HEADER = "vm,zone,machine_type,start_utc,end_utc,lifetime_s,ended_by,load\n"
VM = "v,z,m,2019-02-18T16:58:00.088Z,2019-02-18T18:15:05.966Z,1,{},idle\n"


def same(found: Bursts, histogram: dict[str, int]) -> bool:
    return {str(size): times for size, times in found.histogram.items()} == histogram


@pytest.mark.parametrize("name", ["bamboo/p3-trace.csv", "bamboo/g4dn-trace.csv"])
def test_event_files_have_the_counts_of_the_summary(
    name: str, recorded: Path, summary: dict[str, Any]
) -> None:
    known, seen = summary[name], event_files.read_csv(recorded / name)
    kinds = [event.kind for event in seen]
    assert (kinds.count(Kind.ADD), kinds.count(Kind.REMOVE)) == (known["adds"], known["removes"])
    assert len({event.name for event in seen}) == known["distinct_nodes"]
    assert kinds.count(Kind.ADD) - kinds.count(Kind.REMOVE) == known["end_fleet"]
    for within_s in (0, 60, 120, 300):
        found, expected = bursts(seen, within_s * 1000), known[f"bursts_w{within_s}"]
        assert len(found.sizes) == expected["bursts"]
        assert same(found, expected["hist"])
        assert round(found.share_together, 2) == expected["share_nodes_in_bursts_ge2"]


@pytest.mark.parametrize("name", ["a100x1-east1b.txt", "v100x1-east1c.txt"])
def test_count_files_have_the_counts_of_the_summary(
    name: str, recorded: Path, summary: dict[str, Any]
) -> None:
    known = summary[f"bamboo/gcloud/{name}"]
    counts = count_files.read(recorded / "bamboo" / "gcloud" / name)
    assert (len(counts), max(count.nodes for count in counts)) == (
        known["samples"],
        known["max_fleet"],
    )
    found = drops(counts)
    assert (len(found.sizes), sum(found.sizes)) == (known["drop_ticks"], known["nodes_lost"])
    assert same(found, known["drop_size"]["hist"])
    seen = count_files.victims(counts, seed=1)
    lost = [event.name for event in seen if event.kind is Kind.REMOVE]
    assert len(lost) == known["nodes_lost"]
    assert seen == count_files.victims(counts, seed=1) != count_files.victims(counts, seed=2)


def test_lifetimes_have_the_counts_of_the_summary(recorded: Path, summary: dict[str, Any]) -> None:
    known = summary["goog-preemption/lifetimes.csv"]
    machines = lifetimes.read(recorded / "goog-preemption" / "lifetimes.csv")
    ends = [machine.end_ms for machine in machines if machine.is_preempted]
    assert (len(machines), len(ends)) == (known["rows"], known["preempted"])
    found, expected = chains(ends, 30_000), known["bursts_30s"]
    together = [size for size in found.sizes if size > 1]
    assert len(found.sizes) == expected["bursts"]
    assert (len(together), max(together)) == (expected["multi"], expected["max"])
    assert sum(together) == expected["nodes_in_multi"]


def test_every_recorded_event_file_is_a_fleet_that_runs(recorded: Path) -> None:
    files = [*recorded.glob("spotserve/*.txt"), *recorded.glob("bamboo/*.csv")]
    assert len(files) == 8
    for path in files:
        read = event_files.read_csv if path.suffix == ".csv" else event_files.read_json_lines
        seen = read(path)
        events = fleet(seen, boot_ms=45_000, zone="a", capacity="spot")
        found = run(AllServe(), events, terms(until_ms=seen[-1].at_ms + 100_000))
        assert found.removals == sum(event.kind is Kind.REMOVE for event in seen)


def test_a_fleet_of_a_trace_is_in_order_and_who_goes_early_is_never_ready() -> None:
    seen = [Seen(0, Kind.ADD, "x"), Seen(10, Kind.REMOVE, "x"), Seen(10, Kind.ADD, "y")]
    events = list(fleet(seen, boot_ms=10, zone="a", capacity="spot"))
    assert events == sorted(events)
    assert [(event.at_ms, event.kind.name, event.node.number) for event in events] == [
        *((0, "ADD", 1), (10, "ADD", 2), (10, "REMOVE", 1), (20, "READY", 2))
    ]


def test_a_burst_is_a_chain_of_losses_with_gaps_of_at_most_w() -> None:
    assert chains([0, 60, 120, 181], 60).sizes == (3, 1)
    assert chains([120, 0], 0).sizes == (1, 1)
    assert chains([], 60).sizes == ()
    assert chains([], 60).share_together == 0


CSV, LINES = event_files.read_csv, event_files.read_json_lines


@pytest.mark.parametrize(
    ("read", "text", "line", "said"),
    [
        (CSV, "0,add,x\n1,gone,x\n", 2, "MILLISECONDS,add|remove,NODE"),
        (CSV, "0,add\n", 1, "MILLISECONDS,add|remove,NODE"),
        (CSV, "-1,add,x\n", 1, "MILLISECONDS,add|remove,NODE"),
        (CSV, "\n0,add,x\n1,add,x\n", 3, "x was added before; use new names"),
        (CSV, "0,remove,x\n", 1, "x goes, but is not there; add it before"),
        (CSV, "5,add,x\n4,add,y\n", 2, "4 ms comes after 5; sort by time"),
        (LINES, '[0, "add", {"nodes": ["x"]}]\n[1, "DONE"]\n', 2, 'kind "DONE"'),
        (LINES, "{}\n", 1, 'kind "DONE"'),
        (LINES, '[0.5, "add", {"nodes": ["x"]}]\n', 1, 'kind "DONE"'),
        (LINES, '[0, "add", {"nodes": [1]}]\n', 1, 'kind "DONE"'),
        (LINES, '[0, ["add"], {"nodes": ["x"]}]\n', 1, 'kind "DONE"'),
        (count_files.read, "2021-12-11, 11:11:30, 5\n2021-12-11, 11, x\n", 2, "HH:MM:SS, NODES"),
        (count_files.read, "2021-12-11, 11:11:30, -5\n", 1, "HH:MM:SS, NODES"),
        (count_files.read, "", 1, "the file is empty"),
        (lifetimes.read, "a,b\n", 1, "the header has no end_utc, ended_by"),
        (lifetimes.read, HEADER + VM.format("eaten"), 2, "ended_by is preempted or"),
        (lifetimes.read, HEADER + VM.replace("18T16", "19T16").format("preempted"), 2, "swap"),
    ],
)
def test_a_malformed_line_is_named(
    read: Callable[[Path], object], text: str, line: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert said in str(error.value)
