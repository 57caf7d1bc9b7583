"""Claims: what agents say about forwards that two of them compute, about copies of layers, and
about reduced gradients.

An agent claims every whole forward that it computes, by the name of the last slice, and sends the
claims of a step with its vote. In some steps it also claims the layers that it holds, by the names
of their versions. Every vote has the norms of gradients and the losses; they are claims, too. Equal
names mean equal bits, so two claims of one name must agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction

COPIES, GRADIENTS = -1, -2
"""In place of a dispute's micro-batch: what it is about."""

_ORDER = {Kind.VER: 0, Kind.PREFIX: 1, Kind.RED: 2}
_ABOUT = {Kind.VER: COPIES, Kind.RED: GRADIENTS}


@dataclass(frozen=True)
class Claim:
    """The digest of a voter's forward, or of its copy of a layer."""

    agent: AgentId
    entered: int  # digest of the input as it was used; of a layer: 0
    digest: int  # of the result, or of the layer's weights, buffers and optimizer state
    layers: int = 0  # digest of the state of the layers; 0: not taken


@dataclass(frozen=True)
class Dispute:
    """Voters do not agree about a forward of layers ``lo`` to ``hi - 1``, or hold copies or reduced
    gradients of layer ``lo`` that differ."""

    lo: int
    hi: int
    microbatch: int  # or COPIES, GRADIENTS
    claims: tuple[Claim, ...]  # by agent

    @property
    def is_of_copies(self) -> bool:
        """Whether copies of a layer differ. What is wrong with one of them is committed."""
        return self.microbatch == COPIES

    @property
    def is_of_gradients(self) -> bool:
        """Whether reduced gradients of a layer, or losses, differ. Nothing wrong is committed, and
        no third computation can tell who is wrong."""
        return self.microbatch == GRADIENTS


@dataclass(frozen=True)
class Question:
    """A dispute that neither agent has lost by contradicting itself: a third one decides."""

    step: int
    dispute: Dispute

    @property
    def agents(self) -> frozenset[AgentId]:
        """The agents that differ."""
        return frozenset(claim.agent for claim in self.dispute.claims)

    @property
    def name(self) -> Item:
        """The name of the forward about which they make claims."""
        lo, hi = self.dispute.lo, self.dispute.hi
        return Item.prefix(self.step, (lo, hi), self.dispute.microbatch, hi - lo)


class Said(NamedTuple):
    """A claim without its agent and name."""

    entered: int
    digest: int
    layers: int = 0


Claims = dict[Item, Said]
"""What an agent claims, by the name of the forward."""


class DisputedError(Exception):
    """The voters do not agree, so there is no commit."""

    def __init__(self, found: tuple[Dispute, ...]) -> None:
        super().__init__(f"{len(found)} results differ between voters")
        self.disputes = found


def about_gradient(step: int, layer: int) -> Item:
    """The name of what a vote says of a layer's reduced gradient."""
    return Item.red(step, (layer, layer + 1), 0, 2)


def about_losses(step: int, layers: int) -> Item:
    """The name of what a vote says of the losses. layers: of the model; the last one has them."""
    return Item.red(step, (layers - 1, layers), 1, 2)


def name_of(forward: Instruction) -> Item:
    """The name of the forward about which an F, or the last R of a forward, makes a claim."""
    span = forward.lo, forward.hi
    return Item.prefix(forward.step, span, forward.index, forward.hi - forward.lo)


@dataclass
class ClaimBook:
    """The claims of one agent. Nothing here is ever sent but ``made``."""

    made: Claims = field(default_factory=dict)  # they count
    retracted: Claims = field(default_factory=dict)  # of a step that was void: they do not
    again: int | None = None  # the step that is computed again; -1: the next one that is computed

    def add(self, name: Item, entered: int, digest: int, layers: int = 0) -> bool:
        """Claim a forward. False: this agent has made another result of the same input before."""
        known = [claims[name] for claims in (self.made, self.retracted) if name in claims]
        self.made[name] = Said(entered, digest, layers)
        return all(said.entered != entered or said.digest == digest for said in known)

    def is_again(self, step: int) -> bool:
        """Whether the step was void. Then a claim says of which layers the result is, too."""
        if self.again == -1:
            self.again = step
        return self.again == step

    def of(self, step: int) -> Claims:
        """The claims of a step, for its vote. Those of earlier steps are forgotten."""
        self.made = {name: said for name, said in self.made.items() if name.step >= step}
        self.retracted = {name: said for name, said in self.retracted.items() if name.step >= step}
        return {name: said for name, said in self.made.items() if name.step == step}

    def retract(self) -> None:
        """The step is void. The results to come must be those of before."""
        self.retracted |= self.made
        self.made, self.again = {}, -1

    def forget(self) -> None:
        """A new attempt begins."""
        self.made, self.retracted, self.again = {}, {}, None

    def copy(self) -> ClaimBook:
        """An independent copy."""
        return ClaimBook(self.made.copy(), self.retracted.copy(), self.again)


def disputes(
    cast: Mapping[AgentId, Mapping[Item, Said]], question: Question | None = None
) -> tuple[Dispute, ...]:
    """Names about which the voters do not agree: copies of layers, then forwards, the earliest
    stage first, then gradients.

    Also forwards whose input is not what the stage before has made: it was altered since then. And
    the forward in question, if a voter has computed it: the older claims are added.
    """
    said: dict[Item, list[Claim]] = defaultdict(list)
    for agent, own in sorted(cast.items()):
        for name, digests in own.items():
            said[name].append(Claim(agent, *digests))
    if question is not None and question.name in said:
        said[question.name] += [x for x in question.dispute.claims if x.agent not in cast]
    forwards = [name for name in said if name.kind is Kind.PREFIX]
    made = {(name.step, name.hi, name.index): {c.digest for c in said[name]} for name in forwards}
    found = []
    for name, claims in sorted(said.items(), key=lambda x: (_ORDER[x[0].kind], x[0])):
        about = _ABOUT.get(name.kind, name.index)
        entered = {claim.entered for claim in claims}
        given = made.get((name.step, name.lo, name.index), entered) if about >= 0 else entered
        if len({claim.digest for claim in claims}) > 1 or not entered <= given:
            found.append(Dispute(name.lo, name.hi, about, tuple(claims)))
    return tuple(found)


def has_unknown_input(found: Sequence[Dispute]) -> bool:
    """Whether some forward has an input that no voter has made, though one claims the stage before.

    found: all disputes of a step. If that stage is not among them, its makers agree.
    """
    forwards = [dispute for dispute in found if dispute.microbatch >= 0]
    made = {(d.hi, d.microbatch): {claim.digest for claim in d.claims} for d in forwards}
    for dispute in forwards:
        entered = {claim.entered for claim in dispute.claims}
        known = made.get((dispute.lo, dispute.microbatch))
        is_same = len({claim.digest for claim in dispute.claims}) == 1
        if dispute.lo and (not entered <= known if known else is_same or len(entered) > 1):
            return True
    return False


def can_decide(dispute: Dispute) -> bool:
    """Whether a third computation can tell who is wrong: the agents got different results of one
    input with equal layers. Else the input or the layers differ, and nobody knows why."""
    sources = {(claim.entered, claim.layers) for claim in dispute.claims}
    results = {claim.digest for claim in dispute.claims}
    return len(sources) == 1 and len(results) > 1 and dispute.claims[0].layers != 0


def odd_ones(dispute: Dispute) -> frozenset[AgentId]:
    """The agents that are wrong. Among agents with one input and equal layers, these differ from at
    least two others, which are the majority. Empty: nobody knows."""
    sources: dict[tuple[int, int], list[Claim]] = defaultdict(list)
    for claim in dispute.claims:
        if claim.layers:
            sources[claim.entered, claim.layers].append(claim)
    return frozenset[AgentId]().union(*map(_minority, sources.values()))


def odd_copies(dispute: Dispute) -> frozenset[AgentId]:
    """Whose copy or gradient of the layer is wrong: those that differ from at least two others,
    which are the majority. Empty: nobody knows."""
    return _minority(dispute.claims)


def _minority(claims: Sequence[Claim]) -> frozenset[AgentId]:
    ((right, count),) = Counter(claim.digest for claim in claims).most_common(1)
    if count < 2 or 2 * count <= len(claims):
        return frozenset()
    return frozenset(claim.agent for claim in claims if claim.digest != right)
