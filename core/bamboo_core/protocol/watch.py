"""Which peers of the plan a supervisor suspects, and whose bytes come too slowly.

Times are attentive time, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

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


# ---------------------------------------------------------------- transfers

STILL_S = 30.0
"""A transfer that has been too slow for so long, within WINDOW_S, stands still."""
WINDOW_S = 40.0
LEAST_RATE = 64_000.0
"""Bytes per second: what passes less is too slow, however slow it has always been."""
LEAST_SHARE = 0.01
"""What passes less than this share of what is usual between the two is too slow, too."""
_QUIET_S = 10.0  # longer silence may be that of a sender that is unable to send
_SETTLED_S = 2.0  # after it, what comes may flow
_STRETCH_S = 1.0  # a shorter wait says nothing
_SLICE_S = 1.0
_LEAST_SLICES, _MOST_SLICES = 8, 64  # from which the usual rate follows


class Slow(NamedTuple):
    """A transfer stands still."""

    seconds: float  # for so long
    rate: float  # bytes per second in that time


class _Slice(NamedTuple):
    """A time in which a peer's bytes were awaited and came."""

    peer: AgentId
    end: float
    seconds: float  # shorter than until the next one: at other times nothing was awaited
    num_bytes: int


@dataclass
class Transfers:
    """How fast the bytes come for which the worker waits.

    Only such time counts in which the worker waits for the peer while a part of a frame of it is
    here. A sender that computes, and small messages over an idle link, leave no frame half-way.
    A long silence is judged by the graph of waits: the sender may be unable to send. It counts here
    once more has come, and at once if hardly anything has come in bursts before it.
    """

    _peer: AgentId | None = None  # its frame is awaited, and half-way; None: nobody's
    _at: float = 0.0  # of the newest look
    _since: float = 0.0  # it has been half-way at every look since then
    _sender: AgentId | None = None  # the newest such peer; other waits do not change it
    _received: int = 0  # from it
    _quiet_s: float = 0.0  # of such waits without a byte
    _withheld_s: float = 0.0  # so much of them does not count yet
    _withheld_at: float = 0.0  # the end of that
    _has_burst: bool = False  # bytes have ended a silence
    _flow_s: float = _SETTLED_S  # of such waits since the newest long silence
    _slices: list[_Slice] = field(default_factory=list)  # of the last WINDOW_S, oldest first
    _rates: dict[AgentId, list[float]] = field(default_factory=dict)  # before that, oldest first

    def begin(self) -> None:
        """A new fence. Connections outlive it, so what came before it still counts."""
        self._peer = None

    def expect(self, peers: Iterable[AgentId]) -> None:
        """Forget what was usual with all others."""
        self._rates = {peer: self._rates[peer] for peer in peers if peer in self._rates}

    def look(self, time: float, peer: AgentId | None, received: int, *, is_coming: bool) -> None:
        """The worker waits for this peer (None: for nobody), of which so many bytes have come so
        far. is_coming: a part of a frame is here."""
        if peer is None or not is_coming:
            if peer is not None and peer == self._sender:
                self._forget_silence()  # its frame is whole
            self._peer = None
            return
        is_same = peer == self._sender and received >= self._received
        count = received - self._received if is_same else 0
        if not is_same:  # another connection
            self._forget_silence()
        elif count:
            self._end_silence(peer)
        if peer == self._peer:
            self._go_on(peer, time, count)
        else:
            self._since = time
        self._peer = self._sender = peer
        self._at, self._received = time, received

    def _go_on(self, peer: AgentId, time: float, count: int) -> None:
        """The wait has lasted since the look before, and so many bytes have come in this time."""
        seconds = time - self._at
        if not count:
            self._quiet_s += seconds
        if self._quiet_s > _QUIET_S and not self._comes_in_bursts(peer):
            self._withheld_s, self._withheld_at = self._withheld_s + seconds, time
        else:
            self._add(_Slice(peer, time, seconds, count))
            self._flow_s += seconds

    def _comes_in_bursts(self, peer: AgentId) -> bool:
        """Whether bytes have ended a silence before this one, and were too few for both."""
        found = [x for x in self._slices if x.peer == peer and x.seconds]
        return self._has_burst and bool(found) and _rate(found) < self.least(peer)

    def _end_silence(self, peer: AgentId) -> None:
        """The peer has sent again. So what was withheld was not that it could not send."""
        if self._withheld_s:
            if self.slow() is None:
                self._flow_s = 0.0  # before it has lasted for a while, nobody knows how it flows
            self._add(_Slice(peer, self._withheld_at, self._withheld_s, 0))
        self._has_burst = self._has_burst or self._quiet_s >= _SETTLED_S
        self._quiet_s = self._withheld_s = 0.0

    def _forget_silence(self) -> None:
        self._quiet_s = self._withheld_s = 0.0
        self._has_burst = False

    def _add(self, new: _Slice) -> None:
        slices = self._slices
        last = slices[-1] if slices else None
        if last is not None and last.peer == new.peer and last.seconds < _SLICE_S:
            seconds, num_bytes = last.seconds + new.seconds, last.num_bytes + new.num_bytes
            slices[-1] = _Slice(new.peer, new.end, seconds, num_bytes)
        else:
            slices.append(new)
        while slices[0].end <= new.end - WINDOW_S:
            self._remember(slices.pop(0))

    def _remember(self, old: _Slice) -> None:
        if old.seconds >= _SLICE_S:
            rates = self._rates.setdefault(old.peer, [])
            rates.append(old.num_bytes / old.seconds)
            del rates[:-_MOST_SLICES]

    def least(self, peer: AgentId) -> float:
        """Bytes per second: less is too slow from this peer."""
        rates = self._rates.get(peer, [])
        usual = median(rates) if len(rates) >= _LEAST_SLICES else 0.0
        return max(LEAST_RATE, LEAST_SHARE * usual)

    def slow(self) -> Slow | None:
        """Whether the awaited transfer stands still, by the newest look."""
        if self._peer is None or self._at - self._since < _STRETCH_S or self._flow_s < _SETTLED_S:
            return None
        found, seconds = list[_Slice](), 0.0
        for x in reversed(self._slices):
            if x.peer == self._peer and seconds < STILL_S:
                found.append(x)
                seconds += x.seconds
        if seconds < STILL_S:
            return None
        rate, least = _rate(found), self.least(self._peer)
        if rate >= least or _rate(found[:2]) >= least:  # by now it flows again
            return None
        return Slow(max(seconds, self._at - self._since), rate)

    def copy(self) -> Transfers:
        """An independent copy."""
        rates = {peer: found.copy() for peer, found in self._rates.items()}
        return Transfers(
            self._peer,
            self._at,
            self._since,
            self._sender,
            self._received,
            self._quiet_s,
            self._withheld_s,
            self._withheld_at,
            self._has_burst,
            self._flow_s,
            self._slices.copy(),
            rates,
        )


def _rate(slices: Sequence[_Slice]) -> float:
    """Bytes per second."""
    return sum(x.num_bytes for x in slices) / sum(x.seconds for x in slices)
