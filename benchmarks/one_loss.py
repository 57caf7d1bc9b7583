"""What the loss of one agent costs in each later step, by the way in which its work is shared.

    python benchmarks/one_loss.py

4 pipelines of 8 equal stages, 128 micro-batches, F = I = W = 18 ms, 0.75 GB of gradients for each
stage, Replica: the planner's programs and their dry run over networks of 10, 25 and 100 Gb/s, as
``bamboo plan`` shows them for any job. A figure is the step without the agent of pipeline 2 and
stage 4 over the step without a loss. A way whose busiest agent alone takes longer than the best
step is not run: its samples say at least. One far from the best is tried with split backwards or
with fused ones only: its samples say at most. Then docs/choosing-protection.md gets its table.
"""

from __future__ import annotations

import planned_steps
import protection_page

from bamboo_core.planning.displays import preview
from bamboo_core.planning.displays.preview import OneLoss
from bamboo_core.protocol.messages import LayerCost
from bamboo_sim.programs import arguments, results_file

D, P, MICROBATCHES, SLOT_S, BYTES = 4, 8, 128, 0.018, 750_000_000
BANDWIDTHS = (10, 25, 100)
STAGE = LayerCost(
    SLOT_S, 2 * SLOT_S, BYTES, 1, input_gradient_s=SLOT_S, weight_gradient_s=SLOT_S, can_split=True
)


def lose(gbps: float) -> OneLoss:
    """The comparison of a job on this network."""
    job = planned_steps.PlannedJob(D, P, MICROBATCHES, STAGE, gbps)
    found = preview.one_loss(job.spec, job.costs)
    assert found is not None, "with replicas no loss of one agent is fatal"
    return found


def main() -> None:
    """Measure, write the file, fill the page."""
    arguments.none(__doc__)
    figures: dict[str, float] = {}
    samples: dict[str, dict[str, float | str]] = {}
    for gbps in BANDWIDTHS:
        found = lose(gbps)
        figures[f"usual_{gbps}_gbps_s"] = round(found.usual_s, 3)
        figures[f"one_lost_{gbps}_gbps"] = round(found.ways.taken.step_s / found.usual_s, 3)
        row: dict[str, float | str] = {"taken": found.ways.taken.way}
        for x in (found.ways.taken, *found.ways.others):
            ratio = round(x.step_s / found.usual_s, 2)
            row[x.way] = f"{x.bound} {ratio:.2f}" if x.bound else ratio
        samples[f"{gbps} Gb/s"] = row
    path = results_file.write("one_loss", samples=samples, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")
    protection_page.write()


if __name__ == "__main__":
    main()
