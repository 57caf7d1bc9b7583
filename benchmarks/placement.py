"""How long it takes to assign seats to 10,000 agents: all, and after the loss of a tenth.

    python benchmarks/placement.py

1,250 pipelines of 8 stages in 8 zones with 1,400 agents each; processor time of one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from bamboo_core.api.spec import Adjacency
from bamboo_core.model.ids import AgentId
from bamboo_core.placement.seats import Candidate, Infeasible, Seats, assign
from bamboo_sim.programs import arguments, results_file

STAGES, PIPELINES, ZONES, PER_ZONE = 8, 1250, "abcdefgh", 1400


def fleet() -> list[Candidate]:
    return [
        Candidate(AgentId(f"{zone}{i}"), zone, float(i)) for zone in ZONES for i in range(PER_ZONE)
    ]


def seat(candidates: list[Candidate], previous: Seats, adjacency: Adjacency) -> Seats:
    found = assign(
        candidates,
        stages=STAGES,
        pipelines=PIPELINES,
        previous=previous,
        adjacency=adjacency,
    )
    if isinstance(found, Infeasible):
        raise RuntimeError(found.reason)
    return found


def seconds(call: Callable[[], object], repeats: int = 5) -> list[float]:
    out = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        out.append(round(time.process_time() - start, 4))
    return out


def main() -> None:
    """Measure, write the file, print the figures."""
    arguments.none(__doc__)
    everyone = fleet()
    samples: dict[str, list[float]] = {}
    for adjacency in Adjacency:
        before = seat(everyone, (), adjacency)
        lost = {a for d, ring in enumerate(before) for a in ring if d % 10 == 0}
        alive = [c for c in everyone if c.agent not in lost]
        after = seat(alive, before, adjacency)
        stay = sum(
            a == b for r, q in zip(before, after, strict=True) for a, b in zip(r, q, strict=True)
        )
        if stay != STAGES * PIPELINES - len(lost):
            raise RuntimeError(f"{adjacency}: only {stay} agents kept their seats")
        name = adjacency.value.lower()
        samples[f"{name}_afresh"] = seconds(partial(seat, everyone, (), adjacency))
        samples[f"{name}_refilled"] = seconds(partial(seat, alive, before, adjacency))
    figures = {f"{name}_s": statistics.median(x) for name, x in samples.items()}
    figures["placement_10000_agents_s"] = max(figures.values())
    path = results_file.write("placement", samples=samples, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
