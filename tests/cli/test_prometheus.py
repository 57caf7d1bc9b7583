"""The history that a Prometheus has."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bamboo_cli.charts import charts
from bamboo_cli.errors import CommandError
from bamboo_cli.history import Span
from bamboo_cli.job import read_job
from bamboo_cli.money import Cost, costs
from bamboo_cli.prometheus import Prometheus, with_history
from bamboo_cli.record import Run

from .fake_api import Server

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


def test_a_prometheus_that_does_not_know_the_job(run: Run) -> None:
    found = with_history(run, Scripted())
    assert list(found.loss) == [(20, 2.5)]
    assert list(found.notes)[-1].endswith("does it scrape the operator?")


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def test_a_query(server: Server) -> None:
    result = [{"metric": {"zone": "a"}, "values": [[1.0, "2"], [16.0, "3"]]}]
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
