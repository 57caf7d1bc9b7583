"""How fast bytes go to other agents and come from them, measured from what moves anyway.

Time counts while at least one link has more to pass than the network takes, and bytes of all such
links count together: they share one interface. So a link that waits for its receiver, or has
nothing to send, makes nothing look slow. It counts from its first progress on, and only in
stretches that are large and long enough, so that latency does not pass as bandwidth.

What is shared at the other end (several agents send to one) looks slow at this end. So the figure
of the interface is a high one of the newest stretches, and a pair counts as slow only if both its
ends say so (``bamboo_core.evidence.wire``). What flows to others at once hides a slow peer, until
its bytes flow alone: so its figure is a low one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from bamboo_core.api.progress import MOST_SLOW_PEERS, Goodput, PeerRate
from bamboo_core.model.ids import AgentId

LEAST_BYTES: Final = 8 << 20
LEAST_S: Final = 0.02
"""A stretch has at least so many bytes and takes at least so long."""
_OF_ALL, _OF_PEER = 32, 9  # newest stretches that count
_LEAST_OF_ALL, _LEAST_OF_PEER = 4, 5
_HIGH, _LOW = 0.75, 0.25  # quantiles: of all stretches, and of those of a peer


class _Stretches:
    """Rates of the newest stretches. A stretch lasts while bytes flow, and is cut when it is large
    enough."""

    def __init__(self, most: int) -> None:
        self.rates = deque[float](maxlen=most)
        # when the stretch began: bytes and seconds of the direction, and bytes that must grow
        self._bytes, self._seconds, self._own = 0, 0.0, 0

    def begin(self, num_bytes: int, seconds: float, own: int) -> None:
        """A stretch begins."""
        self._bytes, self._seconds, self._own = num_bytes, seconds, own

    def cut(self, num_bytes: int, seconds: float, own: int) -> None:
        """End the stretch if it is large enough. The next one begins."""
        took_s = seconds - self._seconds
        if own - self._own >= LEAST_BYTES and took_s >= LEAST_S:
            self.rates.append((num_bytes - self._bytes) / took_s)
            self.begin(num_bytes, seconds, own)


@dataclass
class _Flow:
    """A link that has more to pass."""

    peer: AgentId
    total: int  # bytes that it had passed at the newest look
    flows: bool = False  # it has passed some since it had more


class Direction:
    """What is sent, or what is received. One thread calls :meth:`note`, any may read the rates."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, _Flow] = {}
        self._at = 0.0  # of the newest look
        self._bytes, self._seconds = 0, 0.0  # while some link flows
        self._flowing = 0
        self._all = _Stretches(_OF_ALL)
        self._peers: dict[AgentId, _Stretches] = {}

    def note(self, link: Hashable, peer: AgentId, total: int, now: float, *, is_busy: bool) -> None:
        """The link has passed ``total`` bytes in its life. is_busy: more waits to be passed."""
        flow = self._flows.get(link)
        if flow is None:
            if is_busy:
                self._flows[link] = _Flow(peer, total)
            return
        if self._flowing:
            self._seconds += now - self._at
        self._at = now
        count, flow.total = total - flow.total, total
        if flow.flows:
            self._bytes += count
            self._all.cut(self._bytes, self._seconds, self._bytes)
            self._peers[peer].cut(self._bytes, self._seconds, total)
        elif count:
            self._begin(flow)
        if not is_busy:
            self.forget(link)

    def _begin(self, flow: _Flow) -> None:
        if not self._flowing:
            self._all.begin(self._bytes, self._seconds, self._bytes)
        flow.flows = True
        self._flowing += 1
        found = self._peers.setdefault(flow.peer, _Stretches(_OF_PEER))
        found.begin(self._bytes, self._seconds, flow.total)

    def follows(self, link: Hashable) -> bool:
        """Whether the link had more to pass at the newest look."""
        return link in self._flows

    def forget(self, link: Hashable) -> None:
        """The link is closed, or has nothing more to pass."""
        flow = self._flows.pop(link, None)
        if flow is not None and flow.flows:
            self._flowing -= 1

    def expect(self, peers: Collection[AgentId]) -> None:
        """Forget what was measured with all others."""
        flowing = {flow.peer for flow in self._flows.values()}
        kept = {a: x for a, x in self._peers.items() if a in peers or a in flowing}
        self._peers = kept

    def rate(self) -> float:
        """Bytes per second that the interface passes; 0: not measured."""
        rates = list(self._all.rates)
        return _quantile(rates, _HIGH) if len(rates) >= _LEAST_OF_ALL else 0.0

    def slowest(self) -> tuple[PeerRate, ...]:
        """The peers while whose bytes flow the least passes, slowest first."""
        rates = ((list(x.rates), peer) for peer, x in self._peers.copy().items())
        known = sorted((_quantile(x, _LOW), peer) for x, peer in rates if len(x) >= _LEAST_OF_PEER)
        return tuple(PeerRate(peer, rate) for rate, peer in known[:MOST_SLOW_PEERS])


def _quantile(rates: Sequence[float], share: float) -> float:
    return sorted(rates)[int(share * (len(rates) - 1))]


class Meter:
    """Both directions of an agent's network."""

    def __init__(self) -> None:
        self.sending, self.receiving = Direction(), Direction()

    def expect(self, peers: Collection[AgentId]) -> None:
        """Forget what was measured with all others."""
        self.sending.expect(peers)
        self.receiving.expect(peers)

    def figures(self) -> Goodput | None:
        """The figures of late; None: nothing is measured. Any thread may ask."""
        found = Goodput(
            self.sending.rate(),
            self.receiving.rate(),
            self.sending.slowest(),
            self.receiving.slowest(),
        )
        return found if found != Goodput() else None
