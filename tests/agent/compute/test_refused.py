"""What is refused must not hurt what is held."""

from __future__ import annotations

import torch

from bamboo_agent.compute.backend import Backend
from bamboo_agent.payloads.kinds import Slice
from bamboo_agent.setup.factories import build_setup
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.executor import Drop, Executor
from bamboo_core.protocol.messages import Stop
from bamboo_sim.workers.fleet import CPU
from bamboo_sim.workers.jobs import tiny_gpt

AGENT = AgentId("a-0")


def red(part: int) -> Item:
    return Item.red(3, (1, 2), part, 2)


def test_a_refused_slice_leaves_the_others_in_their_buffer() -> None:
    """Found by killing: a late slice of an old epoch took the buffer of the gradient with it."""
    setup, _ = build_setup(AGENT, tiny_gpt(), CPU)
    backend = Backend(setup, lambda layer: (_ for _ in ()).throw(KeyError(layer)), {})
    backend.adopt_batch(BatchShape(2, 1, 2))
    size = setup.sizes[1]
    expected = torch.arange(size, dtype=torch.float32)
    first, second = expected[: size // 2], expected[size // 2 :]
    backend.accept(red(1), Slice(second, {}))
    backend.drop(red(0))
    backend.accept(red(0), Slice(first, {}))
    assert torch.equal(backend.sums.gradient((1, 2), 3, 2).tensor, expected)
    backend.drop(red(0))
    backend.drop(red(1))
    assert not backend.sums._reduced


def test_an_item_that_is_held_outlives_a_late_copy_of_itself() -> None:
    executor = Executor(AGENT, 2)
    executor.stop(Stop(Fence(0, 1, 1)))
    assert executor.arrive(red(0), Fence(0, 1, 1)) == []
    executor.stop(Stop(Fence(0, 1, 2)))
    assert executor.arrive(red(0), Fence(0, 1, 1)) == []
    assert executor.has(red(0))
    assert executor.arrive(red(1), Fence(0, 1, 1)) == [Drop((red(1),))]
