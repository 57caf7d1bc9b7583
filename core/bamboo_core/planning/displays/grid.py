"""Prints programs as a grid: a line per agent, a column per slot of time.

A cell shows a computation: ``F3`` is the forward of micro-batch 3; ``B3``, ``I3``, ``W3`` and
``V3`` likewise. A trailing ``'`` marks a stage other than that of the agent's first computation,
``-`` continues the previous cell, ``.`` is idle time. Free instructions (messages, sums, votes) are
not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Instruction, Program, to_text
from bamboo_core.scheduling.dry_run import DryRunResult, Span


def draw(programs: Mapping[AgentId, Program], report: DryRunResult, *, slot: float = 1.0) -> str:
    """The grid of a dry run; ``slot``: time of one column.

    Faults follow below the grid. The line of a stuck agent ends in ``!`` and the instruction that
    cannot run.
    """
    names = sorted(programs)
    columns = max(1, ceil(report.length / slot - _TOLERANCE))
    rows = {a: _row(programs[a], report.spans.get(a, ()), columns, slot) for a in names}
    width = 1 + max((len(c) for row in rows.values() for c in row), default=1)
    margin = max((len(a) for a in names), default=0)
    lines = [" " * margin + " |" + "".join(f"{i:>{width}}" for i in range(columns))]
    for agent in names:
        row = "".join(f"{c:>{width}}" for c in rows[agent])
        stuck = report.deadlock.get(agent)
        lines.append(f"{agent:<{margin}} |{row}" + (f" ! {stuck.instruction}" if stuck else ""))
    total = report.length * len(names)
    idle = f" ({100 * report.bubbles / total:.1f} %)" if total else ""
    lines.append(f"length {report.length:g}, idle {report.bubbles:g}{idle}")
    if not report.ok:
        lines.append(str(report))
    return "\n".join(lines) + "\n"


_TOLERANCE = 1e-6


def _row(program: Program, spans: Sequence[Span], columns: int, slot: float) -> list[str]:
    row = ["."] * columns
    home = program[spans[0][0]].lo if spans else 0
    for at, begin, end in spans:
        first = int(begin / slot + _TOLERANCE)
        for column in range(first, min(max(first + 1, round(end / slot)), columns)):
            row[column] = _cell(program[at], home) if column == first else "-"
    return row


def _cell(instruction: Instruction, home: int) -> str:
    mark = "" if instruction.lo == home else "'"
    return f"{instruction.op.value}{instruction.index}{mark}"


def listing(programs: Mapping[AgentId, Program], report: DryRunResult | None = None) -> str:
    """The text of all programs; ``<==`` marks a faulty instruction."""
    parts = []
    for agent in sorted(programs):
        lines = to_text(programs[agent]).splitlines()
        blocked = report.deadlock.get(agent) if report is not None else None
        if blocked is not None:
            lines[blocked.at] += f"   <== lacks {blocked.item}"
        parts.append("\n".join([f"# {agent}", *lines]))
    return "\n\n".join(parts) + "\n"
