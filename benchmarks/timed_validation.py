"""The timed back end against real agents: predicted over measured times of a step.

    python benchmarks/timed_validation.py [--steps 8]

Real workers in processes over tcp, with the production planner. sleeping: layers that sleep for
declared times, so that a busy machine disturbs little. kernels: a GPT on two CPU workers, so both
cores must be free. Its layers' costs are measured by the workers at their start, when nothing else
computes, or (in_steps) scaled for each step so that each worker computes as long as it said that it
did in this step: both cores share caches and memory, and a shared machine is faster at times. Then
the schedule alone is predicted. A measured step is the mean of one run, as its last agent reports
it. Kernels run in rounds, each with a run of each mode; ratios are medians over rounds. Beside it,
for kernels: what Replica and Eager cost, measured and predicted. Links, sums and updates of weights
cost nothing in predictions: with kernels on two busy cores a message takes some 10 ms, so their
micro-batches are large. interrupted: the step in which a worker of a pipeline of sleeping layers is
killed, from commit to commit; the time that its plan took is declared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
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
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.timed.declared import Delays, TimedJob
from bamboo_sim.timed.measured import lose, undisturbed, warm
from bamboo_sim.workers import plans
from bamboo_sim.workers.process_fleet import ProcessFleet

CONTEXT, MICROBATCHES, WARM = 64, 8, 2
LAYER = LayerCost(0.04, 0.08, parameter_bytes=4 * CONTEXT, output_bytes=4 * CONTEXT)
SLEEPING = ModelSpec(
    "bamboo_sim.workers.sleeping:build",
    {"layers": 8, "width": CONTEXT, "forward_s": LAYER.forward_s, "backward_s": LAYER.backward_s},
)
GPT = ModelSpec(
    "bamboo_agent.models.gpt:build",
    {"layers": 6, "width": 256, "heads": 4, "context": CONTEXT, "dropout": 0.0},
)
MODES = (RedundancyMode.NONE, RedundancyMode.REPLICA, RedundancyMode.EAGER)
NOTE = (
    "predicted over measured seconds of a step (the mean of a run), median over rounds; in a round "
    "each mode runs once; loopback, sums of gradients and updates of weights are not predicted"
)


@dataclass(frozen=True)
class Case:
    """One fleet of workers, which trains in each of the modes."""

    name: str
    model: ModelSpec
    pipelines: int
    stages: int
    samples: int  # of a micro-batch
    costs: tuple[LayerCost, ...] = ()  # declared; empty: as the workers measure them
    rounds: int = 1  # runs of each mode, in turn


CASES = (
    Case("sleeping_d1_p2", SLEEPING, 1, 2, 1, (LAYER,) * 8),
    Case("sleeping_d1_p4", SLEEPING, 1, 4, 1, (LAYER,) * 8),
    Case("sleeping_d2_p2", SLEEPING, 2, 2, 1, (LAYER,) * 8),
    Case("kernels_d1_p2", GPT, 1, 2, 48, rounds=3),
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
            optimizer=OptimizerSpec("torch.optim:AdamW", {"lr": 1e-3}),
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

    def seconds(self, step: int) -> float:
        """Time of a step, as the last agent reports it."""
        last = Coordinate(0, len(self.plan.cut) - 1)
        return self._of(next(a for a, x in self.plan.seats.items() if x == last), step).step_s

    def costs(self, step: int, known: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
        """The known costs, scaled so that each agent computes as long as it said of the step."""
        costs = list(known)
        for agent, seat in self.plan.seats.items():
            lo, hi = self.plan.cut[seat.stage]
            usual_s = MICROBATCHES * sum(x.forward_s + x.backward_s for x in costs[lo:hi])
            factor = self._of(agent, step).busy_s / usual_s
            costs[lo:hi] = [
                replace(x, forward_s=x.forward_s * factor, backward_s=x.backward_s * factor)
                for x in costs[lo:hi]
            ]
        return tuple(costs)

    def _of(self, agent: AgentId, step: int) -> Progress:
        return next(m for a, m in self.said if a == agent and m.commit.step == step)


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


def measure(case: Case, steps: int) -> dict[str, list[dict[str, Any]]]:
    """By case, or source of its costs, the rounds: by mode, seconds predicted and measured."""
    real = Real(case, steps)
    out: dict[str, list[dict[str, Any]]] = {}
    try:
        for _ in range(case.rounds):
            runs = {mode: real.run(mode) for mode in MODES}
            sources = {case.name: False} | ({} if case.costs else {f"{case.name}_in_steps": True})
            for name, is_of_step in sources.items():
                found = {}
                for mode, run in runs.items():
                    costs = [
                        run.costs(x, real.costs) if is_of_step else real.costs for x in run.steps
                    ]
                    predicted = statistics.mean(predicted_s(case, mode, x) for x in costs)
                    found[mode.value.lower()] = {
                        "predicted_s": round(predicted, 4),
                        "measured_s": round(statistics.mean(map(run.seconds, run.steps)), 4),
                    }
                out.setdefault(name, []).append(found)
        return out
    finally:
        real.close()


LOSSES = {"pipelines": 1, "stages": 4, "stage": 1}
FRACTIONS = (0.2, 0.4, 0.6, 0.8)
"""Of a step, when a worker is killed."""


def interrupted(mode: RedundancyMode, fraction: float) -> dict[str, float]:
    """Seconds of a step in which a worker is killed, predicted and measured."""
    case = Case("interrupted", SLEEPING, LOSSES["pipelines"], LOSSES["stages"], 1, (LAYER,) * 8)
    job = spec(case, mode, 1_000_000)
    fleet = ProcessFleet(job, plans.names(case.pipelines * case.stages))

    def decide(epoch: int, before: Plan | None) -> plans.Decided:
        fence = Fence(0, 1, epoch)
        return plans.decide(
            job,
            fence=fence,
            layers=len(case.costs),
            reports=fleet.stop(fence),
            batch=batch_shape(job),
            before=before,
            peers=fleet.peers,
            costs=case.costs,
        )

    def committed(step: int) -> float:
        fleet.wait(
            lambda: any(
                isinstance(m, Progress) and m.commit.step == step for _, m in fleet.messages
            )
        )
        return time.monotonic()

    try:
        fleet.ready()
        first = decide(1, None)
        fleet.install(first)
        start = committed(WARM)
        timed = TimedJob(case.pipelines, case.stages, MICROBATCHES, case.costs, mode)
        kill_s = fraction * undisturbed(timed).step_s
        time.sleep(max(0.0, start + kill_s - time.monotonic()))
        victim = next(a for a, x in first.plan.seats.items() if x == Coordinate(0, LOSSES["stage"]))
        fleet.kill(victim)
        killed = time.monotonic()
        fleet.install(decide(2, first.plan))
        decision_s = time.monotonic() - killed
        end = committed(WARM + 1)
    finally:
        fleet.close()
    run = warm(replace(timed, delays=Delays(decision_s=decision_s)))
    found = lose(run, pipeline=0, stage=LOSSES["stage"], fraction=fraction)
    return {
        "fraction": fraction,
        "decision_s": round(decision_s, 4),
        "predicted_s": round(found.step_s + found.pause_s, 4),
        "measured_s": round(end - start, 4),
    }


Seconds = tuple[str, str]  # of a round: which mode, predicted_s or measured_s


def median_ratio(rounds: Sequence[dict[str, Any]], above: Seconds, below: Seconds) -> float:
    """The median over rounds of one time over another."""
    ratios = [float(x[above[0]][above[1]] / x[below[0]][below[1]]) for x in rounds]
    return round(statistics.median(ratios), 4)


def figures(
    samples: dict[str, list[dict[str, Any]]], losses: dict[str, list[dict[str, float]]]
) -> dict[str, float]:
    """Ratios; of kernels also what a mode costs."""
    names = [mode.value.lower() for mode in MODES]
    out = {
        f"interrupted_{mode}": round(
            statistics.median(x["predicted_s"] / x["measured_s"] for x in found), 4
        )
        for mode, found in losses.items()
    }
    out |= {
        f"{name}_{mode}": median_ratio(rounds, (mode, "predicted_s"), (mode, "measured_s"))
        for name, rounds in samples.items()
        for mode in names
    }
    for mode in names[1:]:
        for kind in ("predicted", "measured"):
            seconds = f"{kind}_s"
            out[f"kernels_{mode}_over_none_{kind}"] = median_ratio(
                samples["kernels_d1_p2_in_steps"], (mode, seconds), ("none", seconds)
            )
    return out


def main() -> None:
    """Measure, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=arguments.at_least(1), default=8, help="of each run")
    steps = parser.parse_args().steps
    samples: dict[str, list[dict[str, Any]]] = {}
    for case in CASES:
        rounds = measure(case, steps)
        samples |= rounds
        print(rounds, flush=True)
    losses = {
        mode.value.lower(): [interrupted(mode, fraction) for fraction in FRACTIONS]
        for mode in MODES[1:]
    }
    print(losses, flush=True)
    found = figures(samples, losses)
    path = results_file.write(
        "timed_validation", samples={**samples, "interrupted": losses}, figures=found, note=NOTE
    )
    print(*(f"{name}: {x}" for name, x in found.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
