"""`python -m bamboo_sim.market`: the program behind `bamboo sim`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from bamboo_sim.market.advise import command as advise_command
from bamboo_sim.market.compare import command as compare_command
from bamboo_sim.market.markets import fit_command
from bamboo_sim.market.markets.fit import FitError
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.paper import assumptions
from bamboo_sim.market.paper.table import WITHIN, Row, table
from bamboo_sim.market.single import command as run_command
from bamboo_sim.market.traces.records import TraceError
from bamboo_sim.programs.arguments import at_least

_COLUMNS = ("chance", "samples/s", "dollars/h", "value, time mean", "value, of totals", "paused")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    parser = argparse.ArgumentParser(prog="bamboo sim", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("paper-table", description=table.__doc__)
    command.add_argument("--seeds", type=at_least(1), default=1000)
    command.add_argument("--processes", type=at_least(1), default=None)
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=_paper_table)
    command = commands.add_parser("fit", description=fit_command.__doc__)
    fit_command.add(command)
    command.set_defaults(run=fit_command.run)
    command = commands.add_parser("compare", description=compare_command.__doc__)
    compare_command.add(command)
    command.set_defaults(run=compare_command.run)
    command = commands.add_parser("run", description=run_command.__doc__)
    run_command.add(command)
    command.set_defaults(run=run_command.run)
    command = commands.add_parser("advise", description=advise_command.__doc__)
    advise_command.add(command)
    command.set_defaults(run=advise_command.run)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except (TraceError, MarketError, FitError) as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"bamboo: {where}{error.strerror}.", file=sys.stderr)
        return 1
    return code


def _paper_table(options: argparse.Namespace) -> int:
    rows = table(options.seeds, options.processes, _tell if sys.stderr.isatty() else None)
    print(_as_json(rows) if options.json else _as_text(rows))
    return 0


def _tell(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} runs", end=end, file=sys.stderr, flush=True)


def _as_text(rows: Sequence[Row]) -> str:
    lines = [
        "BERT to completion on spot nodes, by the chance that a node is preempted within an hour.",
        f"Means of {rows[0].seeds} seeds; in brackets, against the paper's slide.",
        "",
        " | ".join(f"{name:>17}" for name in _COLUMNS),
    ]
    lines += [" | ".join(f"{cell:>17}" for cell in _cells(row)) for row in rows]
    offs = [abs(off) for row in rows for off in row.off]
    lines += [
        "",
        f"{sum(off <= WITHIN for off in offs)} of {len(offs)} cells are within {WITHIN:.0%} of the"
        f" slide; the furthest is {max(offs):.1%} off.",
        "Value is samples per second for each dollar per hour. The slide's seems to be a mean over"
        " time; of totals means all samples over all dollars.",
        "",
        "Assumed:",
    ]
    lines += [f"  {line}" for line in _assumed(fitted=False)]
    lines += ["Fitted to this slide, so no evidence for it (five numbers explain fifteen cells):"]
    return "\n".join([*lines, *(f"  {line}" for line in _assumed(fitted=True))])


def _cells(row: Row) -> tuple[str, ...]:
    throughput, cost, value = row.off
    mean = row.mean
    return (
        f"{row.loss_chance:.2f}",
        f"{mean.throughput:.2f} ({throughput:+.1%})",
        f"{mean.cost:.2f} ({cost:+.1%})",
        f"{mean.value_time_mean:.3f} ({value:+.1%})",
        f"{mean.value:.3f}",
        f"{mean.paused:.1%}",
    )


def _assumed(*, fitted: bool) -> list[str]:
    return [
        f"{found.name} = {_plain(found.value)} {found.unit} [{found.source}]"
        for found in assumptions.assumptions()
        if found.fitted is fitted
    ]


def _plain(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{key}: {of}" for key, of in value.items())
        case list():
            return ", ".join(map(str, value))
    return str(value)


def _as_json(rows: Sequence[Row]) -> str:
    return json.dumps(
        {
            "rows": [
                {
                    "loss_chance": row.loss_chance,
                    "seeds": row.seeds,
                    **row.mean._asdict(),
                    "slide": dict(zip(("throughput", "cost", "value"), row.slide, strict=True)),
                }
                for row in rows
            ],
            "assumptions": [vars(found) for found in assumptions.assumptions()],
        },
        indent=1,
    )


if __name__ == "__main__":
    sys.exit(main())
