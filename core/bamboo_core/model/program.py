"""Instructions and programs: what an agent does in one step, in order, as data with a text form.

Steps are relative to the step for which the program runs (0: that step, -1: the previous one), so
one program serves every step. A program is a tuple of instructions. Its text form has one
instruction per line, round-trips, and is what the wire carries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from bamboo_core.model.ids import AgentId, Range
from bamboo_core.model.items import Item, parse_item


class Op(StrEnum):
    """What an instruction does. [lo:hi] is a layer range; m, l, z: its index."""

    INIT = "INIT"  # [lo:hi]: build the initial weights of the layers: version 0
    LOAD = "LOAD"  # [lo:hi]: read version `step` of the layers from the attempt's checkpoint
    F = "F"  # [lo:hi] m: forward. With a range a:hi it continues after layers lo..a-1
    R = "R"  # [lo:hi] m a:b: layers a..b-1 of a forward that another agent owns, done ahead
    B = "B"  # [lo:hi] m: backward, I and W in one
    I = "I"  # noqa: E741  [lo:hi] m: input gradient
    W = "W"  # [lo:hi] m: weight gradient, added to the leaf sum
    FOLD = "FOLD"  # [lo:hi] l: add the sum of leaf l to its chunk
    REDUCE = "REDUCE"  # [lo:hi] z: add slice z of all chunks, in tree order
    V = "V"  # [lo:hi] m: forward of a validation micro-batch
    VOTE = "VOTE"  # ranges: attest the reduced gradients and versions of these layers
    COMMIT = "COMMIT"  # agents: commit the step, since all of these have voted
    UPDATE = "UPDATE"  # [lo:hi]: optimizer step
    SAVE = "SAVE"  # [lo:hi]: write version `step` of these layers (in the background)
    SEAL = "SEAL"  # write the manifest of version `step` once every layer's file is recorded
    END = "END"  # free what the step has retained
    SEND = "SEND"  # item, peer
    RECV = "RECV"  # item, peer: wait for its arrival
    EXIT = "EXIT"  # leave the job

    __hash__ = str.__hash__  # Enum's own is a slow Python function


COMPUTE = frozenset({Op.F, Op.R, Op.B, Op.I, Op.W, Op.V})


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


Program = tuple[Instruction, ...]


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


def to_text(program: Iterable[Instruction]) -> str:
    """One instruction per line.

    Nine of ten instructions of a large grid are messages, and those with one item often follow each
    other: their lines are made here, from the item's text.
    """
    lines: list[str] = []
    named: Item | None = None
    name = ""
    for x in program:
        op, step, _, hi, _, item, peer, ranges, agents, every = x
        is_message = op is _SEND or op is _RECV
        if not is_message or not item or hi or step or every or ranges or agents or not peer:
            lines.append(x.__str__())
            continue
        if item is not named:
            named, name = item, item.__str__()
        lines.append(f"SEND ({name}) >{peer}" if op is _SEND else f"RECV ({name}) <{peer}")
    lines.append("")
    return "\n".join(lines)


def parse(text: str) -> Program:
    """Inverse of :func:`to_text`; skips blank lines and lines that begin with #."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(parse_instruction(line) for line in lines if line and not line.startswith("#"))
