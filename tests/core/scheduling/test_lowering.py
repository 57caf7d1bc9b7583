"""Programs from the order of tasks, against a slow lowering that looks through whole lanes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo_core.api.spec import RedundancyMode
from bamboo_core.graph.closure import Periodic
from bamboo_core.model.items import BULK
from bamboo_core.model.numerics import choose
from bamboo_core.model.program import Instruction, Op
from bamboo_core.scheduling import schedule
from bamboo_core.scheduling.indexed_graph import IndexedGraph
from bamboo_core.scheduling.lowering import Lowering

from .steps import step


def lane(transfer):
    return transfer.source, transfer.target, transfer.item.kind in BULK


class Slow:
    """Each message is made anew, and each lane is a list of what is to come."""

    def __init__(self, graph: IndexedGraph, order: list[list[int]]) -> None:
        self.graph, self.order = graph, order
        self.ranks: dict[tuple[int, ...], dict[str, int]] = {}
        for agent, instruction in graph.tasks:
            if instruction.op is Op.REDUCE:
                ranks = self.ranks.setdefault((instruction.lo, instruction.hi), {})
                ranks.setdefault(agent, len(ranks))

    def programs(self):
        agents = self.graph.agents
        sent = [self.sends(name, tasks) for name, tasks in zip(agents, self.order, strict=True)]
        channels = {}
        for transfers in sent:
            for transfer in (t for group in transfers.values() for t in group):
                channels.setdefault(lane(transfer), []).append(transfer)
        return {
            name: tuple(self.program(name, tasks, sends, channels))
            for name, tasks, sends in zip(agents, self.order, sent, strict=True)
        }

    def sends(self, name, tasks):
        """Task number -> transfers that follow it; -1: first."""
        graph = self.graph
        begun = {i: at for tasks in self.order for at, i in enumerate(tasks)}
        first = {key: min(begun[i] for i in x) for key, x in graph.openers.items()}
        opening = [graph.opening[key] for key in sorted(first, key=lambda key: first[key])]
        out = {-1: [t for t in opening if t.source == name]}
        for i in tasks:
            out[i] = self.in_turn(graph.tasks[i], graph.outbound[i])
        closing = [t for t in graph.closing.values() if t.source == name]
        if closing:
            ends = (Op.END, Op.EXIT)
            last = [i for i in tasks if graph.tasks[i].instruction.op not in ends][-1]
            out[last] = out[last] + closing
        return out

    def in_turn(self, task, transfers):
        if self.graph.is_ordered:
            return transfers
        ranks = self.ranks.get((task.instruction.lo, task.instruction.hi))
        if ranks is None or task.instruction.op not in (Op.SLICE, Op.REDUCE):
            return transfers
        rank, count = ranks.get(task.agent, 0), len(ranks)
        peers = [t for t in transfers if t.target in ranks]
        others = [t for t in transfers if t.target not in ranks]
        peers.sort(key=lambda t: (ranks[t.target] - rank) % count)
        first = rank * len(others) // count
        copies = others[first:] + others[:first]
        return peers + copies

    def program(self, name, tasks, sends, channels):
        yield from (self.message(Op.SEND, t, t.target) for t in sends[-1])
        for i in tasks:
            for wanted in self.graph.inbound[i]:
                channel = channels[lane(wanted)]
                while any(t is wanted for t in channel):
                    transfer = channel.pop(0)
                    yield self.message(Op.RECV, transfer, transfer.source)
            if self.graph.tasks[i].instruction.op is not Op.RECV:
                yield self.graph.tasks[i].instruction
            yield from (self.message(Op.SEND, t, t.target) for t in sends[i])

    def message(self, op, transfer, peer):
        reader = self.graph.openers.get(id(transfer), [0])[0]
        task = (transfer.producer or self.graph.tasks[reader]).instruction
        at = task.step if task.every else 0
        return Instruction(op, at, item=transfer.item, peer=peer, every=task.every)


@given(
    pipelines=st.integers(1, 5),
    stages=st.integers(1, 4),
    per_pipeline=st.integers(1, 6),
    mode=st.sampled_from(list(RedundancyMode)),
    saves=st.booleans(),
    relays=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_programs_are_those_of_the_slow_lowering(
    pipelines, stages, per_pipeline, mode, saves, relays, data
):
    """relays: without them, no simulation puts slices in order."""
    seats = [(d, s) for d in range(pipelines) for s in range(stages)]
    lost = data.draw(st.lists(st.sampled_from(seats), max_size=pipelines - 1, unique=True))
    batch = choose(
        microbatches=pipelines * per_pipeline,
        pipelines_max=pipelines,
    )
    periodic = Periodic(evals=2, validate_every=3, saves=saves, save_every=5)
    shape = step(batch, pipelines, stages, lost, mode=mode, periodic=periodic, relays=relays)
    made = {}

    class Both(Lowering):
        def programs(self):
            made["slow"] = Slow(self._graph, self._order).programs()
            made["fast"] = super().programs()
            return made["fast"]

    usual, schedule.Lowering = schedule.Lowering, Both
    try:
        assert shape.build().programs
    finally:
        schedule.Lowering = usual
    assert made["fast"] == made["slow"]


def test_agents_that_get_the_same_slice_have_the_same_instruction():
    """A large grid has a hundred thousand of them."""
    batch = choose(microbatches=16, pipelines_max=4)
    programs = step(batch, 4, 2).build().programs
    found: dict[Instruction, set[int]] = {}
    for program in programs.values():
        for x in program:
            if x.op is Op.RECV and x.item is not None and x.item.kind.name == "RED":
                found.setdefault(x, set()).add(id(x))
    assert found
    assert all(len(ids) == 1 for ids in found.values())
