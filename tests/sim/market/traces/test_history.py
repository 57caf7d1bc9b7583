"""A user's own history: what it gives, and what is said about a cell that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_sim.market.simulation.events import Kind
from bamboo_sim.market.traces import history, shapes
from bamboo_sim.market.traces.records import Price, TraceError
from bamboo_sim.market.traces.trace import Trace

HEADER = ",".join(history.COLUMNS)
GOOD = "x,a,spot,2026-11-30T08:00:00Z,2026-11-30T09:00:00Z,preempted,0.9"
HOUR = 3_600_000


def read(folder: Path, *lines: str) -> Trace:
    path = folder / "history.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    return shapes.read(path)


def changed(column: str, value: str) -> str:
    cells = GOOD.split(",")
    cells[history.COLUMNS.index(column)] = value
    return ",".join(cells)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("node", "", "node is ''; name the node."),
        ("zone", " ", "zone is ''; name the zone."),
        ("capacity", "Spot", "capacity is 'Spot'; write spot or on-demand."),
        ("start", "yesterday", "start is 'yesterday'; write a time with its offset, as 2026-"),
        ("start", "2026-11-30T08:00:00", "start is '2026-11-30T08:00:00'; write a time with its"),
        (
            "end",
            "",
            "end is ''; write a time with its offset, as 2026-11-30T08:00:00Z; a node that",
        ),
        ("end", "2026-11-30T07:00:00Z", "end is '2026-11-30T07:00:00Z', before start; swap them."),
        ("ended_by", "eaten", "ended_by is 'eaten'; write one of preempted, stopped, running."),
        ("ended_by", "running", "end is '2026-11-30T09:00:00Z'; leave it empty for a node that"),
        ("dollars_per_hour", "$1", "dollars_per_hour is '$1'; write a number of at least 0"),
        ("dollars_per_hour", "-1", "dollars_per_hour is '-1'; write a number of at least 0"),
        ("dollars_per_hour", "nan", "dollars_per_hour is 'nan'; write a number of at least 0"),
        ("dollars_per_hour", "inf", "dollars_per_hour is 'inf'; write a number of at least 0"),
        ("dollars_per_hour", "1,2", "the line has more cells than the header; separate cells"),
    ],
)
def test_a_wrong_cell_is_named_with_line_value_and_remedy(
    column: str, value: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TraceError) as error:
        read(tmp_path, changed("node", "y"), changed(column, value))
    assert str(error.value).startswith(f"{tmp_path / 'history.csv'}:3: {said}")


def test_other_wrong_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=":2: the line has fewer cells than the header"):
        read(tmp_path, "x,a,spot")
    with pytest.raises(TraceError, match=":2: no node follows the header; add one"):
        read(tmp_path)
    with pytest.raises(TraceError, match="mend the quotes"):
        read(tmp_path, '"x"y,a,spot')
    with pytest.raises(TraceError, match=":3: node 'x' lives already, by line 2; use another"):
        read(tmp_path, GOOD, changed("start", "2026-11-30T08:30:00Z"))


def test_a_name_may_come_again_and_offsets_are_one_time(tmp_path: Path) -> None:
    again = "x,a,spot,2026-11-30T11:00:00+02:00,2026-11-30T12:00:00+02:00,stopped,1.1"
    found = read(tmp_path, again, GOOD)
    assert found.hours == 2
    assert [(event.kind, event.is_loss) for event in found.named] == [
        *((Kind.ADD, True), (Kind.ADD, True), (Kind.REMOVE, True), (Kind.REMOVE, False))
    ]
    assert len({event.name for event in found.named}) == 2


def test_columns_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    order = [*reversed(history.COLUMNS)]
    path = tmp_path / "history.csv"
    cells = dict(zip(history.COLUMNS, GOOD.split(","), strict=True))
    row = ",".join(["note", *(cells[name] for name in order)])
    path.write_text("\n".join([",".join(["more", *order]), row]), encoding="utf-8")
    assert shapes.read(path) == read(tmp_path, GOOD)


def test_prices_are_means_over_the_time_of_nodes_with_their_range(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        GOOD,
        "y,a,spot,2026-11-30T08:00:00Z,2026-11-30T11:00:00Z,stopped,1.3",
        "z,b,on-demand,2026-11-30T08:00:00Z,,running,3",
    )
    assert found.prices == {
        ("a", "spot"): Price(pytest.approx((0.9 + 3 * 1.3) / 4), 0.9, 1.3),
        ("b", "on-demand"): Price(3, 3, 3),
    }
    nodes = {event.node for event in found.events(1, boot_ms=0, zones=("q",), within_ms=0)}
    assert {(node.zone, node.capacity) for node in nodes} == found.prices.keys()


def test_losses_are_of_spot_nodes(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, changed("node", "y").replace("spot", "on-demand"))
    assert found.bursts(HOUR) == [(found.begin_ms + HOUR, 1)]
