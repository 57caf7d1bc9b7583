"""docs/models.md: the paper's models at full size, their layers, and their cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from scripts.reference.text import NOTE
from torch import nn
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from bamboo_agent.models.zoo import FULL, Entry
from bamboo_agent.payloads.flow import Flow
from bamboo_agent.user_code import build_model, call_factory
from bamboo_core.placement.partition import split

_STATE_BYTES = 16  # fp32: a weight, its gradient and two moments of AdamW
_G = 1e9


@dataclass(frozen=True)
class Measured:
    """One layer: trainable numbers, floating-point operations of a forward of a micro-batch, and
    bytes that its backward needs."""

    parameters: int
    operations: int
    kept: int


def models_page() -> str:
    """The sizes of all models, and of their stages."""
    lines = [
        "# The paper's models",
        "",
        NOTE,
        "The six models of Bamboo's paper as [layers](library-models.md), computed without memory",
        "for them. A stage costs as many operations as its layers; the partitioner of jobs makes",
        "the most costly one as cheap as it can. (In a job, agents measure the layers' times.)",
        "Memory is that of the fullest agent: fp32 weights, gradients, two moments of AdamW, and",
        "what the backwards of P - s micro-batches need in stage s of P. Attention counts as plain",
        "matrices; fused kernels need less. A tied matrix counts in each of its layers.",
        "",
        "| model | layers | parameters, millions | micro-batch | TFLOP of its forward |",
        "|---|---|---|---|---|",
    ]
    measured = {name: [*_measure(entry)] for name, entry in FULL.items()}
    for name, entry in FULL.items():
        layers = measured[name]
        total = sum(x.parameters for x in layers) / 1e6
        operations = sum(x.operations for x in layers) / 1e12
        lines.append(
            f"| {entry.title} | {len(layers)} | {total:.1f} | {entry.micro_batch} |"
            f" {operations:.2f} |"
        )
    lines += [
        "",
        "## Cuts",
        "",
        "The paper's grids on demand, and with half as many stages again on spot nodes.",
        "`layers`: of each stage. `balance`: the mean stage's cost over the largest one's.",
        "",
        "| model | D x P | layers | balance | memory of the fullest agent, GB |",
        "|---|---|---|---|---|",
    ]
    for name, entry in FULL.items():
        for stages in (entry.stages, entry.spare_stages):
            lines.append(_cut(entry, measured[name], stages))
    return "\n".join(lines) + "\n"


def _cut(entry: Entry, layers: Sequence[Measured], stages: int) -> str:
    ranges = split([float(x.operations) for x in layers], stages)
    costs = [sum(x.operations for x in layers[lo:hi]) for lo, hi in ranges]
    memory = [
        sum(_STATE_BYTES * x.parameters + (stages - stage) * x.kept for x in layers[lo:hi])
        for stage, (lo, hi) in enumerate(ranges)
    ]
    counts = ", ".join(str(hi - lo) for lo, hi in ranges)
    return (
        f"| {entry.title} | {entry.pipelines} x {stages} | {counts} |"
        f" {sum(costs) / stages / max(costs):.2f} | {max(memory) / _G:.1f} |"
    )


def _measure(entry: Entry) -> Iterator[Measured]:
    """Every layer, on the meta device."""
    data = call_factory(entry.data, seed=1)
    batch = default_collate([data[i] for i in range(entry.micro_batch)])
    inputs = {"input_ids": batch["input_ids"]} if isinstance(batch, dict) else batch[0]
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    values = Flow.of(inputs).map(lambda tensor: tensor.to("meta"))
    for build in build_model(entry.model, seed=1).layers:
        with torch.device("meta"):
            layer = build()
        values, found = _run(layer, values)
        yield found


def _run(layer: nn.Module, values: Flow) -> tuple[Flow, Measured]:
    own = {id(p) for p in layer.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    counter = FlopCounterMode(display=False)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.device("meta"), counter, hooks:
        outputs = Flow.of(layer(*values.arguments))
    size = sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    parameters = sum(p.numel() for p in layer.parameters())
    return outputs.map(torch.Tensor.detach), Measured(
        parameters, int(counter.get_total_flops()), size
    )
