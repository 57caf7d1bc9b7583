"""Leaves that move together: those of one chunk in one pipeline."""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.model.ids import AgentId
from bamboo_core.model.numerics import BatchShape
from bamboo_core.scheduling.sharing.step_work import StepWork, Work, WorkMap

_Key = tuple[int, int, tuple[AgentId | None, ...]]


class Blocks:
    """The work of a step in blocks. ``step``: the same work, with blocks in the place of leaves."""

    def __init__(self, step: StepWork) -> None:
        self._fine, self._leaves = step, _blocks(step)
        dealt = tuple(step.pipelines[leaves[0]] for leaves in self._leaves)
        self.are_whole = len(self._leaves) <= len(step.seats)
        credit: dict[tuple[Work, AgentId], float] = {}
        weight: dict[Work, float] = {}
        pinned: dict[Work, AgentId] = {}
        place = {leaf: at for at, leaves in enumerate(self._leaves) for leaf in leaves}
        for s in step.stages:
            for at, leaves in enumerate(self._leaves):
                weight[s, at] = sum(step.weight.get((s, leaf), 1.0) for leaf in leaves)
                owner = step.pinned.get((s, leaves[0]))
                if owner is not None:
                    pinned[s, at] = owner
        for ((s, leaf), agent), saved in step.credit.items():
            key = (s, place[leaf]), agent
            credit[key] = credit.get(key, 0.0) + saved
        self.step = replace(
            step,
            batch=BatchShape(len(self._leaves), 1, 1),
            weight=weight,
            pinned=pinned,
            base=step.loads,
            credit=credit,
            dealt=dealt,
        )

    def apart(self, work: WorkMap) -> WorkMap:
        """The map of the leaves."""
        return {(s, leaf): a for (s, at), a in work.items() for leaf in self._leaves[at]}


def _blocks(step: StepWork) -> list[list[int]]:
    """All leaves, ascending by their first one. Leaves pinned to different agents stand apart."""
    out: dict[_Key, list[int]] = {}
    for leaf, d in enumerate(step.pipelines):
        pins = tuple(step.pinned.get((s, leaf)) for s in step.stages) if step.pinned else ()
        out.setdefault((d, step.batch.chunk_of(leaf), pins), []).append(leaf)
    return sorted(out.values())
