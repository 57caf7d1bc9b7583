"""Votes, and the global scalars of a step that are computed from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch

from bamboo_agent.compute.state import State
from bamboo_agent.compute.sums import GradientSums
from bamboo_agent.device.digests import digest
from bamboo_agent.payloads.kinds import Losses, Vote
from bamboo_core.model import claims, sampling
from bamboo_core.model.claims import (
    Claims,
    DisputedError,
    Said,
    about_gradient,
    about_losses,
)
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item, Kind
from bamboo_core.model.program import Instruction, voted
from bamboo_core.protocol.messages import CommitRecord

Numbers = tuple[float | None] | tuple[tuple[int, float | None], ...]
"""The norm of a gradient, or losses with their micro-batches. None: not a number."""


def unequal(step: int, cast: Mapping[AgentId, Vote], layers: int) -> dict[AgentId, Claims]:
    """Claims of the voters about those gradients and losses on which they do not agree.

    layers: number of layers of the model. One NaN is as good as another. Equal numbers give no
    claims, since all votes of a large fleet have many of them.
    """
    said = {agent: _said(step, vote, layers) for agent, vote in cast.items()}
    known: dict[Item, Numbers] = {}
    names = {
        name
        for own in said.values()
        for name, numbers in own.items()
        if known.setdefault(name, numbers) != numbers
    }
    return {
        agent: {name: Said(0, _digest(own[name])) for name in names & own.keys()}
        for agent, own in said.items()
    }


def _said(step: int, vote: Vote, layers: int) -> dict[Item, Numbers]:
    out: dict[Item, Numbers] = {
        about_gradient(step, layer): (_known(norm),) for layer, norm in vote.norms.items()
    }
    if vote.losses:
        losses = tuple((m, _known(loss)) for m, loss in sorted(vote.losses.items()))
        out[about_losses(step, layers)] = losses
    return out


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _digest(numbers: Numbers) -> int:
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=6).digest())


def count(
    step: int, votes: Sequence[Vote], scores: Losses, before: CommitRecord | None = None
) -> CommitRecord:
    """The step's global scalars. Norms are summed in layer order, losses in batch order.

    scores: losses of the validation micro-batches. The final program has no votes. before: the
    commit of the step before; None: there is none in this attempt.
    """
    norms: dict[int, float] = {}
    losses: Losses = {}
    for vote in votes:
        norms |= vote.norms
        losses |= vote.losses
    squares = {layer: norms[layer] * norms[layer] for layer in sorted(norms)}
    grad_norm = math.sqrt(sum(squares.values()))
    is_finite = math.isfinite(grad_norm)
    known = before or CommitRecord(step - 1)
    # a loss that is not finite does not enter the update, so it alone does not prevent it
    return CommitRecord(
        step=step,
        loss=_mean(losses) or 0.0,
        grad_norm=grad_norm,
        finite=is_finite,
        validation_loss=_mean(scores),
        culprit=next((layer for layer, square in squares.items() if not math.isfinite(square)), -1),
        skipped=known.skipped + (not is_finite),
        skipped_in_row=0 if is_finite else known.skipped_in_row + 1,
    )


def _mean(values: Losses) -> float | None:
    if not values:
        return None
    total = 0.0
    for index in sorted(values):
        total += values[index]
    return total / len(values)


class Votes:
    """What this agent votes with, and what it makes of all votes."""

    def __init__(self, state: State, sums: GradientSums) -> None:
        self._state, self._sums = state, sums
        self._store, self._layers, self._commits = state.store, state.layers, state.commits
        self._checks, self._claims = state.checks, state.claims

    def vote(self, task: Instruction) -> None:
        """VOTE: norms, losses and claims of this agent."""
        norms: dict[int, float] = {}
        losses: Losses = {}
        for cut, held, (_, slices) in voted(task.ranges):
            buffer = self._sums.gradient(cut, task.step, slices)
            layout = self._sums.layout(*cut)
            for layer in range(*held):
                flat = buffer.tensor[layout.layers[layer]]
                norm = torch.linalg.vector_norm(flat)
                if self._checks.is_due(task.step, layer):
                    again = torch.linalg.vector_norm(flat)
                    self._checks.compare(task, digest([norm]), digest([again]))
                norms[layer] = float(norm)
            losses |= self._store[Item.red(task.step, cut, 0, slices)].losses
        said = self._claims.of(task.step) | self._copies(task)
        self._store[Item.vote(task.step, self._state.setup.agent)] = Vote(norms, losses, said)

    def _copies(self, task: Instruction) -> Claims:
        """Claims about the layers that this agent holds, in steps that compare them.

        A step that is computed again is one of them.
        """
        step = task.step
        is_due = sampling.are_copies_due(step, self._state.setup.save_every)
        if not (is_due or self._claims.is_again(step)):
            return {}
        held = (layer for span in task.ranges[1::3] for layer in range(*span))
        return {Item.ver(step, x): Said(0, self._layers[x].checksum()) for x in held}

    def commit(self, task: Instruction) -> CommitRecord:
        """COMMIT: the scalars of the step. DisputedError if votes contradict each other."""
        cast: dict[AgentId, Vote] = {
            agent: self._store[Item.vote(task.step, agent)] for agent in task.agents
        }
        differing = unequal(task.step, cast, len(self._state.setup.sizes))
        said = {agent: vote.claims | differing[agent] for agent, vote in cast.items()}
        found = claims.disputes(said, self._state.question)
        if found:
            raise DisputedError(found)
        scores = {
            item.index: score
            for item, score in self._store.items()
            if item.kind is Kind.SCORE and item.step == task.step
        }
        before = self._commits.get(task.step - 1)
        return count(task.step, list(cast.values()), scores, before)
