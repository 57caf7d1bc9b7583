"""torchft: groups of nodes are data-parallel replicas, a group that is broken is left out, and its
samples are missing until it is whole (rivals.md 4.6)."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_sim.market.policies.base.formula import Grid
from bamboo_sim.market.policies.base.job import Job
from bamboo_sim.market.policies.base.restores import begun, restore_ms, restored
from bamboo_sim.market.policies.base.seats import lost_of, ordered
from bamboo_sim.market.simulation.events import READY, REMOVE, RESUME, News
from bamboo_sim.market.simulation.policy import Change, Fleet, Pace, extended


class Rules(NamedTuple):
    """The parameters; parameters.json says what each is."""

    group_ms: int
    pipelines: int | None
    loses_step: bool


class Groups(NamedTuple):
    """``seats``: the nodes of each group; one with fewer than its stages is broken."""

    seats: tuple[tuple[int, ...], ...] = ()
    whole: tuple[int, ...] = ()
    since_ms: int = 0

    @property
    def serving(self) -> frozenset[int]:
        """The nodes of whole groups."""
        return frozenset(self.whole)


class Torchft:
    """The policy. ``merges``: survivors of broken groups make whole ones together; else each group
    waits for new nodes."""

    def __init__(self, job: Job, rules: Rules, *, merges: bool) -> None:
        self._job, self._rules, self._merges = job, rules, merges
        self._grid = Grid(rules.pipelines or job.pipelines, job.common.stages)

    def start(self) -> Groups:
        """Nothing runs."""
        return Groups()

    def rate(self, state: Groups) -> Pace | None:
        """A group always has the same work, so fewer groups train fewer samples in a step."""
        pipelines, stages = self._grid
        groups = len(state.whole) // stages
        if not groups:
            return None
        share = self._job.formula.share(pipelines)
        step_ms = self._job.formula.step_ms(Grid(groups, stages), share)
        return self._job.pace(self._grid, step_ms, groups / pipelines)

    def on_change(self, state: Groups, fleet: Fleet, news: News) -> Change | None:
        """The step in flight is lost with a group, since nobody commits it."""
        if news.kind is REMOVE and lost_of(state.serving, news):
            return self._lose(state, fleet, news)
        if news.kind not in (READY, RESUME) or (news.kind is READY and fleet.resume_ms):
            return None
        after = self._grouped(state, fleet)
        if len(after.whole) <= len(state.whole):
            return None if after == state else Change(after)
        if not state.whole:
            return begun(self._job, after, self._grid.stages, fleet, news.at_ms)
        # it is healed within a step, for which the others wait at most once
        pace = self.rate(state)
        heal_ms = min(self._job.copy_ms(self._grid.stages), int(pace.step_ms) if pace else 0)
        return Change(after, news.at_ms + heal_ms, "heal")

    def _lose(self, state: Groups, fleet: Fleet, news: News) -> Change:
        common, now_ms = self._job.common, news.at_ms
        after = self._grouped(state, fleet)
        kept = set(after.whole) & state.serving
        pause_ms = common.detect_ms + self._rules.group_ms
        told_ms = self._rules.group_ms + self._job.copy_ms(self._grid.stages)
        if after.whole and self._job.is_told(told_ms):
            return Change(after, extended(fleet, now_ms, told_ms), "notice")
        if any(self._is_whole(group) and kept.issuperset(group) for group in state.seats):
            end, is_training = extended(fleet, now_ms, pause_ms), fleet.resume_ms is None
            return Change(after, end, "loss", drops_step=is_training and self._rules.loses_step)
        pause_ms += restore_ms(self._job, self._grid.stages)
        pace = self.rate(state)
        return restored(self._job, pace, state.since_ms, after, fleet, now_ms, pause_ms)

    def _is_whole(self, group: tuple[int, ...]) -> bool:
        return len(group) == self._grid.stages

    def _grouped(self, state: Groups, fleet: Fleet) -> Groups:
        """Whole groups stay; the others are filled up in order."""
        pipelines, stages = self._grid
        groups = [[node for node in group if node in fleet.ready] for group in state.seats]
        groups += [[] for _ in range(pipelines - len(groups))]
        if self._merges:
            groups = [group if len(group) == stages else [] for group in groups]
        held = {node for group in groups for node in group}
        free = [node for node in ordered(fleet, self._job.common.seats_seed) if node not in held]
        for group in sorted(groups, key=len, reverse=True):
            while free and len(group) < stages:
                group.append(free.pop(0))
        seats = tuple(tuple(group) for group in groups)
        whole = tuple(node for group in seats if self._is_whole(group) for node in group)
        return state._replace(seats=seats, whole=whole)
