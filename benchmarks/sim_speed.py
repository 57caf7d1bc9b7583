"""How long the market simulator takes.

    python benchmarks/sim_speed.py [--seeds 1000]

The paper's table, five rows, on all cores; and `bamboo sim compare` of the p3 trace at 10 Gb/s,
first with no step time known, then again. Seconds of the clock, and of all processors together. The
trace lies beside the checkout, and without it nothing is written.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from time import monotonic

from bamboo_sim.market.compare.comparison import compared
from bamboo_sim.market.compare.setting import Setting, assumptions, fleets, models
from bamboo_sim.market.paper.table import table
from bamboo_sim.market.step_times.networks import TEN
from bamboo_sim.programs import results_file
from bamboo_sim.programs.arguments import at_least

TRACE = Path("shared", "traces", "bamboo", "p3-trace.csv")


def main() -> None:
    """Measure, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=1000, help="of each row")
    parser.add_argument("--processes", type=at_least(1), default=None)
    options = parser.parse_args()
    if (trace := _trace()) is None:
        parser.error(f"no {TRACE} beside the checkout; put it there.")
    begun = monotonic()
    rows = table(options.seeds, options.processes)
    figures: dict[str, float] = {
        "paper_table_s": round(monotonic() - begun, 1),
        "paper_table_cpu_s": round(_processor_s(), 1),
        "runs": len(rows) * options.seeds,
    }
    figures |= _compare(trace, options.processes)
    written = results_file.write("sim_speed", samples={}, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {written}", sep="\n")


def _trace() -> Path | None:
    found = (above / TRACE for above in Path(__file__).resolve().parents)
    return next((path for path in found if path.is_file()), None)


def _compare(trace: Path, processes: int | None) -> dict[str, float]:
    """The command's times with the model and the network that it has by default."""
    model = "bert_large"
    source = fleets(str(trace), seeds=1, hours=24)
    setting = Setting(source, models()[model], TEN, assumptions()["models"][model]["value"])
    figures = dict[str, float]()
    with tempfile.TemporaryDirectory() as place:
        for name in ("cold", "warm"):
            begun, used_s = monotonic(), _processor_s()
            found = compared(setting, Path(place), processes)
            figures[f"compare_{name}_s"] = round(monotonic() - begun, 1)
            figures[f"compare_{name}_cpu_s"] = round(_processor_s() - used_s, 1)
        figures["compare_rows"] = len(found.rows)
    return figures


def _processor_s() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(time.ru_utime + time.ru_stime for time in used)


if __name__ == "__main__":
    main()
