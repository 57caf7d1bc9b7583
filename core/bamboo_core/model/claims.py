"""Claims: what agents say about forwards that two of them compute, and where they differ.

An agent claims every whole forward that it computes, by the name of the last slice, and sends the
claims of a step with its vote. Equal names mean equal bits, so two claims of one name must agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction


@dataclass(frozen=True)
class Claim:
    """What a voter has computed in one forward."""

    agent: AgentId
    entered: int  # digest of the input as it was used
    digest: int  # of the result


@dataclass(frozen=True)
class Dispute:
    """Voters do not agree about a forward of layers ``lo`` to ``hi - 1``."""

    lo: int
    hi: int
    microbatch: int
    claims: tuple[Claim, ...]  # by agent


Claims = dict[Item, tuple[int, int]]
"""Name -> digest of the input as it was used, and of the result."""


class DisputedError(Exception):
    """The voters do not agree, so there is no commit."""

    def __init__(self, found: tuple[Dispute, ...]) -> None:
        super().__init__(f"{len(found)} forwards differ between voters")
        self.disputes = found


def name_of(forward: Instruction) -> Item:
    """What an F, or the last R of a forward, makes a claim about."""
    span = forward.lo, forward.hi
    return Item.prefix(forward.step, span, forward.index, forward.hi - forward.lo)


@dataclass
class ClaimBook:
    """What one agent has claimed. Nothing here is ever sent but ``made``."""

    made: Claims = field(default_factory=dict)  # they count
    retracted: Claims = field(default_factory=dict)  # of a step that was void: they do not

    def add(self, name: Item, entered: int, digest: int) -> bool:
        """Claim a forward. False: this agent has made another result of the same input before."""
        known = [claims[name] for claims in (self.made, self.retracted) if name in claims]
        self.made[name] = entered, digest
        return all(said[0] != entered or said[1] == digest for said in known)

    def of(self, step: int) -> Claims:
        """The claims of a step, for its vote. Those of earlier steps are forgotten."""
        self.made = {name: said for name, said in self.made.items() if name.step >= step}
        self.retracted = {name: said for name, said in self.retracted.items() if name.step >= step}
        return {name: said for name, said in self.made.items() if name.step == step}

    def retract(self) -> None:
        """The step is void. The results to come must be those of before."""
        self.retracted |= self.made
        self.made = {}

    def forget(self) -> None:
        """A new attempt begins."""
        self.made, self.retracted = {}, {}

    def copy(self) -> ClaimBook:
        """An independent copy."""
        return ClaimBook(self.made.copy(), self.retracted.copy())


def disputes(cast: Mapping[AgentId, Mapping[Item, tuple[int, int]]]) -> tuple[Dispute, ...]:
    """Names about which the voters do not agree, the earliest stage first.

    Also those whose input is not what the stage before has made: it was altered since then.
    """
    said: dict[Item, list[Claim]] = defaultdict(list)
    for agent, own in sorted(cast.items()):
        for name, digests in own.items():
            said[name].append(Claim(agent, *digests))
    made = {(name.step, name.hi, name.index): {c.digest for c in said[name]} for name in said}
    found = []
    for name, claims in sorted(said.items()):
        entered = {claim.entered for claim in claims}
        given = made.get((name.step, name.lo, name.index), entered)
        if len({claim.digest for claim in claims}) > 1 or not entered <= given:
            found.append(Dispute(name.lo, name.hi, name.index, tuple(claims)))
    return tuple(found)
