"""The chain of layers, which is run through before any agent starts."""

from __future__ import annotations

import torch

from bamboo_agent.local import chain
from bamboo_sim.workers.jobs import tiny_gpt


def test_what_runs_next_is_said_before_it_can_end_the_process() -> None:
    said = list[str]()
    spec = tiny_gpt()
    layers = list(chain.run_through(spec, torch.device("cpu"), said.append))
    assert said[:3] == [
        f"spec.model.factory {spec.model.factory}",
        f"spec.data.factory {spec.data.factory}, its first samples",
        "layer 0",
    ]
    names = [f"layer {layer.index}, {layer.name}" for layer in layers[1:]]
    assert said[3::2] == names
