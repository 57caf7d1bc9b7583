"""Measure whether models of libraries, cut into layers, end with equal weights on all grids.

    python benchmarks/models.py [MODEL ...]

The paper's six models, small, and three kinds of language models of a library. Each is trained on
1x1, 2x2 and 3x2 (pipelines x stages). Agents are processes that talk over tcp. Where there are
several, one gets SIGKILL in the second step and the others go on; then all get SIGKILL, and new
ones restore a checkpoint. ``models``: those trained. ``jobs``: their runs. ``unequal``: runs whose
last checkpoint differs in a bit from a plain loop of the same layers. ``worst_gradient_error``: of
the layers' gradient in fp32, over its length, from that of the library's whole model with the same
weights, without dropout; the largest of all models but GNMT, which no library has. With names,
only these run, and nothing is written.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.local.plain_loop import PlainLoop
from bamboo_agent.models import torchvision
from bamboo_agent.models.zoo import LIBRARY, TINY, Entry
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.payloads.kinds import LayerRecord
from bamboo_agent.payloads.plain_values import have_equal_bits
from bamboo_agent.setup.determinism import make_deterministic
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.storage.checkpoint import Checkpoints
from bamboo_agent.user_code import build_model, call_factory
from bamboo_core.api.spec import (
    DataSpec,
    JobSpec,
    ModelSpec,
    RedundancyMode,
    RedundancySpec,
    batch_shape,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Manifest, Sealed
from bamboo_sim.programs import results_file
from bamboo_sim.workers import plans, process_fleet
from bamboo_sim.workers.jobs import tiny_gpt
from bamboo_sim.workers.process_fleet import ProcessFleet

STEPS = 4
MICROBATCHES = 8
GRIDS = ((1, 1), (2, 2), (3, 2))
ENTRIES = {**TINY, **LIBRARY}
DEADLINE_S = 400.0  # processors that do other work
LOADED = ["torchvision.models", "transformers.models.auto.modeling_auto"]


class Run:
    """A job on a grid, in agents that restore what those before have left."""

    def __init__(self, folder: Path, entry: Entry, pipelines: int, stages: int) -> None:
        job = tiny_gpt(steps=STEPS, uri=str(folder), save_every=1, keep=9)
        mode = RedundancyMode.REPLICA if stages > 1 else RedundancyMode.NONE
        size = entry.micro_batch
        training = replace(
            job.training,
            global_batch_size=size * MICROBATCHES,
            micro_batch_size=size,
            validate_every=0,
        )
        job = replace(
            job,
            model=ModelSpec(entry.model.factory, entry.model.args),
            data=DataSpec(entry.data.factory, entry.data.args),
            training=training,
            redundancy=RedundancySpec(mode),
        )
        self.job: JobSpec = plans.grid_of(job, pipelines=pipelines, stages=stages)
        self._names = plans.names(pipelines * stages)

    def train(self) -> list[LayerRecord]:
        """Through a loss and a restore. The layers of the last checkpoint."""
        with self._fleet() as fleet:
            first = self._plan(fleet, Fence(0, 1, 1))
            manifest = self._sealed(fleet, 1)
            if len(first.live) > 1:
                fleet.kill(first.live[len(first.live) // 2])
                self._plan(fleet, Fence(0, 1, 2), before=first)
                manifest = self._sealed(fleet, 2)
        with self._fleet() as fleet:
            plan = self._plan(fleet, Fence(1, 1, 3), manifest=manifest)
            fleet.run_to_end(Fence(1, 1, 3))
            last = self._sealed(fleet, STEPS)
        assert self.job.checkpoint is not None
        checkpoints = Checkpoints(self.job.checkpoint.uri, "uid")
        return [checkpoints.read_layer(last, layer) for layer in range(plan.layers)]

    def _fleet(self) -> _Fleet:
        return _Fleet(self.job, self._names)

    def _plan(
        self,
        fleet: ProcessFleet,
        fence: Fence,
        before: Plan | None = None,
        manifest: Manifest | None = None,
    ) -> Plan:
        ready = fleet.ready()
        decided = plans.decide(
            self.job,
            fence=fence,
            layers=ready.layers,
            reports=fleet.stop(fence),
            batch=batch_shape(self.job),
            before=before,
            manifest=manifest,
            peers=fleet.peers,
            ties=tuple(tie.layers for tie in ready.ties),
        )
        fleet.install(decided)
        return decided.plan

    @staticmethod
    def _sealed(fleet: ProcessFleet, step: int) -> Manifest:
        """Wait for a checkpoint of this step or a later one."""

        def found() -> list[Manifest]:
            sealed = [m.manifest for _, m in fleet.messages if isinstance(m, Sealed)]
            return [m for m in sealed if m.step >= step]

        fleet.wait(lambda: bool(found()))
        return found()[-1]


class _Fleet(ProcessFleet):
    """All its agents get SIGKILL at the end."""

    deadline_s = DEADLINE_S

    def __enter__(self) -> _Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in [*self.agents()]:
            self.kill(agent)
        self.close()


def plain(job: JobSpec) -> list[LayerRecord]:
    """The layers that a plain loop ends with."""
    setup: TrainingSetup = build_setup(AgentId("plain-loop"), job, torch.device("cpu"))[0]
    loop = PlainLoop(setup, batch_shape(job))
    for _ in loop.run(STEPS):
        pass
    return [loop.record(layer) for layer in range(len(setup.model.layers))]


def differs(ours: list[LayerRecord], theirs: list[LayerRecord]) -> bool:
    """Whether a bit of a tensor, or a value beside them, is another."""
    for one, two in zip(ours, theirs, strict=True):
        if one.tensors.keys() != two.tensors.keys() or one.extra != two.extra:
            return True
        if not all(have_equal_bits(one.tensors[name], two.tensors[name]) for name in one.tensors):
            return True
    return False


def gradient_error(entry: Entry) -> float:
    """How far the gradient of the layers is from the library's."""
    model = build_model(entry.model, seed=1)
    layers = [build().train() for build in model.layers]
    whole = _without_values(entry).to_empty(device="cpu").train()
    for module in (m for part in (whole, *layers) for m in part.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for (first, source), (last, name) in model.ties:
        value = layers[first].get_parameter(source)
        layers[last].get_parameter(name).data.copy_(value.data)
    state = {n: t for part in layers for n, t in part.state_dict().items()}
    whole.load_state_dict(state)
    batch = default_collate([call_factory(entry.data, seed=1)[i] for i in range(8)])
    if isinstance(batch, dict):
        target = batch.pop("labels")
        loss = whole(**batch, labels=target).loss
    else:
        batch, target = batch
        loss = model.loss(whole(batch), target)
    torch.autograd.backward(loss)
    values = Flow.of(batch)
    for layer in layers:
        values = Flow.of(layer(*values.arguments))
    found = model.loss(values.value, target)
    torch.autograd.backward(found[0] / found[1] if isinstance(found, tuple) else found)
    ours = {n: p.grad for part in layers for n, p in part.named_parameters() if p.grad is not None}
    for (_, source), (_, name) in model.ties:
        ours[source] = ours[source] + ours.pop(name)
    theirs = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys()
    far = sum(float((ours[n].double() - theirs[n].double()).square().sum()) for n in ours)
    return float((far / sum(float(g.double().square().sum()) for g in theirs.values())) ** 0.5)


def _without_values(entry: Entry) -> Any:
    arguments = entry.model.args
    if "config" not in arguments:
        return torchvision.skeleton(**arguments)
    import transformers

    kinds: Any = transformers
    config = kinds.AutoConfig.for_model(**arguments["config"])
    is_causal = arguments["task"] == "causal"
    kind = kinds.AutoModelForCausalLM if is_causal else kinds.AutoModelForMaskedLM
    found = kind.from_config(config, attn_implementation="sdpa")
    found.to_empty = lambda device: found  # buffers that are in no state keep their values
    return found


def main() -> None:
    """Run all models, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[[], *ENTRIES])
    chosen = parser.parse_args().models
    make_deterministic()
    process_fleet.PRELOADED.extend(LOADED)
    unequal: list[str] = []
    errors: dict[str, float] = {}
    names = chosen or [*ENTRIES]
    for name in names:
        entry = ENTRIES[name]
        if name != "gnmt":
            errors[name] = gradient_error(entry)
        right: list[LayerRecord] = []
        for pipelines, stages in GRIDS:
            with tempfile.TemporaryDirectory() as folder:
                run = Run(Path(folder), entry, pipelines, stages)
                right = right or plain(run.job)
                is_unequal = differs(run.train(), right)
            told = f"{name} {pipelines}x{stages}"
            unequal += [told] * is_unequal
            print(told, "UNEQUAL" if is_unequal else "equal", errors.get(name, ""), flush=True)
    figures = {
        "models": len(names),
        "jobs": len([*product(names, GRIDS)]),
        "unequal": len(unequal),
        "worst_gradient_error": max(errors.values(), default=0.0),
    }
    print(figures)
    if not chosen:
        samples = {"unequal": unequal, "gradient_error": errors}
        print(results_file.write("models", samples=samples, figures=figures, note=__doc__))
    if unequal:
        raise SystemExit(f"unequal: {', '.join(unequal)}")


if __name__ == "__main__":
    main()
