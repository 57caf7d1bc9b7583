"""Effects of the arbiter, in order: facts are durable before effects that depend on them leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import Effect, Persist


class Outbox:
    """Collects the effects of one event; holds back those that wait for durable facts."""

    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self._version = 0
        self._persisted = 0
        self._is_dirty = False
        self._ready: list[Effect] = []
        self._waiting: list[tuple[int, Effect]] = []

    def save(self, **changes: Any) -> None:
        """Change the durable facts; every later ``after_facts`` waits for them."""
        changed = replace(self.durable, **changes)
        if changed == self.durable:
            return
        self.durable = changed
        if not self._is_dirty:
            self._is_dirty, self._version = True, self._version + 1

    def at_once(self, effect: Effect) -> None:
        """An effect that depends on no durable fact."""
        self._ready.append(effect)

    def after_facts(self, effect: Effect) -> None:
        """An effect that may leave only when all facts so far are durable."""
        self._waiting.append((self._version, effect))

    def persisted(self, version: int) -> None:
        """The shell has written that version."""
        self._persisted = max(self._persisted, version)

    def withdraw(self, is_obsolete: Callable[[Effect], bool]) -> None:
        """Drop effects that have not left yet."""
        self._waiting = [(v, e) for v, e in self._waiting if not is_obsolete(e)]

    def take(self) -> list[Effect]:
        """Effects that may leave now, in order."""
        out: list[Effect] = []
        if self._is_dirty:
            self._is_dirty = False
            out.append(Persist(self.durable, self._version))
        out += self._ready
        self._ready = []
        while self._waiting and self._waiting[0][0] <= self._persisted:
            out.append(self._waiting.pop(0)[1])
        return out
