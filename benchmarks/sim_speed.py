"""How long the market simulator takes.

    python benchmarks/sim_speed.py [--seeds 1000]

The paper's table, five rows, on all cores. Seconds of the clock, and of all processors together.
"""

from __future__ import annotations

import argparse
import resource
from time import monotonic

from bamboo_sim.market.paper.table import table
from bamboo_sim.programs import results_file
from bamboo_sim.programs.arguments import at_least


def main() -> None:
    """Measure, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=1000, help="of each row")
    options = parser.parse_args()
    begun = monotonic()
    rows = table(options.seeds)
    figures = {
        "paper_table_s": round(monotonic() - begun, 1),
        "paper_table_cpu_s": round(_processor_s(), 1),
        "runs": len(rows) * options.seeds,
    }
    written = results_file.write("sim_speed", samples={}, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {written}", sep="\n")


def _processor_s() -> float:
    """Processor seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(time.ru_utime + time.ru_stime for time in used)


if __name__ == "__main__":
    main()
