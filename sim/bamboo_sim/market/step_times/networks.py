"""The networks on which steps are timed."""

from __future__ import annotations

from dataclasses import dataclass

from bamboo_sim.timed.declared import Links

_MOST_GBPS = 100_000
_LATENCY_S = 500e-6  # between zones of a region, as in timed/hardware.py


@dataclass(frozen=True)
class Network:
    """One interface for each agent, which sends, and receives, one item after the other.

    ``gbps``: of an interface, in Gb/s; ``latency_s``: of a message between any two agents.
    ValueError names a field that is out of range.
    """

    gbps: float
    latency_s: float = _LATENCY_S

    def __post_init__(self) -> None:
        if not 0 < self.gbps <= _MOST_GBPS:
            raise ValueError(f"network.gbps is {self.gbps}; give a number of Gb/s up to 100000.")
        if not 0 <= self.latency_s <= 1:
            raise ValueError(f"network.latency_s is {self.latency_s}; give seconds from 0 to 1.")

    @property
    def name(self) -> str:
        """The name that a figure says of its network."""
        name = f"{self.gbps:g} Gb/s, {self.latency_s * 1000:g} ms"
        return f"free ({name})" if self.gbps >= _MOST_GBPS else name

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of an interface, each way."""
        return self.gbps * 1e9 / 8

    @property
    def links(self) -> Links:
        """The same for virtual time."""
        return Links(bandwidth=self.bytes_per_s, latency_s=self.latency_s)


TEN, TWENTY_FIVE, HUNDRED = Network(10.0), Network(25.0), Network(100.0)
"""The paper's p3.2xlarge nodes have up to 10 Gb/s; the others are those of later instances."""

NAMED = {"10": TEN, "25": TWENTY_FIVE, "100": HUNDRED, "free": Network(_MOST_GBPS, 0.0)}
"""The networks of commands, by what a user writes."""
