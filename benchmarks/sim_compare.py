"""How ours stands among other systems on recorded fleets, as `bamboo sim compare` says it.

    python benchmarks/sim_compare.py [--models bert_large] [--traces p3 g4dn] [--networks 10 25 100]

For each model, trace and network: the rank of the mode that a job has by default, None, among other
systems by samples per dollar (1: none has more), its ratio to the best of them, and to the bound of
whole grids without any pause; the same for mode Auto, and Auto's ratio to our best fixed mode.
``fixed_bound_to_bound``: what keeping a depth costs without any pause. All have the common
parameters; systems of which only prose is known do not count. The traces lie beside the checkout,
and without them nothing is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from bamboo_sim.market.compare.comparison import (
    BOUND,
    DEFAULT,
    FIXED_BOUND,
    OURS,
    UNRANKED,
    Comparison,
    Row,
    Table,
    compared,
)
from bamboo_sim.market.compare.setting import Setting, assumptions, fleets, models
from bamboo_sim.market.simulation.outcome import Activity
from bamboo_sim.market.step_times.networks import NAMED
from bamboo_sim.programs import results_file
from bamboo_sim.programs.arguments import at_least

TRACES = {
    "p3": "bamboo/p3-trace.csv",
    "g4dn": "bamboo/g4dn-trace.csv",
    "a100": "bamboo/gcloud/a100x1-east1b.txt",
    "v100": "bamboo/gcloud/v100x1-east1c.txt",
    "spotserve_0203": "spotserve/trace_0203.txt",
    "spotserve_0304": "spotserve/trace_0304.txt",
    "spotserve_0506": "spotserve/trace_0506.txt",
}
AUTO = f"{OURS}Auto"
HOURS = 1000.0  # none is longer


def folder() -> Path | None:
    """The recorded fleets beside the checkout; None: there are none."""
    found = (above / "shared" / "traces" for above in Path(__file__).resolve().parents)
    return next((path for path in found if (path / "summary.json").is_file()), None)


def stands(found: Comparison) -> dict[str, float]:
    """The figures of one comparison."""
    rows = [x for x in found.rows if x.table is Table.COMMON]
    others = [x for x in rows if not x.name.startswith(OURS) and x.name not in UNRANKED]
    best = max(x.samples_per_dollar for x in others)
    fixed = [x for x in rows if x.name.startswith(OURS) and x.name != AUTO]
    bound = found.row(BOUND).samples_per_dollar
    figures: dict[str, float] = {}
    for name, row in (("default", found.row(DEFAULT)), ("auto", found.row(AUTO))):
        value = row.samples_per_dollar
        figures[f"{name}_rank"] = 1 + sum(x.samples_per_dollar > value for x in others)
        figures[f"{name}_to_best"] = round(value / best, 4)
        figures[f"{name}_to_bound"] = round(value / bound, 4)
    figures["fixed_bound_to_bound"] = round(found.row(FIXED_BOUND).samples_per_dollar / bound, 4)
    auto = found.row(AUTO).samples_per_dollar
    figures["auto_to_best_mode"] = round(auto / max(x.samples_per_dollar for x in fixed), 4)
    return figures


def shown(row: Row) -> dict[str, Any]:
    """A row for the result file."""
    return {
        "system": row.name if row.table is Table.COMMON else f"{row.name} ({row.table})",
        "samples_per_s": round(row.samples_per_s, 2),
        "least": round(row.least, 2),
        "most": round(row.most, 2),
        "samples_per_dollar": round(row.samples_per_dollar),
        "training": round(row.share[Activity.TRAINING], 4),
        "paused": round(row.share[Activity.PAUSED], 4),
        "fatal": row.fatal,
    }


def main() -> None:
    """Compare, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(models()), default=["bert_large"])
    parser.add_argument("--traces", nargs="+", choices=list(TRACES), default=["p3", "g4dn"])
    parser.add_argument("--networks", nargs="+", choices=list(NAMED), default=["10", "25", "100"])
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--processes", type=at_least(1), default=None)
    options = parser.parse_args()
    traces = folder()
    if traces is None:
        parser.error("no shared/traces with summary.json beside the checkout; put it there.")
    samples: dict[str, Any] = {}
    figures: dict[str, float] = {}
    for model in options.models:
        for trace in options.traces:
            source = fleets(str(traces / TRACES[trace]), seeds=options.seeds, hours=HOURS)
            for network in options.networks:
                begun, name = monotonic(), f"{model}_{trace}_{network}"
                least = assumptions()["models"][model]["value"]
                setting = Setting(source, models()[model], NAMED[network], least)
                found = compared(setting, processes=options.processes)
                figures |= {f"{name}_{what}": x for what, x in stands(found).items()}
                samples[name] = {
                    "stages": found.setting.stages,
                    "nodes": source.nodes,
                    **results_file.columns([shown(row) for row in found.rows]),
                }
                print(name, stands(found), f"{monotonic() - begun:.0f} s", file=sys.stderr)
    path = results_file.write("sim_compare", samples=samples, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
