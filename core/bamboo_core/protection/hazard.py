"""How often agents are lost: measured in this job and its zones, with a prior until enough is seen.
How many seats are empty at once follows from it, and whether the next loss takes the last copy.

Losses of one zone are a Poisson process whose rate has a Gamma prior. The prior of the job is
``PRIOR`` losses per agent-hour, worth one loss; that of a zone is the job's rate, worth as much. So
a job without losses believes in fewer and fewer, and one zone with many raises the job's hazard
only as far as agents are there. Old counts fade, since markets change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, lgamma, log, prod

PRIOR = 0.05
"""Losses per agent-hour that a job without a record expects."""

_WORTH_HOURS = 1 / PRIOR  # agent-hours: the prior weighs as much as one loss
_HALF_LIFE_S = 24 * 3600.0
_MOST_ZONES = 64


@dataclass(frozen=True)
class ZoneRecord:
    """Losses and exposure in one zone; both numbers fade."""

    zone: str
    losses: float
    agent_s: float  # seconds that agents were exposed, summed over agents


@dataclass(frozen=True)
class Hazard:
    """Losses and exposure of a job until now."""

    zones: tuple[ZoneRecord, ...] = ()  # sorted by name

    @property
    def losses(self) -> float:
        """Losses in all zones."""
        return sum(z.losses for z in self.zones)

    @property
    def agent_hours(self) -> float:
        """Exposure in all zones."""
        return sum(z.agent_s for z in self.zones) / 3600

    @property
    def is_measured(self) -> bool:
        """Whether what was seen weighs about as much as the prior. A loss counts for a day."""
        return self.losses >= 0.5 or self.agent_hours >= _WORTH_HOURS

    def exposed(self, agents: Mapping[str, int], seconds: float) -> Hazard:
        """After so many seconds with so many agents in each zone."""
        keep = 0.5 ** (max(0.0, seconds) / _HALF_LIFE_S)
        known = {z.zone: z for z in self.zones}
        return self._with(
            ZoneRecord(
                name,
                keep * (known[name].losses if name in known else 0.0),
                keep * (known[name].agent_s if name in known else 0.0)
                + agents.get(name, 0) * max(0.0, seconds),
            )
            for name in known.keys() | agents.keys()
        )

    def lost(self, zone: str) -> Hazard:
        """After the loss of one agent there."""
        known = {z.zone: z for z in self.zones}
        old = known.get(zone, ZoneRecord(zone, 0.0, 0.0))
        known[zone] = ZoneRecord(zone, old.losses + 1, old.agent_s)
        return self._with(known.values())

    def per_agent_hour(self, agents: Mapping[str, int]) -> float:
        """Losses per agent-hour to expect with so many agents in each zone (empty: the mean)."""
        job = (self.losses + 1) / (self.agent_hours + _WORTH_HOURS)
        total = sum(agents.values())
        if not total:
            return job
        known = {z.zone: z for z in self.zones}
        expected = 0.0
        for name, count in agents.items():
            seen = known.get(name, ZoneRecord(name, 0.0, 0.0))
            rate = (seen.losses + job * _WORTH_HOURS) / (seen.agent_s / 3600 + _WORTH_HOURS)
            expected += count * rate
        return expected / total

    def rounded(self) -> Hazard:
        """To whole seconds and thousandths of a loss, as it is written."""
        return Hazard(
            tuple(
                ZoneRecord(z.zone, round(z.losses, 3), float(round(z.agent_s))) for z in self.zones
            )
        )

    @staticmethod
    def _with(zones: Iterable[ZoneRecord]) -> Hazard:
        ranked = sorted(zones, key=lambda z: (-z.losses, -z.agent_s, z.zone))
        return Hazard(tuple(sorted(ranked[:_MOST_ZONES], key=lambda z: z.zone)))


# ---------------------------------------------------------------- empty seats


def empty_share(hazard: float, empty_s: float) -> float:
    """The share of time in which a seat is empty that loses its agent so many times an hour and
    then stays empty for so long, on average."""
    lost = hazard * empty_s / 3600
    return lost / (1 + lost)


def chances(seats: int, share: float, together: float = 0.0) -> tuple[float, ...]:
    """The chance that f seats are empty, for f = 0, 1, ... ``seats``.

    Each seat is empty for a share of the time. Then f is binomial, however long each seat stays
    empty. If seats are empty together (a pool runs dry), the share itself varies: f is
    beta-binomial, and ``together`` is the correlation of two seats. With a larger share, at
    least so many empty seats are never less likely.
    """
    if share <= 0:
        return (1.0,) + (0.0,) * seats
    if together < 1e-6:
        found = [
            exp(_ways(seats, f) + f * log(share) + (seats - f) * log(1 - share))
            for f in range(seats + 1)
        ]
    else:
        weight = 1 / together - 1
        a, b = share * weight, (1 - share) * weight
        base = _beta(a, b)
        found = [
            exp(_ways(seats, f) + _beta(a + f, b + seats - f) - base) for f in range(seats + 1)
        ]
    total = sum(found)
    return tuple(x / total for x in found)


def last_copy_chance(seats: int, empty: int, others: int) -> float:
    """The chance that all of ``others`` seats are empty, which hold what a lost agent held, if
    ``empty`` of ``seats`` are and any of them but the lost agent's may be."""
    if others > empty:
        return 0.0
    return prod((empty - i) / (seats - 1 - i) for i in range(others))


def _ways(seats: int, empty: int) -> float:
    return lgamma(seats + 1) - lgamma(empty + 1) - lgamma(seats - empty + 1)


def _beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
