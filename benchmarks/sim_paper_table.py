"""How near the market simulator comes to the paper's table, and to the authors' simulator.

    python benchmarks/sim_paper_table.py [--seeds 1000]

First the table of `bamboo sim paper-table` against the slide: 15 cells, for which 5 numbers are
fitted. Then 60 runs, seed by seed, against what the authors' simulator printed with the same two
fitted assumptions; its file lies beside the checkout, and without it nothing is written.
"""

from __future__ import annotations

import argparse

from bamboo_sim.market.paper import authors
from bamboo_sim.market.paper.table import WITHIN, table
from bamboo_sim.programs import results_file
from bamboo_sim.programs.arguments import at_least


def main() -> None:
    """Compute both, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=1000, help="of each row")
    options = parser.parse_args()
    path = authors.rows_file()
    if path is None:
        parser.error(f"no {authors.ROWS} beside the checkout; put it there to compare with it.")
    rows = table(options.seeds)
    offs = [abs(off) for row in rows for off in row.off]
    pairs = authors.pairs(path)
    columns = [
        {
            "loss_chance": row.loss_chance,
            **{name: round(value, 4) for name, value in row.mean._asdict().items()},
            **{
                f"{name}_off": round(off, 4)
                for name, off in zip(
                    ("throughput", "cost", "value_time_mean"), row.off, strict=True
                )
            },
        }
        for row in rows
    ]
    figures: dict[str, float] = {
        "cells_within_3_percent": sum(off <= WITHIN for off in offs),
        "worst_cell": round(max(offs), 4),
        "pairs": len(pairs),
        "pairs_within_1e-3": sum(pair.worst <= 1e-3 for pair in pairs),
        "worst_pair": round(max(pair.worst for pair in pairs), 5),
    }
    for row in rows:
        figures |= {
            f"samples_per_s_at_{row.loss_chance}": round(row.mean.throughput, 2),
            f"dollars_per_h_at_{row.loss_chance}": round(row.mean.cost, 2),
            f"value_time_mean_at_{row.loss_chance}": round(row.mean.value_time_mean, 3),
            f"value_at_{row.loss_chance}": round(row.mean.value, 3),
            f"paused_at_{row.loss_chance}": round(row.mean.paused, 3),
            f"fatal_at_{row.loss_chance}": round(row.mean.fatal, 2),
        }
    written = results_file.write(
        "sim_paper_table", samples=results_file.columns(columns), figures=figures
    )
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {written}", sep="\n")


if __name__ == "__main__":
    main()
