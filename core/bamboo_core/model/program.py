"""Instructions and programs: what an agent does in one step, in order, as data with a text form.

Steps are relative to the step for which the program runs (0: that step, -1: the previous one), so
one program serves every step. A program is a sequence of instructions: a tuple, or :class:`Packed`.
Its text form has one instruction per line, round-trips, and is what the wire carries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple, TypeVar, overload

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, numbered, parse_item

_T = TypeVar("_T")


class Op(StrEnum):
    """The operation of an instruction. [lo:hi] is a layer range; m, l, z: its index."""

    INIT = "INIT"  # [lo:hi]: build the initial weights of the layers: version 0
    LOAD = "LOAD"  # [lo:hi]: read version `step` of the layers from the attempt's checkpoint
    F = "F"  # [lo:hi] m: forward. With a range a:hi it continues after layers lo..a-1
    R = "R"  # [lo:hi] m a:b: layers a..b-1 of a forward that another agent owns, done ahead
    B = "B"  # [lo:hi] m: backward, I and W in one
    I = "I"  # noqa: E741  [lo:hi] m: input gradient
    W = "W"  # [lo:hi] m: weight gradient, added to the leaf sum
    FOLD = "FOLD"  # [lo:hi] l a:b: add the sums of leaves a..l-1 and l..b-1
    SLICE = "SLICE"  # [lo:hi] a:b 0:k: cut the sum of leaves a..b-1 into k slices, to send them
    REDUCE = "REDUCE"  # [lo:hi] z 0:k a:b b:c ...: add slice z of k of these sums, in tree order
    V = "V"  # [lo:hi] m: forward of a validation micro-batch
    # ranges, three for each stage: its layers, the agent's layers of it, 0:k with k slices. Attest
    # the reduced gradients and versions of the agent's layers
    VOTE = "VOTE"
    COMMIT = "COMMIT"  # agents: commit the step, since all of these have voted
    # [lo:hi] a:b 0:k: optimizer step; the stage's layers, and its k slices. The same two follow for
    # each other stage with layers that are tied to these
    UPDATE = "UPDATE"
    SAVE = "SAVE"  # [lo:hi]: write version `step` of these layers (in the background)
    # write the manifest of version `step` once every layer's file is recorded. With a value of the
    # validation: item, the commit whose record has it; or 0:n, the micro-batches whose scores do
    SEAL = "SEAL"
    END = "END"  # free what the step has retained
    SEND = "SEND"  # item, peer
    RECV = "RECV"  # item, peer: wait for its arrival
    EXIT = "EXIT"  # leave the job

    __hash__ = str.__hash__  # Enum's own is a slow Python function


BACKWARDS = frozenset({Op.B, Op.I, Op.W})
COMPUTE = frozenset({Op.F, Op.R, Op.V}) | BACKWARDS


class Instruction(NamedTuple):
    """One instruction. ``every`` n > 1: runs only in absolute steps that n divides."""

    op: Op
    step: int = 0
    lo: int = 0
    hi: int = 0
    index: int = 0  # type: ignore[assignment]
    item: Item | None = None
    peer: AgentId = AgentId("")
    ranges: tuple[Range, ...] = ()
    agents: tuple[AgentId, ...] = ()
    every: int = 0

    def __str__(self) -> str:
        op, step, lo, hi, index, item, peer, ranges, agents, every = self
        text = _WORDS[op]
        if hi:
            text += f"[{lo}:{hi}]"
        if op in _INDEXED:
            text += f" m{index}"
        if item is not None:
            text += f" ({item.__str__()})"
        if peer:
            text += f" <{peer}" if op is _RECV else f" >{peer}"
        if not (ranges or agents or step or every):
            return text
        for a, b in ranges:
            text += f" {a}:{b}"
        if agents:
            text += f" {{{','.join(agents)}}}"
        if step:
            text += f" @{step}"
        return f"{text} /{every}" if every else text


Program = Sequence[Instruction]
"""A tuple, or Packed. The same instructions make equal programs."""

_new = tuple.__new__  # five times faster


class Messages:
    """SENDs, or RECVs, that follow each other: one for each item, to or from the peer beside it.

    The items are of one kind, and there is at least one. None is skipped: their ``every`` is 0.
    """

    __slots__ = ("_lines", "_whole", "items", "op", "peers")

    def __init__(self, op: Op, items: tuple[Item, ...], peers: tuple[AgentId, ...]) -> None:
        self.op, self.items, self.peers = op, items, peers
        self._lines: list[str] | None = None
        self._whole: tuple[Messages, list[int]] | None = None  # of which these are some

    def only(self, places: list[int]) -> Messages:
        """Those at these places."""
        found = Messages(self.op, _picked(self.items, places), _picked(self.peers, places))
        found._whole = self, places
        return found

    def instructions(self) -> list[Instruction]:
        """One by one."""
        op = self.op
        return [
            _new(Instruction, (op, 0, 0, 0, 0, item, peer, (), (), 0))
            for item, peer in zip(self.items, self.peers, strict=True)
        ]

    def lines(self) -> list[str]:
        """Their text. That of RECVs is kept, since agents that gather the same items share it."""
        if self._lines is not None:
            return self._lines
        if self._whole is not None:
            whole, places = self._whole
            return list(_picked(whole.lines(), places))
        found = self._written()
        if self.op is _RECV:
            self._lines = found
        return found

    def _written(self) -> list[str]:
        items, peers = self.items, self.peers
        begin, middle = f"{_WORDS[self.op]} (", ") >" if self.op is _SEND else ") <"
        if items.count(first := items[0]) == len(items):
            start = f"{begin}{first.__str__()}{middle}"
            return [start + peer for peer in peers]
        found = numbered(items)
        if found is None:
            pairs = zip(items, peers, strict=True)
            return [f"{begin}{item.__str__()}{middle}{peer}" for item, peer in pairs]
        start, end, numbers = begin + found[0], found[1] + middle, found[2]
        return [f"{start}{number}{end}{peer}" for number, peer in zip(numbers, peers, strict=True)]


def _picked(values: Sequence[_T], places: list[int]) -> tuple[_T, ...]:
    """Those at these places. An itemgetter is fast, but gives a tuple only of two or more."""
    found: tuple[_T, ...] = itemgetter(*places, 0, 0)(values)
    return found[:-2]


class Packed(Sequence[Instruction]):
    """A program of a large grid, nine of ten of whose instructions are messages.

    It is equal to the tuple of its instructions. ``parts``: where messages follow each other, they
    are one part; every other instruction is a part of its own.
    """

    __slots__ = ("_hash", "_length", "_single", "parts")

    def __init__(self, parts: Sequence[Instruction | Messages]) -> None:
        self.parts = tuple(parts)
        self._length = sum(len(x.items) if isinstance(x, Messages) else 1 for x in self.parts)
        self._hash: int | None = None
        self._single: list[Instruction] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Instruction]:
        for x in self.parts:
            if isinstance(x, Messages):
                yield from x.instructions()
            else:
                yield x

    def single(self) -> Sequence[Instruction]:
        """The instructions that are not among :class:`Messages`."""
        if self._single is None:
            self._single = [x for x in self.parts if not isinstance(x, Messages)]
        return self._single

    @overload
    def __getitem__(self, at: int) -> Instruction: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Instruction, ...]: ...
    def __getitem__(self, at: int | slice) -> Instruction | tuple[Instruction, ...]:
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Packed) and tuple(self) == tuple(other)

    def __reduce__(self) -> tuple[type[Packed], tuple[Sequence[Instruction | Messages]]]:
        return Packed, (self.parts,)  # without the hash, which is another one in other processes

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def __repr__(self) -> str:
        return f"Packed({tuple(self)!r})"


def parts_of(program: Program) -> Sequence[Instruction | Messages]:
    """The parts of the program, for callers that need not look at each message."""
    return program.parts if isinstance(program, Packed) else program


def single(program: Program) -> Sequence[Instruction]:
    """The instructions that are not among :class:`Messages`."""
    return program.single() if isinstance(program, Packed) else program


def layers_done(forward: Instruction) -> int:
    """Layers of the stage that are done before this F or R, which continues after them."""
    return forward.ranges[0][0] - forward.lo if forward.ranges else 0


_WORDS = {op: op.value for op in Op}  # faster than an Enum's attributes
_SEND, _RECV = Op.SEND, Op.RECV
_INDEXED = COMPUTE | {Op.FOLD, Op.REDUCE}
_HEAD = re.compile(r"([A-Z]+)(?:\[(\d+):(\d+)\])?")
_WORD = re.compile(
    r"m(?P<index>\d+)|\((?P<item>[^)]*)\)|[<>](?P<peer>\S+)|(?P<lo>\d+):(?P<hi>\d+)"
    r"|\{(?P<agents>[^}]*)\}|@(?P<step>-?\d+)|/(?P<every>\d+)"
)


def voted(ranges: tuple[Range, ...]) -> Iterator[tuple[Range, Range, Range]]:
    """The ranges of a VOTE: of the cut, the agent's layers within it, and the slices."""
    return zip(ranges[::3], ranges[1::3], ranges[2::3], strict=True)


def updating(ranges: tuple[Range, ...]) -> Iterator[tuple[Range, Range]]:
    """The ranges of an UPDATE: of the cut, and the slices. The first has the layers that are
    updated, the others have layers that are tied to these."""
    return zip(ranges[::2], ranges[1::2], strict=True)


def parse_instruction(line: str) -> Instruction:
    """Inverse of ``str(instruction)``. ValueError names a line that is not an instruction."""
    head = _HEAD.match(line)
    if head is None or head[1] not in Op.__members__:
        raise ValueError(f"not an instruction: {line!r}")
    out = Instruction(Op(head[1]), lo=int(head[2] or 0), hi=int(head[3] or 0))
    at = head.end()
    while at < len(line):
        word = _WORD.match(line, at + 1) if line[at] == " " else None
        if word is None:
            raise ValueError(f"not an instruction: {line!r} at character {at}")
        out, at = _with_word(out, word), word.end()
    return out


def _with_word(instruction: Instruction, word: re.Match[str]) -> Instruction:
    if word["lo"] is not None:
        ranges = (*instruction.ranges, (int(word["lo"]), int(word["hi"])))
        return instruction._replace(ranges=ranges)
    if word["item"] is not None:
        return instruction._replace(item=parse_item(word["item"]))
    if word["peer"] is not None:
        return instruction._replace(peer=AgentId(word["peer"]))
    if word["agents"] is not None:
        agents = tuple(AgentId(a) for a in word["agents"].split(","))
        return instruction._replace(agents=agents)
    if word["index"] is not None:
        return instruction._replace(index=int(word["index"]))
    if word["step"] is not None:
        return instruction._replace(step=int(word["step"]))
    return instruction._replace(every=int(word["every"]))


def to_text(program: Program) -> str:
    """One instruction per line.

    Nine of ten instructions of a large grid are messages, and those with one item often follow each
    other: their lines are made here, from the item's text.
    """
    lines: list[str] = []
    named: Item | None = None
    name = ""
    for x in parts_of(program):
        if isinstance(x, Messages):
            lines += x.lines()
            continue
        op, step, lo, hi, index, item, peer, ranges, agents, every = x
        if step or every or ranges or agents:
            lines.append(x.__str__())
        elif item is None and hi and not peer and op in _INDEXED:
            lines.append(f"{_WORDS[op]}[{lo}:{hi}] m{index}")
        elif item is None or hi or not peer or not (op is _SEND or op is _RECV):
            lines.append(x.__str__())
        else:
            if item is not named:
                named, name = item, item.__str__()
            lines.append(f"SEND ({name}) >{peer}" if op is _SEND else f"RECV ({name}) <{peer}")
    lines.append("")
    return "\n".join(lines)


def parse(text: str) -> Program:
    """Inverse of :func:`to_text`; skips blank lines and lines that begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(parse_instruction(line) for line in lines if line and not line.startswith("#"))
