"""How often agents are lost: measured in this job and its zones, with a prior until enough is seen.

Losses of one zone are a Poisson process whose rate has a Gamma prior. The prior of the job is
``PRIOR`` losses per agent-hour, worth one loss; that of a zone is the job's rate, worth as much. So
a job without losses believes in fewer and fewer, and one zone with many raises the job's hazard
only as far as agents are there. Old counts fade, since markets change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
