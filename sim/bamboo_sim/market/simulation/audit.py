"""Watches a policy while it runs: at no instant may it have more samples than all nodes that were
ready could have trained until then."""

from __future__ import annotations

from typing import Any

from bamboo_sim.market.simulation.events import News
from bamboo_sim.market.simulation.outcome import Outcome
from bamboo_sim.market.simulation.policy import Change, Fleet, InventedWorkError, Pace, Policy

_ROUNDING = 1e-6


class Audited:
    """A policy, of which the fleet's samples are compared at each event. ``best_per_node``: samples
    per second of a node at its best. The engine compares each rate; this compares what there is,
    however it came. Use it for one run. InventedWorkError says when there was too much."""

    def __init__(self, policy: Policy, best_per_node: float) -> None:
        self._policy, self._best = policy, best_per_node
        self._now_ms, self._nodes, self._most = 0, 0, 0.0

    def start(self) -> Any:
        """The policy's."""
        return self._policy.start()

    def rate(self, state: Any) -> Pace | None:
        """The policy's."""
        return self._policy.rate(state)

    def on_change(self, state: Any, fleet: Fleet, news: News) -> Change | None:
        """The policy's, once what was trained until now is known to be possible."""
        self._until(news.at_ms, fleet.samples)
        change = self._policy.on_change(state, fleet, news)
        self._until(news.at_ms, fleet.samples)
        self._nodes = len(fleet.ready)
        return change

    def ended(self, outcome: Outcome) -> Outcome:
        """The outcome of the run, if it is possible."""
        self._until(outcome.end_ms, outcome.samples)
        return outcome

    def _until(self, now_ms: int, samples: float) -> None:
        self._most += self._nodes * self._best * (now_ms - self._now_ms) / 1000
        self._now_ms = now_ms
        if samples > self._most * (1 + _ROUNDING) + _ROUNDING:
            raise InventedWorkError(
                f"{samples:.1f} samples at {now_ms} ms, but the nodes that were there can have"
                f" trained {self._most:.1f}."
            )
