"""Every query of boards and rules, as Grafana would send it, and what Prometheus answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bamboo_sim.watching.definitions import boards, rules
from bamboo_sim.watching.definitions.panels import Board
from bamboo_sim.watching.prometheus.server import PrometheusError, Series, Server

_METRIC = re.compile(r"\bbamboo[_:][a-z0-9_:]*\b")


class Span(NamedTuple):
    """A time, in seconds since 1970, and the distance of its points."""

    start: float
    end: float
    step_s: float


def filled(expr: str, variables: Mapping[str, str]) -> str:
    """The query with values for Grafana's variables. KeyError names one without a value."""
    return re.sub(r"\$(\w+)", lambda match: variables[match[1]], expr)


def of_rules() -> list[str]:
    """The recorded series, and all that alerts compare."""
    return [*rules.RECORDED, *sorted({m for a in rules.ALERTS for m in _METRIC.findall(a.expr)})]


def metrics_used() -> set[str]:
    """Names of all series in boards and rules that the operator must export."""
    texts = [query.expr for b in boards.every().values() for p in b.panels() for query in p.queries]
    texts += [v.query for b in boards.every().values() for v in b.variables]
    texts += [alert.expr for alert in rules.ALERTS]
    texts += list(rules.RECORDED.values())
    return {m for text in texts for m in _METRIC.findall(text)} - rules.RECORDED.keys()


def ask_board(
    server: Server, board: Board, variables: Mapping[str, str], span: Span
) -> dict[str, list[list[Series]]]:
    """Title of each panel -> for each of its queries what it returns over a time.

    PrometheusError names a panel whose query is refused.
    """
    found: dict[str, list[list[Series]]] = {}
    for panel in board.panels():
        for query in panel.queries:
            series = _ask(server, panel.title, filled(query.expr, variables), span)
            found.setdefault(panel.title, []).append(series)
    return found


def ask_rules(server: Server, span: Span) -> dict[str, list[Series]]:
    """The same for the series of the rules, by name."""
    return {expr: _ask(server, "rules", expr, span) for expr in of_rules()}


def _ask(server: Server, where: str, expr: str, span: Span) -> list[Series]:
    try:
        return server.query_range(expr, span.start, span.end, span.step_s)
    except PrometheusError as error:
        raise PrometheusError(f"{where}: {error}") from error
