"""Rules about wrong bits, broken on purpose; :mod:`.planted_bits` lists them."""

from __future__ import annotations

from typing import Any

from bamboo_core.arbiter import disputes
from bamboo_core.arbiter.state import State
from bamboo_core.model.ids import Fence
from bamboo_core.protocol.effects import Retract
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import Disputed, Stop

_disputed = disputes.disputed


def no_disputes(cast: Any) -> tuple[Any, ...]:
    """The coordinator does not look at the claims."""
    return ()


def votes_at_once(self: Executor, effects: list[Any]) -> bool:
    """A vote does not wait for a comparison that has begun."""
    return False


def results_stay(self: Executor) -> list[Any]:
    """Agents keep what they have computed in a void step."""
    self._is_again = True
    return [Retract(is_new=False)]


def void_once(self: State, *, want_manifests: bool = False) -> Stop:
    """Only the first STOP after the dispute says that the step is void."""
    void = self.durable.void if self.durable.void == self.fence else Fence()
    return Stop(self.fence, want_manifests, void)


def only_of_this_plan(state: State, message: Disputed, now: float) -> None:
    """A dispute counts only while its plan is in force."""
    if message.fence == state.fence:
        _disputed(state, message, now)
