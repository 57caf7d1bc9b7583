"""How a layer reaches the target version on an agent: UPDATE, a copy, LOAD or INIT."""

from __future__ import annotations

from collections.abc import Callable

from bamboo_core.graph.builder import GraphBuilder
from bamboo_core.graph.tasks import Dependency, Gather, TaskId, Transfer
from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction, Op
from bamboo_core.model.ties import partners


class Versions:
    """Adds the tasks that produce weights. A copy is the transfer of a VER item.

    Copies carry the target version, so a newcomer is complete before the target step is committed
    and runs the same UPDATE as the others.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder, self._index = builder, builder.index
        self._at: dict[tuple[AgentId, int], Dependency | None] = {}
        self._updates: dict[tuple[AgentId, int, int], TaskId] = {}
        self._fresh: dict[tuple[AgentId, int], TaskId] = {}
        self._spans: dict[tuple[AgentId, Range], tuple[Dependency, ...]] = {}

    def dependencies(self, agent: AgentId, span: Range) -> tuple[Dependency, ...]:
        """Dependencies of an agent that needs all layers of a range at the target version."""
        key = (agent, span)
        if key not in self._spans:
            waits = (self.dependency(agent, layer) for layer in range(*span))
            self._spans[key] = tuple(w for w in dict.fromkeys(waits) if w is not None)
        return self._spans[key]

    def dependency(self, agent: AgentId, layer: int) -> Dependency | None:
        """Dependency of an agent that needs the layer at the target version; None if it has it."""
        key = (agent, layer)
        if key not in self._at:
            self._at[key] = self._produce(agent, layer)
        return self._at[key]

    def _produce(self, agent: AgentId, layer: int) -> Dependency | None:
        if layer in self._index.have[agent]:
            return self._version(agent, layer, 0)
        if self._is_fresh(agent, layer):
            return self._make(agent, layer)
        source = self._builder.nearest(self._index.sources[layer], agent)
        made = self.dependency(source, layer)
        assert not isinstance(made, Transfer | Gather)
        return Transfer(Item.ver(0, layer), source, agent, made)

    def _version(self, agent: AgentId, layer: int, step: int) -> TaskId | None:
        if self._index.have[agent][layer] == step:
            return None
        return self._update(agent, layer, step - 1)

    def _update(self, agent: AgentId, layer: int, step: int) -> TaskId:
        """Roll a laggard's layer forward, with all layers of the same range that lag too."""
        cut, slices = self._index.reduced_in[step, layer]
        have = self._index.have[agent]
        lo, hi = run_around(layer, cut, lambda x: have.get(x, 0) <= step and x in have)
        key = (agent, lo, step)
        if key not in self._updates:
            older = (self._version(agent, x, step) for x in range(lo, hi))
            waits: list[Dependency | None] = [*dict.fromkeys(older)]
            sums = [(cut, slices), *self._tied(step, (lo, hi), cut)]
            for each, count in sums:
                for z in range(count):
                    waits.append(self._builder.fetch(Item.red(step, each, z, count), agent))
            waits.append(self._builder.fetch(Item.commit(step), agent))
            ranges = tuple(x for each, count in sums for x in (each, (0, count)))
            update = Instruction(Op.UPDATE, step, lo, hi, ranges=ranges)
            self._updates[key] = self._builder.add(agent, update, waits)
        return self._updates[key]

    def _tied(self, step: int, span: Range, cut: Range) -> list[tuple[Range, int]]:
        """Reduced gradients of other ranges that these layers need, with their slices."""
        with_ties = partners(self._builder.ties)
        others = (x for layer in range(*span) for x in with_ties.get(layer, ()))
        found = dict.fromkeys(self._index.reduced_in[step, x] for x in sorted(others))
        return [(each, count) for each, count in found if each != cut]

    def updates(self, agent: AgentId, step: int) -> list[TaskId]:
        """The agent's updates of an older step."""
        return [t for (a, _, k), t in self._updates.items() if a == agent and k == step]

    def _is_fresh(self, agent: AgentId, layer: int) -> bool:
        """Whether the agent builds or reads the layer instead of receiving it."""
        if layer in self._index.have[agent]:
            return False
        if self._builder.initial or layer not in self._index.sources:
            return True
        return self._builder.prefers_files and layer in self._builder.files

    def _make(self, agent: AgentId, layer: int) -> TaskId:
        part = self._builder.takes_part.get(agent, ())
        lo, hi = run_around(
            layer,
            (0, self._builder.layers),
            lambda x: x == layer or (x in part and self._is_fresh(agent, x)),
        )
        key = (agent, lo)
        if key not in self._fresh:
            op = Op.INIT if self._builder.initial else Op.LOAD
            self._fresh[key] = self._builder.add(agent, Instruction(op, 0, lo, hi), ())
        return self._fresh[key]


def run_around(layer: int, within: Range, belongs: Callable[[int], bool]) -> Range:
    """The longest range around the layer whose other layers all satisfy ``belongs``."""
    lo, hi = layer, layer + 1
    while lo > within[0] and belongs(lo - 1):
        lo -= 1
    while hi < within[1] and belongs(hi):
        hi += 1
    return lo, hi
