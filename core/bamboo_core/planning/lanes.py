"""Lanes: the forwards of its ring successor's stage that each agent may compute while it waits.

The input of such a forward is the agent's own output, which it keeps until the step ends, or the
samples for the first stage: nothing is sent for it. ("Eager FRC" of Bamboo, NSDI'23, section 5.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, Op, Program, single
from bamboo_core.placement.plan import Cut, layers_of
from bamboo_core.planning.messages import Programs


def lanes(
    programs: Programs,
    *,
    cut: Cut,
    wants: Mapping[AgentId, Collection[Range]],
    held: Mapping[AgentId, Collection[Item]],
) -> Programs:
    """One lane per agent that has something to compute ahead; items have relative steps.

    cut: of the step; wants: layers that agents hold; held: what agents hold at the beginning.
    """
    found = {a: _lane(p, cut, wants.get(a, ()), held.get(a, ())) for a, p in programs.items()}
    return {agent: lane for agent, lane in found.items() if lane}


def _lane(program: Program, cut: Cut, wanted: Collection[Range], held: Collection[Item]) -> Program:
    if len(cut) < 2:
        return ()
    layers = set(layers_of(wanted))
    own: dict[Range, set[int]] = {}  # stage -> micro-batches whose forward the program runs
    for x in single(program):
        if x.op is Op.F:
            own.setdefault((x.lo, x.hi), set()).add(x.index)
    out: list[Instruction] = []
    for stage, span in enumerate(cut):
        (lo, hi) = following = cut[(stage + 1) % len(cut)]
        if layers.issuperset(range(lo, hi)):
            ready = own.get(span, set()) | {i.index for i in held if i == Item.out(0, lo, i.index)}
            begun = _begun(held, following)  # it goes on, though its input may be gone
            left = (ready | begun.keys()) - own.get(following, set()) - _activated(held, following)
            out += _slices(sorted(left), following, begun)
    return tuple(out)


def _activated(held: Iterable[Item], span: Range) -> set[int]:
    """Micro-batches whose forward this agent has computed as the owner."""
    return {i.index for i in held if i == Item.act(0, span, i.index)}


def _begun(held: Iterable[Item], span: Range) -> dict[int, int]:
    """Micro-batch -> layers that this agent has computed ahead."""
    return {i.index: i.part for i in held if i.kind is Kind.PREFIX and i[1:4] == (0, *span)}


def _slices(
    microbatches: Iterable[int], span: Range, begun: Mapping[int, int]
) -> Iterator[Instruction]:
    lo, hi = span
    for m in microbatches:
        for layer in range(lo + begun.get(m, 0), hi):
            yield Instruction(Op.R, 0, lo, hi, m, ranges=((layer, layer + 1),))
