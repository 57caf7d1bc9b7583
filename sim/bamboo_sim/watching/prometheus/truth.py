"""Whether metrics tell the truth about a run of which the truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose

from bamboo_sim.watching.prometheus.queries import Span, metrics_used
from bamboo_sim.watching.prometheus.server import Series, Server

_CENT = 0.01


@dataclass(frozen=True)
class Truth:
    """What happened to a job."""

    namespace: str
    job: str
    steps: int
    agents: int  # wanted
    lost: int
    noticed: int  # of these, with notice
    prices: Mapping[str, float]  # zone -> dollars for an hour of a node
    on_demand: float  # the same in all zones

    @property
    def labels(self) -> str:
        """The labels that select its series."""
        return f'job_namespace="{self.namespace}",training_job="{self.job}"'


def is_complete(server: Server, truth: Truth) -> bool:
    """Whether the newest metrics are those of its end."""
    return bool(server.query(f'bamboo_job_condition{{{truth.labels},type="Complete"}} == 1'))


def wrong(server: Server, truth: Truth, span: Span) -> list[str]:
    """All differences between the metrics and the truth. The span ends with the job."""
    return [*_counters(server, truth, span), *_cost(server, truth, span), *_agents(server, span)]


def _counters(server: Server, truth: Truth, span: Span) -> Iterator[str]:
    def last(name: str, labels: str = "") -> float:
        expr = f"sum({name}{{{truth.labels}{labels}}})"
        found = server.query_range(expr, span.end, span.end, 1.0)
        return found[0].points[-1][1] if found else -1.0

    window = f"[{max(1, round(span.end - span.start))}s]"
    for counter in sorted(x for x in metrics_used() if x.endswith("_total")):
        expr = f"resets({counter}{{{truth.labels}}}{window}) > 0"
        for series in server.query_range(expr, span.end, span.end, 1.0):
            yield f"{counter} fell: {dict(series.labels)}"
    unannounced = truth.lost - truth.noticed
    done = last("bamboo_job_steps_total") - last("bamboo_job_repeated_steps_total")
    for name, found, expected in (
        ("steps", done, truth.steps),
        ("losses with notice", last("bamboo_preemptions_total", ',noticed="true"'), truth.noticed),
        ("losses without", last("bamboo_preemptions_total", ',noticed="false"'), unannounced),
    ):
        if found != expected:
            yield f"{name}: {found:g}, not {expected}"
    if truth.lost and last("bamboo_job_pauses_total") <= 0:
        yield "no pause, although agents were lost"
    if unannounced and last("bamboo_job_tasks_redone_total") <= 0:
        yield "no task was done again, although agents were lost without notice"


def _cost(server: Server, truth: Truth, span: Span) -> Iterator[str]:
    """Only nodes with agents cost, and those that come for agents that are about to leave."""

    def ask(expr: str) -> list[Series]:
        return server.query_range(expr, *span)

    dollars = _sums(ask(f"bamboo_job_cost_dollars_per_hour{{{truth.labels}}}"))
    nodes = {
        at: round(value / truth.on_demand)
        for at, value in _sums(
            ask(f"bamboo_job_on_demand_dollars_per_hour{{{truth.labels}}}")
        ).items()
    }
    by_zone = ask(f'sum by (zone) (bamboo_job_workers{{{truth.labels},state="connected"}}) > 0')
    connected, price = _sums(by_zone), dict[float, float]()
    for series in by_zone:
        for at, count in series.points:
            dear = count * truth.prices[series.labels["zone"]]
            price[at] = price.get(at, 0.0) + dear
    most = max(nodes.values(), default=0)
    if most > truth.agents + truth.noticed:
        yield f"{most} nodes cost money at once, for {truth.agents} agents"
    steady = [at for at, count in nodes.items() if count == connected.get(at) == truth.agents]
    if not steady:
        yield f"never did {truth.agents} agents on as many nodes cost money"
    elif not all(isclose(dollars[at], price[at], abs_tol=_CENT) for at in steady):
        at = next(at for at in steady if not isclose(dollars[at], price[at], abs_tol=_CENT))
        yield f"${dollars[at]:.2f} an hour for nodes that cost ${price[at]:.2f}"


def _sums(found: list[Series]) -> dict[float, float]:
    """Instant -> sum of all series."""
    sums: dict[float, float] = {}
    for series in found:
        for at, value in series.points:
            sums[at] = sums.get(at, 0.0) + value
    return sums


def _agents(server: Server, span: Span) -> Iterator[str]:
    """Every agent that can be scraped at all was scraped."""
    window = f"[{max(1, round(span.end - span.start))}s]"
    tried = server.query_range(f'max_over_time(up{{job="agents"}}{window})', span.end, span.end, 1)
    down = sorted(s.labels["instance"] for s in tried if not s.points[-1][1])
    if not tried or down:
        yield f"agents never scraped: {', '.join(down) or 'all'}"
