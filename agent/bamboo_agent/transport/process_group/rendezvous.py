"""The store in which the two ranks of a group find each other: each sends the other what it sets.

It needs no server. What is set goes over the link between the two agents, which have authenticated
each other, and every wait has a deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

from bamboo_agent.transport.process_group.control import ControlError

MAX_KEYS = 256


class RendezvousError(RuntimeError):
    """The other rank has not set a key in time or not well, or the group has been abandoned."""


class Rendezvous(Store):
    """Values by key. torch calls it from any thread; ``learn`` and ``end`` come from the link.

    tell: sends a key with its value to the other rank. timeout_s: the longest wait. is_sound:
    whether torch may see a value, which the other rank chooses.
    """

    def __init__(
        self,
        tell: Callable[[str, bytes], None],
        timeout_s: float,
        is_sound: Callable[[bytes], bool] = lambda value: True,
    ) -> None:
        super().__init__()
        self._tell, self._timeout_s, self._is_sound = tell, timeout_s, is_sound
        self._values: dict[str, bytes] = {}
        self._change = threading.Condition()
        self._is_over = False

    def learn(self, key: str, value: bytes) -> None:
        """The other rank has set a key. ControlError if it sets far too many."""
        with self._change:
            if len(self._values) >= MAX_KEYS:
                raise ControlError(f"the peer sets more than {MAX_KEYS} keys")
            self._values[key] = value
            self._change.notify_all()

    def end(self) -> None:
        """Let all waits fail, now and later."""
        with self._change:
            self._is_over = True
            self._change.notify_all()

    # ------------------------------------------------------------ called by torch

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key here and at the other rank."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._change:
            self._values[key] = data
            self._change.notify_all()
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        """The value, as soon as there is one. RendezvousError."""
        self.wait([key])
        value = self._values[key]
        if not self._is_sound(value):
            raise RendezvousError(f"the value of {key} has {len(value)} bytes that cannot be read")
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, for at most ``timeout_s``. RendezvousError."""
        limit = self._timeout_s
        if timeout is not None:
            limit = min(limit, timeout.total_seconds())
        deadline = time.monotonic() + limit
        with self._change:
            while missing := [key for key in keys if key not in self._values]:
                left = deadline - time.monotonic()
                if self._is_over or left <= 0:
                    why = "the group was abandoned" if self._is_over else f"waited {limit:g} s"
                    raise RendezvousError(f"no value for {missing[0]}: {why}")
                self._change.wait(left)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are set."""
        with self._change:
            return all(key in self._values for key in keys)

    def add(self, key: str, value: int) -> int:
        """Add to a counter of this rank only."""
        with self._change:
            total = int(self._values.get(key, b"0")) + value
            self._values[key] = str(total).encode()
            return total

    def delete_key(self, key: str) -> bool:
        """Forget a key here. Whether it was set."""
        with self._change:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys are set."""
        with self._change:
            return len(self._values)
