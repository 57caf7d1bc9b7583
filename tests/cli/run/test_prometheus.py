"""The history that a Prometheus has."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.cli.fake_api import Server

from bamboo_cli.errors import CommandError
from bamboo_cli.job.state import read_job
from bamboo_cli.run.cost import Cost, costs, money_text
from bamboo_cli.run.model import Life, Run, Span
from bamboo_cli.run.prometheus import Prometheus, with_history
from bamboo_cli.views.svg.page_charts import charts

RANGE = "/api/v1/query_range"


class Scripted(Prometheus):
    """Answers by the name of the metric."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("http://x")
        self.answers = answers

    def series(self, query: str, span: Span) -> Any:
        assert 'job_namespace="team",training_job="gpt"' in query
        return next((found for name, found in self.answers.items() if name in query), [])


@pytest.fixture
def run(training: dict[str, Any]) -> Run:
    return Run(read_job(training), 32, Span(0.0, 60.0), loss=[(20, 2.5)])


def test_the_whole_run_is_shown(run: Run) -> None:
    server = Scripted(
        bamboo_job_steps=[({}, [(0.0, 0.0), (15.0, 10.0), (30.0, 20.0)])],
        bamboo_job_training_loss=[({}, [(15.0, 3.0), (30.0, float("nan"))])],
        bamboo_job_workers=[
            ({"zone": "a"}, [(0.0, 4.0), (15.0, 2.0), (30.0, 2.0), (45.0, 2.0), (60.0, 9.0)]),
            ({}, [(15.0, 1.0), (45.0, 1.0)]),  # no agent at 30
        ],
    )  # fmt: skip
    found = with_history(run, server)
    assert (list(found.progress), list(found.loss)) == (
        [(0.0, 0), (15.0, 10), (30.0, 20)], [(10, 3.0)],
    )  # fmt: skip
    assert found.agent_hours() == pytest.approx({"a": 150 / 3600, "zone not known": 30 / 3600})
    hours = found.agent_hours()
    assert costs(found, {"a": 2.0, "others": 1.0}) == [
        Cost("a", hours["a"], 2.0), Cost("zone not known", hours["zone not known"], 1.0),
    ]  # fmt: skip
    assert charts(found)[0].title == "Agents by zone"
    assert list(found.notes) == []


def test_a_prometheus_that_began_later(run: Run) -> None:
    """Until then the agents are those that the cluster knows."""
    run = replace(
        run,
        span=Span(0.0, 400.0),
        lives=[Life("x", "a", "", Span(0.0, 400.0)), Life("y", "b", "", Span(100.0, 150.0))],
        progress=[(0.0, 0), (100.0, 9), (300.0, 30)],
    )
    server = Scripted(
        bamboo_job_steps=[({}, [(200.0, 20.0), (215.0, 21.0)])],
        bamboo_job_workers=[({"zone": "a"}, [(200.0 + 15 * n, 2.0) for n in range(14)])],
    )
    found = with_history(run, server)
    assert found.agent_hours() == pytest.approx({"a": 600 / 3600, "b": 50 / 3600})
    assert list(found.progress) == [(0.0, 0), (100.0, 9), (200.0, 20), (215.0, 21)]
    assert list(found.notes) == [
        "The Prometheus knows nothing of this job before 1970-01-01 00:03:20 UTC. Until then,"
        " agents and steps are those of pods and events that the API server still has, and no loss"
        " is shown."
    ]


def test_an_agent_that_lived_between_two_looks_counts(run: Run) -> None:
    """Its zone is known from its pod; of an agent without a zone, the Prometheus knows more."""
    lives = [
        Life("x", "a", "", Span(0.0, 60.0)),
        Life("y", "b", "", Span(20.0, 27.0)),
        Life("z", "zone not known", "", Span(0.0, 60.0)),
    ]
    server = Scripted(
        bamboo_job_steps=[({}, [(0.0, 0.0), (60.0, 9.0)])],
        bamboo_job_workers=[
            ({"zone": "a"}, [(15.0 * n, 2.0) for n in range(5)]),
            ({"zone": "b"}, [(0.0, 0.0)]),
        ],
    )
    found = with_history(replace(run, lives=lives), server)
    assert found.agent_hours() == pytest.approx({"a": 120 / 3600, "b": 7 / 3600})


def test_the_first_point_of_a_long_run_may_come_late(run: Run) -> None:
    """There is one only every 200 s, and none in the second in which the job was created."""
    run = replace(run, span=Span(0.0, 100_000.0))
    found = with_history(run, Scripted(bamboo_job_steps=[({}, [(200.0, 20.0), (400.0, 21.0)])]))
    assert list(found.notes) == []


def test_a_zone_where_no_agent_ran_needs_no_price(run: Run) -> None:
    """The operator may export a zone that it does not know, with 0 agents."""
    workers = [({}, [(0.0, 0.0), (60.0, 0.0)]), ({"zone": "a"}, [(0.0, 2.0), (15.0, 2.0)])]
    server = Scripted(bamboo_job_steps=[({}, [(0.0, 0.0)])], bamboo_job_workers=workers)
    found = with_history(run, server)
    assert found.zones == ["a"]
    assert [cost.name for cost in costs(found, {"a": 1.0})] == ["a"]
    assert money_text(found, {"a": 3600.0}).startswith("60.00 USD for 0.0167 agent-hours")
    at_last = replace(found, counts={**found.counts, "b": [(60.0, 1)]})
    assert [cost.name for cost in costs(at_last, {"a": 1.0})] == ["a"]


class Counters(Scripted):
    """Knows the two counters of steps, and evaluates their difference."""

    def __init__(self, steps: Sequence[float], repeated: Sequence[float]) -> None:
        super().__init__()
        self.counters = {
            "bamboo_job_steps_total": steps,
            "bamboo_job_repeated_steps_total": repeated,
        }

    def series(self, query: str, span: Span) -> Any:
        named = [values for name, values in self.counters.items() if name in query]
        if not named:
            return super().series(query, span)
        rest = named[1] if len(named) == 2 and " - " in query else [0.0] * len(named[0])
        return [
            ({}, [(15.0 * n, a - b) for n, (a, b) in enumerate(zip(named[0], rest, strict=True))])
        ]


def test_repeated_steps_are_no_progress(run: Run) -> None:
    server = Counters([0, 16, 24, 30, 46], [0, 0, 20, 20, 20])  # of 32; a restore from 24 to 4
    found = with_history(replace(run, loss=()), server)
    assert [step for _, step in found.progress] == [0, 16, 4, 10, 26]
    assert found.rate == pytest.approx(26 * 32 / 60)
    assert min(rate for _, rate in found.throughput()) == 0.0  # none is negative
    lines = [
        line.attrib["points"].split()
        for chart in charts(found)
        for line in ET.fromstring(chart.svg).iter("{http://www.w3.org/2000/svg}polyline")
    ]
    assert len(lines) > 4
    assert all(0 <= float(point.split(",")[1]) <= 210 for points in lines for point in points)


def test_prices_of_pools_hold_for_the_zones_that_a_prometheus_counts(run: Run) -> None:
    lives = [Life("x", "a", "spot", Span(0.0, 60.0)), Life("y", "b", "other", Span(0.0, 60.0))]
    run = replace(run, lives=lives, counts={"a": [(0.0, 2)], "b": [(0.0, 1)]})
    assert [(c.name, c.price) for c in costs(run, {"spot": 1.5})] == [("a", 1.5), ("b", None)]
    assert "No price given for b" in money_text(run, {"spot": 1.5})
    assert "--price ZONE=USD" in money_text(run, {"spot": 1.5})
    assert [c.price for c in costs(run, {"spot": 1.5, "others": 3.0})] == [1.5, 3.0]
    mixed = replace(run, lives=[*lives, Life("z", "a", "dear", Span(0.0, 60.0))])
    assert costs(mixed, {"spot": 1.5, "dear": 9.0})[0].price is None
    assert costs(mixed, {"spot": 1.5, "dear": 9.0, "a": 2.0})[0].price == 2.0
    assert money_text(run, {"spot": 1.5, "other": 1.5}).startswith("0.08 USD")


def test_a_prometheus_that_does_not_know_the_job(run: Run) -> None:
    found = with_history(run, Scripted())
    assert list(found.loss) == [(20, 2.5)]
    assert list(found.notes)[-1].endswith("does it scrape the operator?")


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def test_a_query(server: Server) -> None:
    result = [{"metric": {"zone": "a\x1b\x9b"}, "values": [[1.0, "2"], [16.0, "3"]]}]
    server.answers[RANGE] = (200, {"status": "success", "data": {"result": result}})
    found = Prometheus(address(server)).series("up", Span(0.0, 15_000.0))
    assert found == [({"zone": "a"}, [(1.0, 2.0), (16.0, 3.0)])]
    (asked,) = server.asked
    assert parse_qs(urlsplit(asked).query) == {
        "query": ["up"], "start": ["0.000"], "end": ["15000.000"], "step": ["30"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"a page"), "its answer is not that of a Prometheus"),
        ((200, []), "its answer is not that of a Prometheus"),
        ((404, {"x": 1}), "its answer is not that of a Prometheus"),
        ((400, {"status": "error", "error": "too many points"}), "too many points"),
    ],
)
def test_answers_that_cannot_be_used(server: Server, answer: tuple[int, Any], words: str) -> None:
    server.answers[RANGE] = answer
    with pytest.raises(CommandError, match=words):
        Prometheus(address(server)).series("up", Span(0.0, 1.0))


def test_a_server_that_does_not_answer() -> None:
    closed = Server()
    url = address(closed)
    closed.server_close()
    with pytest.raises(CommandError, match=r"does not answer .*; check the address"):
        Prometheus(url).series("up", Span(0.0, 1.0))


@pytest.mark.parametrize("url", ["", "prometheus", "ftp://x", "http://", "http://[x"])
def test_no_address(url: str) -> None:
    with pytest.raises(CommandError, match="is no address; give one such as"):
        Prometheus(url)
