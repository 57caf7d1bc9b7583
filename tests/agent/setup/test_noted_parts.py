"""The set-up notes which part of the user's code it runs: the code may end its process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from bamboo_agent.ipc import computed
from bamboo_agent.ipc.computed import Computed
from bamboo_agent.ipc.shared_progress import SharedProgress
from bamboo_agent.model import Model
from bamboo_agent.setup.factories import build_setup
from bamboo_agent.setup.fingerprint import fingerprint
from bamboo_core.api.spec import DataSpec, ModelSpec
from bamboo_core.model.ids import AgentId
from bamboo_sim.workers.jobs import tiny_gpt

SHARED = SharedProgress.create()
SEEN: set[tuple[str, str]] = set()
"""Which code has run, and what was noted then."""


def see(who: str) -> None:
    SEEN.add((who, computed.read(SHARED.computed)))


class Own(nn.Linear):
    def __init__(self) -> None:
        see("constructor")
        super().__init__(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        see("forward")
        return super().forward(x)


class Data:
    def __init__(self) -> None:
        see("data set")

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        see("sample")
        return torch.ones(2), torch.ones(2)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    see("loss")
    return (output - target).square().mean()


def model() -> Model:
    see("model")
    return Model([lambda: nn.Linear(2, 2), Own], loss)


@pytest.fixture
def seen() -> Iterator[set[tuple[str, str]]]:
    SEEN.clear()
    yield SEEN
    SEEN.clear()


def test_a_set_up_notes_the_factory_and_each_layer(seen: set[tuple[str, str]]) -> None:
    training = replace(tiny_gpt().training, validate_every=0)
    users = ModelSpec(f"{__name__}:model"), DataSpec(f"{__name__}:Data")
    job = replace(tiny_gpt(), model=users[0], data=users[1], training=training)
    made, profile = build_setup(AgentId("a"), job, torch.device("cpu"), Computed(SHARED.computed))
    assert computed.read(SHARED.computed) == ""
    data, layer = f"spec.data.factory {__name__}:Data", "layer 1 (Own)"
    assert seen >= {
        ("model", f"spec.model.factory {__name__}:model"),
        *(("data set", data), ("sample", data)),
        *(("constructor", "layer 1"), ("forward", layer)),
        *(("loss", layer), ("loss", "the loss")),
    }
    assert {noted for who, noted in seen if who == "forward"} == {layer}
    seen.clear()
    fingerprint(job, made, profile)
    data += ", which reads samples all over it"
    assert seen == {("sample", data)}
    assert computed.read(SHARED.computed) == ""
    made.computed.begin_loss()  # training notes it in the same memory
    assert computed.read(SHARED.computed) == "the loss"
    made.computed.end()
