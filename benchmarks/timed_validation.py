"""The timed back end against real agents: predicted over measured times of a step.

    python benchmarks/timed_validation.py [--steps 8]

Real workers in processes over tcp, with the production planner. sleeping: layers that sleep for
declared times, so that a busy machine disturbs little. kernels: a GPT on two CPU workers, so both
cores must be free. Its layers' costs are measured by the workers at their start, when nothing else
computes, and (in_steps) as the time that each worker computes in steps of a first run in mode None,
in which both cores share caches and memory. A measured step is the median of one run, as its last
agent reports it. Beside it, for kernels: what Replica and Eager cost, measured and predicted. Links
cost nothing in predictions.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from bamboo_core.model.ids import AgentId, Coordinate, Fence
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


@dataclass(frozen=True)
class Run:
    """What agents said in some steps of one plan; ``steps``: those that count."""

    plan: Plan
    said: Sequence[tuple[AgentId, Progress]]
    steps: range

    def median(self, agent: AgentId, figure: str) -> float:
        """Of one of Progress's figures over the steps."""
        found: dict[int, float] = {
            m.commit.step: getattr(m, figure) for a, m in self.said if a == agent
        }
        return statistics.median(found[step] for step in self.steps)

    @property
    def step_s(self) -> float:
        """As the last agent reports it."""
        last = Coordinate(0, len(self.plan.cut) - 1)
        return self.median(next(a for a, x in self.plan.seats.items() if x == last), "step_s")


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

    def costs_in_steps(self) -> tuple[LayerCost, ...]:
        """Train in mode None: costs of which a step has as much as its agents say they computed."""
        run = self.run(RedundancyMode.NONE)
        costs = list(self.costs)
        for agent, seat in run.plan.seats.items():
            lo, hi = run.plan.cut[seat.stage]
            known = MICROBATCHES * sum(x.forward_s + x.backward_s for x in costs[lo:hi])
            factor = run.median(agent, "busy_s") / known
            costs[lo:hi] = [
                replace(x, forward_s=x.forward_s * factor, backward_s=x.backward_s * factor)
                for x in costs[lo:hi]
            ]
        return tuple(costs)

    def run(self, mode: RedundancyMode) -> Run:
        """Train some steps in a mode."""
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
        said = [(a, m) for a, m in fleet.messages[sent:] if isinstance(m, Progress)]
        return Run(decided.plan, said, range(self._done - self._steps, self._done))

    def close(self) -> None:
        self._fleet.close()


def measure(case: Case, steps: int) -> dict[str, dict[str, Any]]:
    """By case, or by source of its costs, each mode: seconds predicted, measured, and the ratio."""
    real = Real(case, steps)
    try:
        sources = {case.name: real.costs}
        if not case.costs:
            sources[f"{case.name}_in_steps"] = real.costs_in_steps()
        out: dict[str, dict[str, Any]] = {name: {} for name in sources}
        for mode in MODES:
            measured = real.run(mode).step_s
            for name, costs in sources.items():
                predicted = predicted_s(case, mode, costs)
                out[name][mode.value.lower()] = {
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
        found = measure(case, steps)
        samples |= found
        print(found, flush=True)
    path = results_file.write(
        "timed_validation", samples=samples, figures=figures(samples), note=NOTE
    )
    print(*(f"{name}: {x}" for name, x in figures(samples).items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
