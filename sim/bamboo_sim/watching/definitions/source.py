"""Whose series boards and rules look at: those that Prometheus has scraped from the operator.

Other pods may export series of the same names. What Prometheus says about the target, they cannot
choose.
"""

from __future__ import annotations

import re
from dataclasses import replace

from bamboo_sim.watching.definitions.panels import Board, Panel, Row

LABELS = {"namespace": "bamboo-system"}
"""Of the target, as a Prometheus that finds it by the API server sets them: the operator's
namespace, where tenants have no pods. The chart puts that of the release, or its value
monitoring.targetLabels, in their place. The label ``job`` is another one in each Prometheus."""

_OPERATOR = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
_RECORDED = 'instance=""'  # a rule has made it; every scraped series has an instance
_SERIES = re.compile(r"\b(bamboo[_:][a-z0-9_:]+)\b(\{)?")
_OF_OPERATOR = ("bamboo_agent_connections",)


def bound(expr: str) -> str:
    """The query with each series bound to its source. Series of agents stay as they are."""

    def selected(match: re.Match[str]) -> str:
        name, brace = match.groups()
        if name.startswith("bamboo_agent_") and name not in _OF_OPERATOR:
            return match[0]
        which = _RECORDED if ":" in name else _OPERATOR
        return f"{name}{{{which}{',' if brace else '}'}"

    return _SERIES.sub(selected, expr)


def bound_board(board: Board) -> Board:
    """The board with all its queries bound."""
    variables = tuple(replace(v, query=bound(v.query)) for v in board.variables)
    return replace(board, variables=variables, rows=tuple(map(_bound_row, board.rows)))


def _bound_row(row: Row) -> Row:
    return replace(row, panels=tuple(map(_bound_panel, row.panels)))


def _bound_panel(panel: Panel) -> Panel:
    queries = tuple(replace(query, expr=bound(query.expr)) for query in panel.queries)
    return replace(panel, queries=queries)
