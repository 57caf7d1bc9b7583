"""Which peers of the plan a supervisor suspects, and why. Times are attentive time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Cause, Suspicion


@dataclass
class Watch:
    """Suspicions are state: each holds until its reason has gone.

    A peer that is silent, or whose liveness socket has closed, is suspected until it is heard
    again. A broken channel counts until the next fence, since the transport does not dial before;
    it may break before the plan that names the peer is here.
    """

    _heard_at: dict[AgentId, float] = field(default_factory=dict)  # peers of the plan
    _suspected: dict[AgentId, Cause] = field(default_factory=dict)

    def begin(self) -> None:
        """A new plan: its peers have not been watched before."""
        self._heard_at = {}
        self._keep(lambda _, cause: cause is Cause.CHANNEL_BROKEN)

    def expect(self, peers: Iterable[AgentId], since: float) -> None:
        """Watch exactly these peers. The silence of new ones counts from ``since``."""
        self._heard_at = {peer: self._heard_at.get(peer, since) for peer in peers}
        self._keep(lambda peer, cause: peer in self._heard_at or cause is Cause.CHANNEL_BROKEN)

    def reconnect(self) -> None:
        """A new fence: the transport dials again."""
        self._keep(lambda _, cause: cause is not Cause.CHANNEL_BROKEN)

    def hear(self, peer: AgentId, time: float) -> None:
        """The peer's liveness socket works."""
        if peer in self._heard_at:
            self._heard_at[peer] = time
            if self._suspected.get(peer) is not Cause.CHANNEL_BROKEN:
                self._suspected.pop(peer, None)

    def suspect(self, peer: AgentId, cause: Cause) -> bool:
        """Whether this is news. A broken channel replaces another cause."""
        before = self._suspected.get(peer)
        is_worse = before is None or (cause is Cause.CHANNEL_BROKEN and before is not cause)
        if is_worse and (peer in self._heard_at or cause is Cause.CHANNEL_BROKEN):
            self._suspected[peer] = cause
            return True
        return False

    def look(self, time: float, silence_s: float) -> bool:
        """Suspect all peers that have been silent for longer. Whether there is news."""
        silent = [a for a, at in self._heard_at.items() if time - at > silence_s]
        return any([self.suspect(a, Cause.LIVENESS_SILENT) for a in silent])

    def suspicions(self, fence: Fence) -> tuple[Suspicion, ...]:
        """All that hold, ordered by peer."""
        return tuple(Suspicion(a, cause, fence) for a, cause in sorted(self._suspected.items()))

    def copy(self) -> Watch:
        """An independent copy."""
        return Watch(self._heard_at.copy(), self._suspected.copy())

    def _keep(self, holds: Callable[[AgentId, Cause], bool]) -> None:
        self._suspected = {a: cause for a, cause in self._suspected.items() if holds(a, cause)}
