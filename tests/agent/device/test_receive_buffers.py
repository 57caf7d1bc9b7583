"""Memory for received tensors: used again when nobody refers to it, never before."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_agent.device.receive_buffers import MIN_BYTES, ReceiveMemory
from bamboo_agent.transport.wire import tensor_bytes

SIZE = MIN_BYTES


def take(memory: ReceiveMemory, size: int = SIZE) -> torch.Tensor:
    return memory.take([size], torch.uint8)


def test_memory_that_nobody_refers_to_is_used_again():
    memory = ReceiveMemory()
    first = take(memory)
    place = first.data_ptr()
    second = take(memory)
    assert second.data_ptr() != place
    del first
    assert take(memory).data_ptr() == place


HOLDERS = {
    "view": lambda tensor: tensor[10:20],
    "other dtype": lambda tensor: tensor.view(torch.float32),
    "bytes": tensor_bytes,
    "what a group gets": lambda tensor: torch.frombuffer(tensor_bytes(tensor), dtype=torch.uint8),
    "detached": lambda tensor: tensor.detach(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_something_refers_to_is_not_used_again(holder):
    memory = ReceiveMemory()
    tensor = take(memory)
    place = tensor.data_ptr()
    held = HOLDERS[holder](tensor)
    del tensor
    assert take(memory).data_ptr() != place
    del held
    assert place in [take(memory).data_ptr(), take(memory).data_ptr()]


def test_memory_comes_back_from_any_thread():
    memory = ReceiveMemory()
    tensors = [take(memory) for _ in range(8)]
    places = {tensor.data_ptr() for tensor in tensors}
    threads = [threading.Thread(target=tensors.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = [take(memory) for _ in range(8)]
    assert {tensor.data_ptr() for tensor in again} == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [[], [0], [3, 0, 2], [7], [3, 5], [1 << 10, 1 << 10]])
def test_tensors_are_like_new_ones(shape, dtype):
    memory = ReceiveMemory()
    for _ in range(2):
        made, new = memory.take(shape, dtype), torch.empty(shape, dtype=dtype)
        assert (made.shape, made.dtype, made.stride()) == (new.shape, new.dtype, new.stride())
        assert made.data_ptr() % 64 == new.data_ptr() % 64
        made.zero_()
        assert torch.equal(made, torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("shape", [[-1], [1 << 62], [1 << 45], ["2"], [1.5]])
def test_an_impossible_shape_is_the_error_of_torch(shape):
    with pytest.raises((RuntimeError, TypeError)):
        ReceiveMemory().take(shape, torch.float32)


def test_little_memory_lies_unused_and_the_oldest_size_goes_first():
    memory = ReceiveMemory(kept_bytes=3 * SIZE)
    old = take(memory, SIZE)
    new = take(memory, 2 * SIZE)
    place = new.data_ptr()
    del old
    take(memory, 3 * SIZE)  # counts the old one, and comes back at once
    del new
    other = take(memory, 4 * SIZE)
    assert memory.unused_bytes == 2 * SIZE
    assert take(memory, 2 * SIZE).data_ptr() == place
    assert memory.unused_bytes == 0
    assert other.nbytes == 4 * SIZE  # it has not come back, or there would be no room for the rest


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, SIZE, SIZE + 1, 3 * SIZE]))))
def test_no_two_tensors_ever_share_memory(steps):
    """Each step drops a tensor, if there is one at this place, and takes another."""
    memory = ReceiveMemory(kept_bytes=4 * SIZE)
    alive: dict[int, tuple[int, torch.Tensor]] = {}
    for number, (place, size) in enumerate(steps):
        alive.pop(place, None)
        alive[place] = number, take(memory, size).fill_(number % 251)
        for written, tensor in alive.values():
            assert bool((tensor == written % 251).all())
        assert memory.unused_bytes <= 4 * SIZE


@pytest.mark.parametrize(
    "shape", [[-4, -MIN_BYTES], [-1], [1.5, MIN_BYTES], ["a", 3], [1 << 70], [None]]
)
def test_a_shape_that_is_none_gets_no_memory(shape):
    memory = ReceiveMemory()
    with pytest.raises((RuntimeError, TypeError, OverflowError)):
        memory.take(shape, torch.uint8)
    assert memory.unused_bytes == 0
