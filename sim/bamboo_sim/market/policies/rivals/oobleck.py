"""Oobleck: pipelines of unequal depths from templates, so that every node trains, and new pipelines
from copies of layers after a loss (rivals.md 4.8)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from bamboo_sim.market.policies.base.job import Job, rate
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import lost_of, ordered
from bamboo_sim.market.policies.rivals.templates import NOTHING, Templates, instantiated
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters; parameters.json says what each is."""

    replan_ms: int
    gain: float
    fault_threshold: int


class Pipelines(NamedTuple):
    """``holders``: the nodes of each pipeline, stage by stage."""

    templates: Templates = NOTHING
    holders: tuple[tuple[int, ...], ...] = ()
    since_ms: int = 0

    @property
    def serving(self) -> frozenset[int]:
        """The nodes of all pipelines."""
        return frozenset(node for pipeline in self.holders for node in pipeline)


class Oobleck:
    """The policy."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job, self._rules = job, rules
        self._known: dict[int, Templates] = {}

    def start(self) -> Pipelines:
        """Nothing runs."""
        return Pipelines()

    def rate(self, state: Pipelines) -> Pace | None:
        """The slowest pipeline, over the formula of the equal grid that is nearest. No template
        makes a node faster than its best grid does."""
        if not state.holders:
            return None
        pace = self._job.pace(state.templates.nearest, state.templates.step_ms)
        least = self._job.times.samples / (len(state.serving) * self._job.best_per_node) * 1000
        return pace and pace._replace(step_ms=max(pace.step_ms, least))

    def on_change(self, state: Pipelines, fleet: Fleet, news: News) -> Change | None:
        """Nodes that come are taken in as the paper says; the code has no joins."""
        if news.kind is REMOVE and (lost := lost_of(state.serving, news)):
            return self._lose(state, lost, fleet, news.at_ms)
        if news.kind is RESUME or (news.kind is READY and fleet.resume_ms is None):
            return self._join(state, fleet, news.at_ms)
        return None

    def _join(self, state: Pipelines, fleet: Fleet, now_ms: int) -> Change | None:
        after = self._planned(state, fleet)
        if not after.holders:
            return None
        if not state.holders:
            return begun(self._job, after, after.templates.nearest.stages, fleet, now_ms)
        if rate(self.rate(after)) <= rate(self.rate(state)) * (1 + self._rules.gain):
            return None
        pause_ms = self._rules.replan_ms + self._job.copy_ms(after.templates.nearest.stages)
        return Change(after, now_ms + pause_ms, "join")

    def _lose(self, state: Pipelines, lost: frozenset[int], fleet: Fleet, now_ms: int) -> Change:
        common, after = self._job.common, self._planned(state, fleet)
        stages = after.templates.nearest.stages or common.stages
        pause_ms = self._rules.replan_ms + len(lost) * self._job.copy_ms(stages)
        if self._job.is_told(pause_ms) and after.holders:
            return Change(after, extended(fleet, now_ms, pause_ms), "notice")
        if self._has_every_layer(state, lost) and after.holders:
            end = extended(fleet, now_ms, common.detect_ms + pause_ms)
            return Change(after, end, "loss", drops_step=fleet.resume_ms is None)
        pause_ms = common.detect_ms + restore_ms(self._job, after.templates.nearest.stages)
        pace = self.rate(state)
        return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)

    def _planned(self, state: Pipelines, fleet: Fleet) -> Pipelines:
        count = len(fleet.ready)
        if count not in self._known:
            self._known[count] = instantiated(self._job, count, self._rules.fault_threshold)
        templates = self._known[count]
        nodes = iter(ordered(fleet, self._job.common.seats_seed))
        holders = tuple(tuple(next(nodes) for _ in range(size)) for size in templates.sizes)
        return Pipelines(templates, holders, state.since_ms)

    def _has_every_layer(self, state: Pipelines, lost: frozenset[int]) -> bool:
        """Some survivor of the pipelines has each layer."""
        layers = self._job.formula.layers
        held: set[int] = set()
        for nodes in state.holders:
            held.update(_kept(layers, nodes, lost))
        return len(held) == layers


def _kept(layers: int, nodes: tuple[int, ...], lost: frozenset[int]) -> Iterable[int]:
    cuts = [ceil(layers * stage / len(nodes)) for stage in range(len(nodes) + 1)]
    for node, (first, end) in zip(nodes, pairwise(cuts), strict=True):
        if node not in lost:
            yield from range(first, end)
