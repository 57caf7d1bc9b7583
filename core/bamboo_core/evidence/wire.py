"""What the network between the members passes, by what they measure, and the figure for plans.

Each member tells with its progress what it has sent and received lately
(:class:`bamboo_core.api.progress.Goodput`). The figure of a direction is the median of those that
have told it, at least half of the members. The job's figure is the lower of the two. Plans count
with it where it is clearly less than the spec says, and only once that has lasted, so that a short
jam changes no plan. A leader begins without figures and learns them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from statistics import median
from typing import Final

from bamboo_core.api.limits import LIMITS
from bamboo_core.api.progress import Goodput, Network, PeerRate, SlowPair
from bamboo_core.model.ids import AgentId

CLEAR: Final = 1.25
"""A change by a smaller factor changes nothing."""
HOLD_S: Final = 30.0
"""The figure has been clearly less, or more, for so long before plans count with it."""
# of the spec's network: plans know no other
_LEAST, _MOST = (x * 1e9 / 8 for x in LIMITS["spec.transport.bandwidthGbps"])
_LOOK_S = 1.0  # between two looks at the figures of all members


class Wire:
    """The figures of one job's members. Times are attentive time; rates are bytes per second."""

    def __init__(self) -> None:
        self._members: Collection[AgentId] = ()
        self._told: dict[AgentId, Goodput] = {}
        self._settled = inf
        self._most = inf  # by the spec
        self._looked_at = -inf
        self._since: float | None = None  # the figure has clearly differed since then
        self._is_less = False  # it is less than what plans count with

    @property
    def settled(self) -> float:
        """Plans count with it where the spec does not say less; inf: nothing was measured."""
        return self._settled

    def begin(self, members: Collection[AgentId]) -> None:
        """A plan is in force. Other agents are forgotten, and what they tell does not count."""
        self._members = frozenset(members)
        self._told = {a: x for a, x in self._told.items() if a in members}

    def learn(self, agent: AgentId, goodput: Goodput | None, now: float, most: float) -> None:
        """The agent has told what it measures; None: nothing. most: by the spec."""
        if goodput is not None and agent in self._members:
            self._told[agent] = goodput
        self._most = most
        if now >= self._looked_at + _LOOK_S:
            self._looked_at = now
            self._look(now)

    def _look(self, now: float) -> None:
        found, most = self.measured(), self._most
        used, wanted = min(most, self._settled), min(most, found or self._settled)
        if not has_changed(used, wanted):
            self._since = None
            return
        is_less = wanted < used
        if self._since is None or is_less is not self._is_less:
            self._since, self._is_less = now, is_less
        elif now - self._since >= HOLD_S:
            self._settled, self._since = max(_LEAST, float(f"{found:.2g}")), None

    def measured(self) -> float:
        """The figure of the members now; 0: fewer than half of them have told it."""
        ways = [
            _known(x.sending for x in self._told.values()),
            _known(x.receiving for x in self._told.values()),
        ]
        least = max(1.0, len(self._members) / 2)
        return min((median(rates) for rates in ways if len(rates) >= least), default=0.0)

    def network(self) -> Network:
        """For users."""
        planned, measured = min(self._most, self._settled), float(f"{self.measured():.2g}")
        return Network(planned if planned < inf else 0.0, measured, self._slowest())

    def _slowest(self) -> SlowPair | None:
        """The slowest pair that both ends name. Each end sees only its own share of what is shared
        at the other one, so the higher of the two figures is right."""
        found = [
            SlowPair(sender, x.peer, max(said, heard))
            for sender, told in self._told.items()
            for x in told.slowest_to
            for said in _known([x.rate])
            if (heard := self._heard(x.peer, sender))
        ]
        if not found:
            return None
        slowest = min(found, key=lambda x: (x.rate, x.sender, x.receiver))
        return slowest._replace(rate=float(f"{slowest.rate:.2g}"))

    def _heard(self, receiver: AgentId, sender: AgentId) -> float:
        """The figure of the pair at the receiver; 0: it does not name it."""
        told = self._told.get(receiver)
        named: tuple[PeerRate, ...] = () if told is None else told.slowest_from
        return max(_known(x.rate for x in named if x.peer == sender), default=0.0)


def has_changed(before: float, after: float) -> bool:
    """Whether two rates clearly differ."""
    return max(before, after) >= CLEAR * min(before, after)


def _known(rates: Iterable[float]) -> list[float]:
    """Those that can be, whatever an agent says, and within what a spec may say."""
    return [min(max(x, _LEAST), _MOST) for x in rates if 0 < x < inf]
