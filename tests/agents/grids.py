"""Directives for a whole grid, written straight down: GPipe order, nothing lost, nothing planned.

They exercise the worker without the planner; the equality test also runs the planner's programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from bamboo_core.ids import AgentId, Fence, Range
from bamboo_core.items import Item, Kind
from bamboo_core.messages import Directive, Manifest, Peer
from bamboo_core.numerics import BatchShape
from bamboo_core.program import Instruction, Op, Program

FIRST = Fence(attempt=0, term=1, epoch=1)


def name(d: int, s: int) -> AgentId:
    return AgentId(f"a{d}-{s}")


def even_cut(layers: int, stages: int) -> tuple[Range, ...]:
    bounds = [layers * s // stages for s in range(stages + 1)]
    return tuple((bounds[s], bounds[s + 1]) for s in range(stages))


class Grid:
    """D pipelines of P stages; leaf l belongs to pipeline l * D div n."""

    def __init__(
        self, *, pipelines: int, cut: Sequence[Range], batch: BatchShape, split: bool = False
    ) -> None:
        self.d, self.cut, self.batch, self.split = pipelines, tuple(cut), batch, split
        self.p = len(cut)
        self.agents = tuple(sorted(name(d, s) for d in range(pipelines) for s in range(self.p)))

    def directives(
        self,
        *,
        steps: int,
        first: int = 0,
        fence: Fence = FIRST,
        manifest: Manifest | None = None,
        validate: int = 0,
        save: bool = False,
        peers: tuple[Peer, ...] = (),
        keys: dict[AgentId, bytes] | None = None,
    ) -> dict[AgentId, Directive]:
        """Train steps first..steps-1; validate: validation micro-batches in every step."""
        out = {}
        for d in range(self.d):
            for s in range(self.p):
                agent, (lo, hi) = name(d, s), self.cut[s]
                enter = Instruction(Op.LOAD if manifest else Op.INIT, 0, lo, hi)
                step = (*self._validation(d, s, validate), *self._step(d, s))
                final = (*self._validation(d, s, validate), *self._end(d, s, (), save=save))
                out[agent] = Directive(
                    fence=fence,
                    target=first,
                    last=steps,
                    resume=(enter, *(step if first < steps else final)),
                    steady=step,
                    final=final,
                    wanted=((lo, hi),),
                    batch=self.batch,
                    coordinator=self.agents[0],
                    voters=self.agents,
                    peers=tuple(p for p in peers if p.agent != agent),
                    key=(keys or {}).get(agent, b""),
                    manifest=manifest,
                )
        return out

    def home(self, leaf: int) -> int:
        return leaf * self.d // self.batch.leaves

    def _validation(self, d: int, s: int, count: int) -> Program:
        (lo, hi), out = self.cut[s], []
        for m in range(count if d == 0 else 0):
            if s:
                out.append(_receive(Item(Kind.EVAL, 0, lo, 0, m), name(d, s - 1)))
            out.append(Instruction(Op.V, 0, lo, hi, m))
            if s + 1 < self.p:
                out.append(_send(Item(Kind.EVAL, 0, hi, 0, m), name(d, s + 1)))
        return tuple(out)

    def _step(self, d: int, s: int) -> Program:
        leaves = [x for x in range(self.batch.leaves) if self.home(x) == d]
        mine = [m for leaf in leaves for m in self.batch.microbatches_of(leaf)]
        out = [i for m in mine for i in self._forward(d, s, m)]
        out += [i for m in mine for i in self._backward(d, s, m)]
        out += self._fold(d, s, leaves)
        out += self._reduce(d, s)
        return (*out, *self._end(d, s, (self.cut[s],)))

    def _forward(self, d: int, s: int, m: int) -> list[Instruction]:
        (lo, hi), out = self.cut[s], []
        if s:
            out.append(_receive(Item(Kind.OUT, 0, lo, 0, m), name(d, s - 1)))
        out.append(Instruction(Op.F, 0, lo, hi, m))
        if s + 1 < self.p:
            out.append(_send(Item(Kind.OUT, 0, hi, 0, m), name(d, s + 1)))
        return out

    def _backward(self, d: int, s: int, m: int) -> list[Instruction]:
        (lo, hi), out = self.cut[s], []
        if s + 1 < self.p:
            out.append(_receive(Item(Kind.INGRAD, 0, hi, 0, m), name(d, s + 1)))
        ops = (Op.I, Op.W) if self.split and s else (Op.B,)
        out.append(Instruction(ops[0], 0, lo, hi, m))
        if s:
            out.append(_send(Item(Kind.INGRAD, 0, lo, 0, m), name(d, s - 1)))
        return out + [Instruction(op, 0, lo, hi, m) for op in ops[1:]]

    def collector(self, chunk: int) -> int:
        homes = [self.home(leaf) for leaf in self.batch.leaves_of(chunk)]
        return max(sorted(set(homes)), key=homes.count)

    def _fold(self, d: int, s: int, leaves: list[int]) -> list[Instruction]:
        lo, hi = self.cut[s]
        out = []
        for leaf in leaves:
            to = self.collector(self.batch.chunk_of(leaf))
            if to != d:
                out.append(_send(Item(Kind.LEAF, 0, lo, hi, leaf), name(to, s)))
        for leaf in range(self.batch.leaves):
            if self.collector(self.batch.chunk_of(leaf)) == d:
                if self.home(leaf) != d:
                    item = Item(Kind.LEAF, 0, lo, hi, leaf)
                    out.append(_receive(item, name(self.home(leaf), s)))
                out.append(Instruction(Op.FOLD, 0, lo, hi, leaf))
        return out

    def _reduce(self, d: int, s: int) -> list[Instruction]:
        lo, hi = self.cut[s]
        width = range(self.batch.chunks)
        out = [
            _send(Item(Kind.CHUNK, 0, lo, hi, c, z), name(z % self.d, s))
            for c in width
            for z in width
            if self.collector(c) == d != z % self.d
        ]
        for z in width:
            if z % self.d == d:
                out += [
                    _receive(Item(Kind.CHUNK, 0, lo, hi, c, z), name(self.collector(c), s))
                    for c in width
                    if self.collector(c) != d
                ]
                out.append(Instruction(Op.REDUCE, 0, lo, hi, z))
                others = [e for e in range(self.d) if e != d]
                out += [_send(Item(Kind.RED, 0, lo, hi, 0, z), name(e, s)) for e in others]
        away = [z for z in width if z % self.d != d]
        return out + [_receive(Item(Kind.RED, 0, lo, hi, 0, z), name(z % self.d, s)) for z in away]

    def _end(self, d: int, s: int, held: tuple[Range, ...], *, save: bool = False) -> Program:
        agent, first = name(d, s), self.agents[0]
        pairs = tuple(r for cut in held for r in (cut, cut))
        out = [Instruction(Op.VOTE, ranges=pairs)]
        others = [a for a in self.agents if a != first]
        if agent == first:
            out += [_receive(Item(Kind.VOTE, 0, agent=a), a) for a in others]
            out.append(Instruction(Op.COMMIT, agents=self.agents))
            out += [_send(Item(Kind.COMMIT, 0), a) for a in others]
        else:
            out.append(_send(Item(Kind.VOTE, 0, agent=agent), first))
            out.append(_receive(Item(Kind.COMMIT, 0), first))
        out += [Instruction(Op.UPDATE, 0, *cut, ranges=(cut,)) for cut in held]
        if save and d == 0:
            out += self._save(s)
        return (*out, Instruction(Op.END))

    def _save(self, s: int) -> list[Instruction]:
        (lo, hi), agent, first = self.cut[s], name(0, s), self.agents[0]
        out = [Instruction(Op.SAVE, 0, lo, hi)]
        if agent == first:
            homes = {x: name(0, t) for t, r in enumerate(self.cut) for x in range(*r)}
            out += [
                _receive(Item(Kind.FILE, 0, x, x + 1), home)
                for x, home in homes.items()
                if home != first
            ]
            return [*out, Instruction(Op.SEAL)]
        return out + [_send(Item(Kind.FILE, 0, x, x + 1), first) for x in range(lo, hi)]


def _send(item: Item, peer: AgentId) -> Instruction:
    return Instruction(Op.SEND, item=item, peer=peer)


def _receive(item: Item, peer: AgentId) -> Instruction:
    return Instruction(Op.RECV, item=item, peer=peer)
