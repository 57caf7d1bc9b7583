"""Measure how long agents wait for their programs after the loss of an agent.

    python benchmarks/planning.py

A grid loses one agent in the middle of a step. Processor time of one thread, from the loss seen to
the directives of the rest of the step (``resume``) ready: the arbiter's events, the plan, the
programs and their dry run. The programs of the later steps follow; agents do not wait for them.
``_gc`` is the same with Python's garbage collector on, which the operator turns off meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    ComputePlan,
    Connected,
    DesiredState,
    Effect,
    Event,
    Lost,
    Persist,
    Persisted,
    Planned,
    Received,
    Send,
    Timing,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item, Kind
from bamboo_core.placement.plan import layers_of
from bamboo_core.planning import planner
from bamboo_core.planning.requests import Continuations, Decision, PlanResult
from bamboo_core.protocol.messages import (
    AgentReport,
    CommitRecord,
    Continuation,
    Directive,
    Fingerprint,
    Hello,
    LayerCost,
    Progress,
    Ready,
    Stop,
)
from bamboo_core.scheduling import dry_run
from bamboo_core.scheduling.costs import Costs
from bamboo_operator.process import gc_pause
from bamboo_sim.programs import arguments, results_file

STAGES, STEP = 8, 3
COST = LayerCost(1.0, 2.0, 1, 1, input_gradient_s=1.0, weight_gradient_s=1.0, can_split=True)


@dataclass(frozen=True)
class Grid:
    """D pipelines of 8 stages, M micro-batches each."""

    pipelines: int
    microbatches: int

    @property
    def agents(self) -> list[AgentId]:
        return [AgentId(f"a-{d}-{s}") for d in range(self.pipelines) for s in range(STAGES)]

    @property
    def job(self) -> ArbiterJob:
        spec = JobSpec(
            model=ModelSpec("model:make"),
            data=DataSpec("data:make"),
            training=TrainingSpec(
                steps=1000,
                global_batch_size=self.pipelines * self.microbatches,
                micro_batch_size=1,
                optimizer=OptimizerSpec("optim:make"),
            ),
            pipelines=PipelinesSpec(count=self.pipelines, stages=STAGES),
            worker=WorkerSpec("image"),
        )
        return ArbiterJob("ns/job", "uid", spec, "{}", Timing(join_grace_s=0.0))


class Operator:
    """An arbiter whose facts are durable at once. ``sent``: what agents were sent last."""

    def __init__(self, grid: Grid) -> None:
        self.arbiter = Arbiter(grid.job, Durable(), 1)
        self.sent: dict[AgentId, object] = {}
        self.wanted: ComputePlan | None = None

    def tell(self, event: Event) -> None:
        """Handle an event and what follows from it."""
        for effect in self.arbiter.handle(event, 0.0):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Persist):
            self.tell(Persisted(effect.version))
        elif isinstance(effect, ComputePlan):
            self.wanted = effect
        elif isinstance(effect, Send):
            self.sent[effect.agent] = effect.message

    def report(self, reports: dict[AgentId, AgentReport]) -> ComputePlan:
        """All agents answer the newest STOP; what the planner is asked."""
        self.wanted = None
        for agent, report in reports.items():
            self.tell(Received(agent, report))
        assert self.wanted is not None
        return self.wanted

    def plan(self, wanted: ComputePlan, results: Iterator[PlanResult]) -> PlanResult:
        """Compute the next part of the plan and send it."""
        result = next(results)
        self.tell(Planned(wanted.id, result))
        return result


def start(grid: Grid) -> tuple[Operator, Decision, Continuations]:
    """All agents run the job's first plan."""
    operator = Operator(grid)
    operator.tell(DesiredState(grid.pipelines, expected=frozenset(grid.agents)))
    for agent in grid.agents:
        place = f"{agent}:1"
        zone = f"z{sum(map(int, agent.split('-')[1:])) % 8}"
        operator.tell(Connected(Hello(agent, agent, agent, zone, agent, place, place), b"key"))
        ready = Ready(Fingerprint(), STAGES, 1 << 30, 0, (COST,) * STAGES)
        operator.tell(Received(agent, ready))
    fence = operator.arbiter.fence
    wanted = operator.report({a: AgentReport(fence, Fence(), {}, frozenset()) for a in grid.agents})
    results = planner.compute(wanted.request)
    decision, rest = operator.plan(wanted, results), operator.plan(wanted, results)
    assert isinstance(decision, Decision)
    assert isinstance(rest, Continuations)
    commit = CommitRecord(STEP - 1)
    operator.tell(Received(grid.agents[0], Progress(commit)))
    return operator, decision, rest


def halfway(grid: Grid, decision: Decision, rest: Continuations) -> dict[AgentId, set[Item]]:
    """Items that agents hold in the middle of an undisturbed step, with steps relative to it."""
    plan = decision.plan
    held = {
        a: [Item.commit(-1), *(Item.ver(0, x) for x in layers_of(ranges))]
        for a, ranges in plan.wants.items()
    }
    programs = {a: c.steady for a, c in rest.directives.items()}
    costs = Costs.measured((COST,) * STAGES)
    found, _ = dry_run.stopped(
        programs,
        until=1.5 * (grid.microbatches + STAGES),  # of 3 per micro-batch
        batch=plan.batch,
        layers=STAGES,
        holdings=held,
        costs=costs,
    )
    return found


def reported(fence: Fence, installed: Fence, held: set[Item]) -> AgentReport:
    """The report of an agent that holds these items."""
    versions = {i.lo: i.step + STEP for i in held if i.kind is Kind.VER}
    items = {i._replace(step=i.step + STEP) for i in held if i.kind is not Kind.VER}
    return AgentReport(
        fence, installed, versions, frozenset(items), (CommitRecord(STEP - 1),), STEP - 1
    )


def measure(grid: Grid, *, pauses_gc: bool) -> dict[str, float]:
    """Seconds of one loss."""
    operator, decision, rest = start(grid)
    held = halfway(grid, decision, rest)
    victim = decision.plan.pipelines[grid.pipelines // 2][STAGES // 2]
    assert victim is not None
    gc.collect()
    with gc_pause.paused() if pauses_gc else nullcontext():
        began = time.process_time()
        operator.tell(Lost(victim, True, "killed"))
        stopped = time.process_time()
        stop = operator.sent[decision.plan.coordinator]
        assert isinstance(stop, Stop)
        installed = decision.plan.fence
        reports = {a: reported(stop.fence, installed, x) for a, x in held.items() if a != victim}
        reports_begin = time.process_time()
        wanted = operator.report(reports)
        asked = time.process_time()
        results = planner.compute(wanted.request)
        resumed = operator.plan(wanted, results)
        directed = time.process_time()
        assert isinstance(resumed, Decision)
        assert isinstance(operator.sent[resumed.plan.coordinator], Directive)
        operator.plan(wanted, results)
        done = time.process_time()
    assert isinstance(operator.sent[resumed.plan.coordinator], Continuation)
    return {
        "arbiter_s": round(asked - reports_begin + stopped - began, 4),
        "resume_s": round(directed - reports_begin + stopped - began, 4),
        "continuations_s": round(done - directed, 4),
    }


def main() -> None:
    """Measure, write the file, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=arguments.at_least(1), default=5)
    repeats = parser.parse_args().repeats
    samples: dict[str, dict[str, list[float]]] = {}
    figures: dict[str, float] = {}
    for name, grid in {"d8_p8_m64": Grid(8, 64), "512_agents": Grid(64, 32)}.items():
        pairs = [
            (measure(grid, pauses_gc=True), measure(grid, pauses_gc=False)) for _ in range(repeats)
        ]
        samples[name] = results_file.columns([quiet for quiet, _ in pairs])
        samples[f"{name}_gc"] = results_file.columns([noisy for _, noisy in pairs])
        figures[f"plan_{name}_s"] = statistics.median(samples[name]["resume_s"])
        figures[f"continuations_{name}_s"] = statistics.median(samples[name]["continuations_s"])
        slower = [noisy["resume_s"] / quiet["resume_s"] for quiet, noisy in pairs]
        figures[f"plan_{name}_gc_ratio"] = round(statistics.median(slower), 2)
    path = results_file.write("planning", samples=samples, figures=figures)
    print(*(f"{name}: {value}" for name, value in figures.items()), f"-> {path}", sep="\n")


if __name__ == "__main__":
    main()
