"""The kill switch within process groups: a worker dies while it makes a group, or within a piece.

    before MAKE-SENDER       its thread has begun to make a group in which it sends
    in MAKE-SENDER           it has given its address and waits for the receiver's
    after MAKE-SENDER        the group exists at this end
    before PIECE-SENDER      the link has announced a piece, which the group does not have yet
    in PIECE-SENDER          the group sends it
    after PIECE-SENDER       the group has sent it; the receiver has not confirmed it

The same with RECEIVER. Only pieces of at least ``LEAST_BYTES`` count: the kernel does not take them
at once. Unlike instructions, these happen in no fixed step: the switch is for the next one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from itertools import product

import torch

from bamboo_agent.transport.process_group import groups, maker
from bamboo_agent.transport.process_group.groups import Factory, Recipe
from bamboo_agent.transport.process_group.rendezvous import Rendezvous
from bamboo_sim.fleet.injection.effects import patched
from bamboo_sim.fleet.switches.kill_switch import KillSwitch

MOMENTS = ("before", "in", "after")
MAKE, PIECE = "MAKE", "PIECE"
NAMES = tuple("-".join(parts) for parts in product((MAKE, PIECE), ("SENDER", "RECEIVER")))
LEAST_BYTES = 256 << 10
Wait = Callable[[], None]


class _Rendezvous(Rendezvous):
    """Says when it begins to wait."""

    on_wait: Callable[[], None] = staticmethod(lambda: None)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """See :class:`Rendezvous`."""
        self.on_wait()
        super().wait(keys, timeout)


class _Switched:
    """A group with the worker's kill switch."""

    def __init__(self, make: Factory, switch: KillSwitch, recipe: Recipe) -> None:
        self._switch = switch
        self._role = "SENDER" if recipe.is_sender else "RECEIVER"
        assert isinstance(recipe.store, _Rendezvous)
        recipe.store.on_wait = lambda: self._die_if_armed("in", MAKE)
        self._die_if_armed("before", MAKE)
        self._group = make(recipe)
        self._die_if_armed("after", MAKE)

    def send(self, memory: torch.Tensor) -> Wait:
        """See :class:`Group`."""
        return self._carry(self._group.send, memory)

    def receive(self, memory: torch.Tensor) -> Wait:
        """See :class:`Group`."""
        return self._carry(self._group.receive, memory)

    def discard(self) -> None:
        """See :class:`Group`."""
        self._group.discard()

    def _carry(self, start: Callable[[torch.Tensor], Wait], memory: torch.Tensor) -> Wait:
        if memory.nbytes < LEAST_BYTES:
            return start(memory)
        self._die_if_armed("before", PIECE)
        wait = start(memory)
        self._die_if_armed("in", PIECE)

        def waited() -> None:
            wait()
            self._die_if_armed("after", PIECE)

        return waited

    def _die_if_armed(self, moment: str, what: str) -> None:
        self._switch.die_if_armed(f"{moment} {what}-{self._role}")


def install(switch: KillSwitch) -> None:
    """Let all groups of this process have the switch."""
    for backend, factory in groups.FACTORIES.items():
        groups.FACTORIES[backend] = functools.partial(_Switched, factory, switch)
    patched(maker, "Rendezvous", _Rendezvous)  # the name that Maker uses
