"""What all groups of one agent share: the backend, the limits, and how a group is made."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bamboo_agent.transport.process_group.control import Control, Do
from bamboo_agent.transport.process_group.groups import (
    FACTORIES,
    READERS,
    Factory,
    Group,
    Recipe,
)
from bamboo_agent.transport.process_group.pump import Listener, Pump
from bamboo_agent.transport.process_group.rendezvous import Rendezvous
from bamboo_core.model.ids import Fence

log = logging.getLogger(__name__)

MAKE_S = 10.0
"""The two ranks of a group must find each other within this time."""
MAX_ABANDONED = 16
"""So many threads may hang. More groups are made only when some of them have ended."""
MIN_BYTES = 64 << 10
"""Smaller tensors stay on the link: an operation of a group costs more than their copy."""

Post = Callable[[Callable[[], None]], None]


@dataclass
class Limits:
    """Of one agent. Tests lower them."""

    make_s: float = MAKE_S
    max_abandoned: int = MAX_ABANDONED
    min_bytes: int = MIN_BYTES


class Maker:
    """Makes groups with one backend, "gloo" or "nccl". Only the transport's thread calls it.

    gpu: what tells this agent's GPU from others; empty: it has none.
    """

    def __init__(
        self,
        backend: str,
        *,
        device: torch.device,
        gpu: str = "",
        limits: Limits | None = None,
        factory: Factory | None = None,
    ) -> None:
        self.backend, self.gpu = backend, gpu
        self.limits = limits or Limits()
        self.sent_pieces = 0
        self._device = device
        self._factory = factory or FACTORIES[backend]
        self._is_sound = READERS.get(backend, lambda value: True)
        self._abandoned: set[Pump] = set()

    @property
    def has_room(self) -> bool:
        """Whether few enough threads hang."""
        return len(self._abandoned) < self.limits.max_abandoned

    def refusal(self, offer: Control) -> str:
        """Why this agent cannot accept the offer; empty: it can."""
        if offer.backend != self.backend:
            return f"it has {self.backend}, not {offer.backend}"
        if self.gpu and offer.device == self.gpu:
            return f"both agents use the GPU {self.gpu}"
        return "" if self.has_room else f"{len(self._abandoned)} abandoned groups still hang"

    def make(
        self, fence: Fence, address: str, *, is_sender: bool, listener: Listener, tell: Tell
    ) -> Attempt:
        """Begin to make a group, in a thread of its own."""
        over = threading.Event()
        store = Rendezvous(tell.later(fence), self.limits.make_s, self._is_sound)
        recipe = Recipe(store, is_sender, address, self._device, over)
        factory = self._factory

        def make() -> Group:
            return factory(recipe)

        pump = Pump(make, is_sender=is_sender, listener=listener, post=tell.post, is_abandoned=over)
        return Attempt(fence, pump, store)

    def abandon(self, attempt: Attempt) -> None:
        """Never wait for it. It counts until its thread has ended."""
        self._abandoned.add(attempt.pump)
        attempt.store.end()
        attempt.pump.abandon()

    def ended(self, pump: Pump) -> None:
        """A thread has ended."""
        self._abandoned.discard(pump)


@dataclass(frozen=True)
class Attempt:
    """A group, or what is to become one."""

    fence: Fence
    pump: Pump
    store: Rendezvous


@dataclass(frozen=True)
class Tell:
    """How an end of a link is reached from other threads, and tells the other end something."""

    post: Post
    say: Callable[[Control], None]  # only in the transport's thread

    def later(self, fence: Fence) -> Callable[[str, bytes], None]:
        """For a rendezvous, which torch calls from its own threads."""

        def tell(key: str, value: bytes) -> None:
            message = Control(Do.SET, fence, key=key, value=value)
            self.post(lambda: self.say(message))

        return tell
