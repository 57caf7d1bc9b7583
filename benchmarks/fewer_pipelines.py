"""When a grid should give up a pipeline: empty seats compared with one pipeline less, in slots.

    python benchmarks/fewer_pipelines.py

A step of 4 P micro-batches (8 P for D=4), F = I = W = 1, Replica, Diffuse; the better of the caps
P-s and P-s+8. For each D and P and for 1 to P empty seats, the ratio is the mean over all
placements of the empty seats (a sample of at most 40) divided by the step of D-1 full pipelines.
Above 1, one pipeline less is faster. The cost of moving agents is not counted. Today the planner
compares both for each step (ADR 57).
"""

from __future__ import annotations

import random
import statistics
from itertools import combinations, product

from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.planning.step_shape import StepShape
from bamboo_sim.programs import arguments, results_file

_MOST = 40
Seats = tuple[tuple[int, int], ...]


def slots(pipelines: int, stages: int, batch: BatchShape, lost: Seats = ()) -> float:
    """Length of the step by the dry run."""
    shapes = (StepShape(pipelines, stages, batch, lost=lost, extra=extra) for extra in (0, 8))
    return min(shape.dry_run(shape.build().programs).length for shape in shapes)


def placements(pipelines: int, stages: int, empty: int) -> list[Seats]:
    """All choices of empty seats, or a sample."""
    ways = list(combinations(product(range(pipelines), range(stages)), empty))
    return ways if len(ways) <= _MOST else random.Random(empty).sample(ways, _MOST)


def ratios(pipelines: int, stages: int) -> dict[int, float]:
    """Number of empty seats -> mean slots, divided by those of one pipeline less."""
    g = stages * (8 if pipelines == 4 else 4)
    g += -g % pipelines
    batch = choose(microbatches=g, pipelines_max=pipelines)
    less = slots(pipelines - 1, stages, batch)
    return {
        empty: statistics.mean(
            slots(pipelines, stages, batch, lost) for lost in placements(pipelines, stages, empty)
        )
        / less
        for empty in range(1, stages + 1)
    }


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    found = {(d, p): ratios(d, p) for d in (2, 3, 4) for p in (2, 3, 4, 6)}
    figures: dict[str, float] = {
        "holes_below_p_over_one_less_mean": statistics.mean(
            r for (_, p), row in found.items() for h, r in row.items() if h < p
        ),
        "holes_below_p_over_one_less_worst": max(
            r for (_, p), row in found.items() for h, r in row.items() if h < p
        ),
        "p_holes_over_one_less_best": min(row[p] for (_, p), row in found.items()),
        "p_holes_over_one_less_mean": statistics.mean(row[p] for (_, p), row in found.items()),
    }
    figures = {name: round(value, 3) for name, value in figures.items()}
    samples = {
        f"{d}x{p}": {str(h): round(r, 3) for h, r in row.items()} for (d, p), row in found.items()
    }
    path = results_file.write("fewer_pipelines", samples=samples, figures=figures)
    print(*(f"{name}: {row}" for name, row in samples.items()), sep="\n")
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
