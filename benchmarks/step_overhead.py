"""What a step costs besides computation: the executor, the transport, the canonical sum.

    python benchmarks/step_overhead.py [--pairs 15]

Three comparisons, each in interleaved pairs of a few steps, with one thread per process.
executor_over_loop: one agent, divided by a plain training loop. over_torch_pipelining: two agents
on tcp, divided by torch.distributed.pipelining (1F1B, gloo). canonical_over_fast: two pipelines of
two stages, with the leaves and chunks of every new job, divided by the same with one leaf for each
pipeline, as in a plain program.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from bamboo_agent.data.batches import Data
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.user_code import build_model
from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    OptimizerSpec,
    PipelinesSpec,
    TrainingSpec,
    WorkerSpec,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape, choose
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Progress
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.workers import plans
from bamboo_sim.workers.fleet import CPU, WorkerFleet
from bamboo_sim.workers.in_process_fleet import InProcessFleet
from bamboo_sim.workers.process_fleet import ProcessFleet
from bamboo_sim.workers.torch_pipeline import TorchPipeline

STEPS = 3  # of a segment; the first one is not counted
MODEL = {"layers": 4, "width": 128, "heads": 4, "context": 64, "dropout": 0.1}
MICROBATCHES, SIZE = 8, 8
NOTE = (
    f"samples: seconds of {STEPS - 1} steps (ours, theirs); figures: median ratio and quartiles;"
    f" goals 1.05, 1.05, 1.02; GPT {MODEL}, byte vocabulary, {MICROBATCHES} micro-batches of {SIZE}"
)


def job() -> JobSpec:
    return JobSpec(
        model=ModelSpec("bamboo_agent.models.gpt:build", MODEL),
        data=DataSpec("bamboo_agent.datasets.text:build", {"context": MODEL["context"]}),
        training=TrainingSpec(
            steps=1_000_000,
            global_batch_size=MICROBATCHES * SIZE,
            micro_batch_size=SIZE,
            optimizer=OptimizerSpec("torch.optim:AdamW", {"lr": 1e-3, "weight_decay": 0.1}),
        ),
        pipelines=PipelinesSpec(1, 1),
        worker=WorkerSpec("none"),
        seed=1,
    )


class Segments:
    """A fleet of workers that trains a few steps at a time: one plan for each segment."""

    def __init__(self, fleet: WorkerFleet, *, pipelines: int, stages: int, layers: int):
        self._fleet, self._layers = fleet, layers
        self._job = plans.grid_of(job(), pipelines=pipelines, stages=stages)
        self._epoch, self._done = 0, 0
        self._plan: Plan | None = None

    def run(self, batch: BatchShape) -> float:
        """Seconds of the counted steps of one segment."""
        self._epoch += 1
        fence = Fence(0, 1, self._epoch)
        reports = self._fleet.stop(fence)
        self._done += STEPS
        training = replace(self._job.training, steps=self._done)
        decision = plans.decide(
            replace(self._job, training=training),
            fence=fence,
            layers=self._layers,
            reports=reports,
            batch=batch,
            before=self._plan,
            peers=getattr(self._fleet, "peers", ()),
        )
        self._plan = decision.plan
        sent = len(self._fleet.messages)
        self._fleet.install(decision)
        self._fleet.run_to_end(fence)
        return self._seconds(sent, decision.plan)

    def _seconds(self, sent: int, plan: Plan) -> float:
        last: AgentId | None = plan.pipelines[0][-1]
        spent = {
            m.commit.step: m.step_s
            for agent, m in self._fleet.messages[sent:]
            if isinstance(m, Progress) and agent == last
        }
        counted = range(self._done - STEPS + 1, self._done)
        return sum(spent[step] for step in counted)


class PlainLoop:
    """A plain PyTorch training loop."""

    def __init__(self) -> None:
        spec = job()
        self._model, self._data = build_model(spec.model, seed=spec.seed), Data(spec, CPU)
        self._module = torch.nn.Sequential(*(build() for build in self._model.layers))
        parameters = self._module.parameters()
        self._optimizer = torch.optim.AdamW(parameters, **spec.training.optimizer.args)
        self._step = 0

    def run(self) -> float:
        """Seconds of the counted steps of one segment."""
        self._train()
        started = time.perf_counter()
        for _ in range(STEPS - 1):
            self._train()
        return time.perf_counter() - started

    def _train(self) -> None:
        for m in range(MICROBATCHES):
            x, y = self._data.training(self._step, m)
            loss = self._model.loss(self._module(x), y) / MICROBATCHES
            torch.autograd.backward(loss)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step += 1


def pairs_of(
    count: int, first: Callable[[], float], second: Callable[[], float]
) -> list[tuple[float, float]]:
    """Run interleaved pairs that alternate which call goes first, after one pair to warm up."""
    first(), second()
    pairs = []
    for i in range(count):
        if i % 2:
            b = second()
            pairs.append((first(), b))
        else:
            pairs.append((first(), second()))
    return pairs


def executor_over_loop(count: int) -> list[tuple[float, float]]:
    fleet = InProcessFleet(job(), plans.names(1))
    ours = Segments(fleet, pipelines=1, stages=1, layers=fleet.layers)
    batch, loop = BatchShape(MICROBATCHES, 1, 1), PlainLoop()
    pairs = pairs_of(count, lambda: ours.run(batch), loop.run)
    fleet.close()
    return pairs


@contextmanager
def processes(*, pipelines: int, stages: int) -> Iterator[Segments]:
    fleet = ProcessFleet(job(), plans.names(pipelines * stages))
    try:
        layers = fleet.ready().layers
        yield Segments(fleet, pipelines=pipelines, stages=stages, layers=layers)
    finally:
        fleet.close()


def over_torch_pipelining(count: int) -> list[tuple[float, float]]:
    layers = int(MODEL["layers"]) + 2
    cut = ((0, layers // 2), (layers // 2, layers))
    with tempfile.TemporaryDirectory() as folder, processes(pipelines=1, stages=2) as ours:
        theirs = TorchPipeline(job(), cut, f"{folder}/store")
        batch = BatchShape(MICROBATCHES, 1, 1)
        pairs = pairs_of(count, lambda: ours.run(batch), lambda: sum(theirs.run(STEPS)[1:]))
        theirs.close()
    return pairs


def canonical_over_fast(count: int) -> list[tuple[float, float]]:
    canonical = choose(microbatches=MICROBATCHES, pipelines_max=2)
    fast = BatchShape(MICROBATCHES, MICROBATCHES // 2, 2)
    with processes(pipelines=2, stages=2) as ours:
        return pairs_of(count, lambda: ours.run(canonical), lambda: ours.run(fast))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=arguments.at_least(2), default=15)
    count = parser.parse_args().pairs
    make_deterministic()
    comparisons = (executor_over_loop, over_torch_pipelining, canonical_over_fast)
    samples: dict[str, list[tuple[float, float]]] = {}
    figures: dict[str, float] = {}
    for compare in comparisons:
        name = compare.__name__
        pairs = compare(count)
        found = results_file.ratios(pairs)
        samples[name] = [(round(a, 4), round(b, 4)) for a, b in pairs]
        figures |= {name: found["median"], **{f"{name}_{k}": found[k] for k in ("p25", "p75")}}
        print(name, found, flush=True)
    path = results_file.write("step_overhead", samples=samples, figures=figures, note=NOTE)
    print(path)


if __name__ == "__main__":
    main()
