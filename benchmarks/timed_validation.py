"""The timed back end against real agents: predicted over measured times of a step.

    python benchmarks/timed_validation.py [--steps 8]

Real workers in processes over tcp, with the production planner. sleeping: layers that sleep for
declared times, so that a busy machine disturbs little. kernels: a GPT on two CPU workers; the
prediction takes the costs that the workers have measured at their start, so both cores must be
free. A measured step is the median of one run, as its last agent reports it. Beside it, for
kernels: what Replica and Eager cost, measured and predicted. Links cost nothing in predictions.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bamboo_core.api.spec import (
    DataSpec,
    FactorySpec,
    JobSpec,
    PipelinesSpec,
    RedundancyMode,
    RedundancySpec,
    TrainingSpec,
    WorkerSpec,
    batch_shape,
)
from bamboo_core.model.ids import Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import LayerCost, Progress
from bamboo_sim import arguments, results_file
from bamboo_sim.timed.declared import TimedJob
from bamboo_sim.timed.measured import undisturbed
from bamboo_sim.workers import plans
from bamboo_sim.workers.process_fleet import ProcessFleet

CONTEXT, MICROBATCHES, WARM = 64, 8, 2
LAYER = LayerCost(0.04, 0.08, parameter_bytes=4 * CONTEXT, output_bytes=4 * CONTEXT)
SLEEPING = FactorySpec(
    "bamboo_sim.workers.sleeping:build",
    {"layers": 8, "width": CONTEXT, "forward_s": LAYER.forward_s, "backward_s": LAYER.backward_s},
)
GPT = FactorySpec(
    "bamboo_agent.models.gpt:build",
    {"layers": 6, "width": 256, "heads": 4, "context": CONTEXT, "dropout": 0.0},
)
MODES = (RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER)
NOTE = "median of the steps of one run; latency and bandwidth of loopback are not predicted"


@dataclass(frozen=True)
class Case:
    """One fleet of workers, which trains in each of the modes."""

    name: str
    model: FactorySpec
    pipelines: int
    stages: int
    samples: int  # of a micro-batch
    costs: tuple[LayerCost, ...] = ()  # declared; empty: as the workers measure them


CASES = (
    Case("sleeping_d1_p2", SLEEPING, 1, 2, 1, (LAYER,) * 8),
    Case("sleeping_d1_p4", SLEEPING, 1, 4, 1, (LAYER,) * 8),
    Case("sleeping_d2_p2", SLEEPING, 2, 2, 1, (LAYER,) * 8),
    Case("kernels_d1_p2", GPT, 1, 2, 8),
)


def spec(case: Case, mode: RedundancyMode, steps: int) -> JobSpec:
    """The job of a case; micro-batches are those of each pipeline."""
    return JobSpec(
        model=case.model,
        data=DataSpec("bamboo_agent.datasets.text:build", {"context": CONTEXT}),
        training=TrainingSpec(
            steps=steps,
            global_batch_size=case.samples * MICROBATCHES * case.pipelines,
            micro_batch_size=case.samples,
            optimizer=FactorySpec("torch.optim:AdamW", {"lr": 1e-3}),
        ),
        pipelines=PipelinesSpec(case.pipelines, case.stages),
        worker=WorkerSpec("none"),
        redundancy=RedundancySpec(mode),
        seed=1,
    )


def predicted_s(case: Case, mode: RedundancyMode, costs: Sequence[LayerCost]) -> float:
    """A steady step in virtual time."""
    job = TimedJob(case.pipelines, case.stages, MICROBATCHES, tuple(costs), mode)
    return undisturbed(job).step_s


class Real:
    """The workers of a case."""

    def __init__(self, case: Case, steps: int) -> None:
        self._case, self._steps = case, steps
        self._fleet = ProcessFleet(
            spec(case, RedundancyMode.NONE, 1_000_000), plans.names(case.pipelines * case.stages)
        )
        self.costs = case.costs or self._fleet.ready().costs
        self._plan: Plan | None = None
        self._epoch = self._done = 0

    def step_s(self, mode: RedundancyMode) -> float:
        """Train some steps in a mode; the median of all but the first."""
        fleet = self._fleet
        fleet.ready()
        self._epoch += 1
        fence = Fence(0, 1, self._epoch)
        reports = fleet.stop(fence)
        self._done += WARM + self._steps
        job = spec(self._case, mode, self._done)
        decided = plans.decide(
            job,
            fence=fence,
            layers=len(self.costs),
            reports=reports,
            batch=batch_shape(job),
            before=self._plan,
            peers=fleet.peers,
            costs=self.costs,
        )
        self._plan, sent = decided.plan, len(fleet.messages)
        fleet.install(decided)
        fleet.run_to_end(fence)
        last = decided.plan.pipelines[0][-1]
        took = {
            m.commit.step: m.step_s
            for agent, m in fleet.messages[sent:]
            if isinstance(m, Progress) and agent == last
        }
        return statistics.median(took[k] for k in range(self._done - self._steps, self._done))

    def close(self) -> None:
        self._fleet.close()


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Each mode of a case: seconds predicted, measured, and their ratio."""
    real = Real(case, steps)
    try:
        out: dict[str, Any] = {}
        for mode in MODES:
            predicted, measured = predicted_s(case, mode, real.costs), real.step_s(mode)
            out[mode.value.lower()] = {
                "predicted_s": round(predicted, 4),
                "measured_s": round(measured, 4),
                "predicted_over_measured": round(predicted / measured, 4),
            }
        return out
    finally:
        real.close()


def figures(samples: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Ratios; of kernels also what a mode costs."""
    out = {
        f"{name}_{mode}": x["predicted_over_measured"]
        for name, modes in samples.items()
        for mode, x in modes.items()
    }
    kernels = samples["kernels_d1_p2"]
    for mode in ("replica", "eager"):
        for kind in ("predicted", "measured"):
            ratio = kernels[mode][f"{kind}_s"] / kernels["none"][f"{kind}_s"]
            out[f"kernels_{mode}_over_none_{kind}"] = round(ratio, 4)
    return out


def main() -> None:
    """Measure, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=arguments.at_least(1), default=8, help="of each run")
    steps = parser.parse_args().steps
    samples: dict[str, dict[str, Any]] = {}
    for case in CASES:
        samples[case.name] = measure(case, steps)
        print(case.name, samples[case.name], flush=True)
    path = results_file.write(
        "timed_validation", samples=samples, figures=figures(samples), note=NOTE
    )
    print(*(f"{name}: {x}" for name, x in figures(samples).items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
