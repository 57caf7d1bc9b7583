"""When a device has done what it was given. The worker gives it one instruction after the other and
waits here, and nowhere else, for what it has done.

A GPU takes kernels from Python and performs them later, in the order of one stream. An event behind
the kernels of an instruction tells when they are done. A CPU has done all when Python returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

_AHEAD = 2
"""Instructions that a GPU has at a time: it begins the second while the worker hears of the first.
"""


class Completion(Protocol):
    """An instruction that a device has been given."""

    def is_done(self) -> bool:
        """Whether it is done. RuntimeError if the device has failed."""

    def wait(self) -> None:
        """Return once it is done. RuntimeError if the device has failed."""


class Stream(Protocol):
    """A device that performs instructions in order."""

    @property
    def ahead(self) -> int:
        """How many instructions it should have at a time."""

    def give(self, work: Callable[[], object]) -> Completion | None:
        """Issue what ``work`` computes. None: it is done already. Raises what ``work`` raises."""

    def drain(self) -> None:
        """Return once all is done that it was given. RuntimeError if the device has failed."""

    def copies(self) -> AbstractContextManager[object]:
        """Copies to and from the host do not wait for what the device computes meanwhile. They are
        done when the context ends. What is copied out must be done before; what is copied in must
        stay referenced until all is done that reads it, since its memory is used again then."""


class HostStream:
    """A CPU."""

    ahead = 1

    def give(self, work: Callable[[], object]) -> Completion | None:
        """Compute it."""
        work()
        return None

    def drain(self) -> None:
        """All is done."""

    def copies(self) -> AbstractContextManager[object]:
        """Nothing to wait for."""
        return nullcontext()


class CudaStream:
    """The current stream of a GPU, which all kernels of the worker use."""

    ahead = _AHEAD

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def give(self, work: Callable[[], object]) -> Completion | None:
        """Issue it, with an event behind it."""
        work()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaCompletion(event)

    def drain(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def copies(self) -> AbstractContextManager[object]:
        """A stream beside that of the kernels."""
        return torch.cuda.stream(self._copies)


class _CudaCompletion:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()


def stream_of(device: torch.device) -> Stream:
    """The stream of a device."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
