"""Groups of two ranks, the sender 0 and the receiver 1: gloo between CPUs, NCCL between GPUs.

All of these calls may block, so only a :mod:`.pump` makes them, in a thread of its own.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch._C._distributed_c10d import Store

OPERATION_S = 30.0
"""After so long an operation fails. It bounds how long an abandoned thread of gloo stays."""
_POLL_S = 0.0002
_NUMBER_BYTES = 8
_SENDER, _RECEIVER = 0, 1
_dist: Any = torch.distributed  # its stubs lack what backends have
_cuda: Any = torch.cuda
_NCCL_SETTINGS = {
    # a failed group must neither end the process nor wait for its other threads
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class GroupError(RuntimeError):
    """An operation of a group has failed or takes too long."""


class Group(Protocol):
    """One rank of a group. Operations end in the order in which they were posted."""

    def send(self, memory: torch.Tensor) -> Callable[[], None]:
        """Post a send of bytes on the CPU. Call the result to wait until it has ended."""

    def receive(self, memory: torch.Tensor) -> Callable[[], None]:
        """Post a receive into bytes on the CPU. Call the result to wait for them."""

    def discard(self) -> None:
        """End what still runs, as far as the library can."""


@dataclass(frozen=True)
class Recipe:
    """What a group is made of.

    address: of this agent, as its peer reaches it. device: for NCCL.
    """

    store: Store
    is_sender: bool
    address: str
    device: torch.device
    is_abandoned: threading.Event

    @property
    def rank(self) -> int:
        """This agent's rank."""
        return _SENDER if self.is_sender else _RECEIVER


Factory = Callable[[Recipe], Group]


def is_read_by_gloo(value: bytes) -> bool:
    """Whether gloo can read what the other rank says of itself. It trusts the sizes in there.

    Name of the machine and address, each with its size in front; then a number for each rank.
    """
    rest = memoryview(value)
    for _ in range(2):
        size, rest = int.from_bytes(rest[:_NUMBER_BYTES], sys.byteorder), rest[_NUMBER_BYTES:]
        if size > len(rest):
            return False
        rest = rest[size:]
    return len(rest) == 2 * _NUMBER_BYTES


@functools.lru_cache
def _gloo_device(address: str) -> Any:
    """One for all groups of the process: each has a thread and a listening socket."""
    return _dist.ProcessGroupGloo.create_device(hostname=address)


class Gloo:
    """Tags are not used: one stream in each direction. Its ``abort`` has no effect."""

    def __init__(self, recipe: Recipe) -> None:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_gloo_device(recipe.address)]
        options._threads = 1
        options._timeout = timedelta(seconds=OPERATION_S)
        self._peer = 1 - recipe.rank
        self._group = _dist.ProcessGroupGloo(recipe.store, recipe.rank, 2, options)

    def send(self, memory: torch.Tensor) -> Callable[[], None]:
        """See :class:`Group`."""
        wait: Callable[[], None] = self._group.send([memory], self._peer, 0).wait
        return wait

    def receive(self, memory: torch.Tensor) -> Callable[[], None]:
        """See :class:`Group`."""
        wait: Callable[[], None] = self._group.recv([memory], self._peer, 0).wait
        return wait

    def discard(self) -> None:
        """gloo ends an operation only after its time-out, and then the whole group."""


class Nccl:
    """Frames are on the CPU, so bytes are copied to and from the device on this thread.

    The first operation of the group makes its communicator.
    """

    def __init__(self, recipe: Recipe) -> None:
        os.environ.update(_NCCL_SETTINGS)
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=OPERATION_S)
        self._peer, self._device = 1 - recipe.rank, recipe.device
        self._is_abandoned = recipe.is_abandoned
        self._stream = _cuda.Stream(device=recipe.device)
        self._group = _dist.ProcessGroupNCCL(recipe.store, recipe.rank, 2, options)
        self._group.eager_connect_single_device(recipe.device)

    def send(self, memory: torch.Tensor) -> Callable[[], None]:
        """See :class:`Group`."""
        with torch.cuda.stream(self._stream):
            staged = memory.to(self._device)
            work = self._group.send([staged], self._peer, 0)
            work.wait()  # lets the stream wait, not this thread
            event = self._stream.record_event()
        return lambda: self._until(event, staged)

    def receive(self, memory: torch.Tensor) -> Callable[[], None]:
        """See :class:`Group`."""
        with torch.cuda.stream(self._stream):
            staged = torch.empty(memory.shape, dtype=memory.dtype, device=self._device)
            work = self._group.recv([staged], self._peer, 0)
            work.wait()
            event = self._stream.record_event()

        def wait() -> None:
            self._until(event, staged)
            memory.copy_(staged)

        return wait

    def _until(self, event: Any, staged: torch.Tensor) -> None:
        """Wait for the device. staged: must live until then. GroupError."""
        deadline = time.monotonic() + OPERATION_S
        while not event.query():
            if self._is_abandoned.wait(_POLL_S):
                raise GroupError("the group was abandoned")
            if time.monotonic() > deadline:
                raise GroupError(f"an operation took longer than {OPERATION_S:g} s")

    def discard(self) -> None:
        """Abort the communicator, or its kernels would run for ever."""
        self._group.abort()


FACTORIES: dict[str, Factory] = {"gloo": Gloo, "nccl": Nccl}
READERS: dict[str, Callable[[bytes], bool]] = {"gloo": is_read_by_gloo}
"""Whether a backend can read a value of the other rank. NCCL looks at it itself."""


def nccl_version() -> str:
    """Version of the NCCL that torch uses here; empty: none."""
    if not (torch.cuda.is_available() and _dist.is_nccl_available()):
        return ""
    return ".".join(map(str, _cuda.nccl.version()))


def gpu_id(device: torch.device) -> str:
    """A name that no other GPU has; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)
