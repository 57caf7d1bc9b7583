"""Votes, and the global scalars of a step that are computed from them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bamboo_agent.compute.optim import gradient_norm
from bamboo_agent.compute.state import State
from bamboo_agent.compute.sums import GradientSums
from bamboo_agent.device.digests import digest
from bamboo_agent.losses.forms import LossForm, read_all
from bamboo_agent.losses.totals import rescale, total
from bamboo_agent.payloads.kinds import Figures, LateLosses, Losses, Vote
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

Numbers = tuple[Any, ...]
"""The norms of a gradient, or losses with their micro-batches and counts. None: not a number."""


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
        about_gradient(step, layer): tuple(map(_known, (norm, *vote.group_norms.get(layer, ()))))
        for layer, norm in vote.norms.items()
    }
    if vote.losses:
        losses = tuple((m, _known_figures(loss)) for m, loss in sorted(vote.losses.items()))
        out[about_losses(step, layers)] = losses
    return out


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def _known_figures(found: float | Figures) -> Numbers | float | None:
    if isinstance(found, float):
        return _known(found)
    return tuple((_known(part), count) for part, count in found.pairs)


def _digest(numbers: Numbers) -> int:
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=6).digest())


def count(
    step: int,
    votes: Sequence[Vote],
    scores: Losses,
    before: CommitRecord | None = None,
    *,
    form: LossForm = LossForm(),  # noqa: B008 - frozen
    nominal: int = 1,
) -> CommitRecord:
    """The step's global scalars. Norms are summed in layer order, losses in batch order.

    scores: losses of the validation micro-batches. The final program has no votes. before: the
    commit of the step before; None: there is none in this attempt. form: of the losses. nominal:
    what the loss of each micro-batch was divided by. A step without targets changes no layer.
    """
    norms: dict[int, float] = {}
    losses: Losses = {}
    groups: dict[int, tuple[float, ...]] = {}
    for vote in votes:
        norms |= vote.norms
        losses |= vote.losses
        groups |= vote.group_norms
    squares = {layer: norms[layer] * norms[layer] for layer in sorted(norms)}
    trained, validated = total(losses, form), total(scores, form)
    targets = None if trained is None else trained.targets
    factor = rescale(targets, nominal)
    grad_norm = math.sqrt(sum(squares.values())) * factor
    is_finite = math.isfinite(grad_norm) and targets != 0
    known = before or CommitRecord(step - 1)
    # a loss that is not finite does not enter the update, so it alone does not prevent it
    return CommitRecord(
        step=step,
        loss=0.0 if trained is None else trained.loss,
        grad_norm=grad_norm,
        finite=is_finite,
        validation_loss=None if validated is None else validated.loss,
        culprit=next((layer for layer, square in squares.items() if not math.isfinite(square)), -1),
        skipped=known.skipped + (not is_finite),
        skipped_in_row=0 if is_finite else known.skipped_in_row + 1,
        targets=targets,
        metrics={} if trained is None else trained.metrics,
        validation_metrics={} if validated is None else validated.metrics,
        group_norms=_over_layers([groups[layer] for layer in sorted(groups)], factor),
    )


def _over_layers(norms: Sequence[tuple[float, ...]], factor: float) -> tuple[float, ...]:
    """The norm of each group over all layers. norms: of the groups of each layer."""
    return tuple(
        math.sqrt(sum(norm * norm for norm in group)) * factor for group in zip(*norms, strict=True)
    )


class Votes:
    """What this agent votes with, and what it makes of all votes."""

    def __init__(self, state: State, sums: GradientSums) -> None:
        self._state, self._sums = state, sums
        self._store, self._layers, self._commits = state.store, state.layers, state.commits
        self._checks, self._claims = state.checks, state.claims

    def vote(self, task: Instruction) -> None:
        """VOTE: norms, losses and claims of this agent. RateError: a layer that it votes for has no
        learning rate, which must be known before the step is committed."""
        norms: dict[int, float] = {}
        groups: dict[int, tuple[float, ...]] = {}
        losses: LateLosses = {}
        outlines = self._state.setup.outlines
        sums = [(cut, slices) for cut, _, slices in voted(task.ranges)]
        for cut, held, (_, slices) in voted(task.ranges):
            for layer in range(*held):
                state = self._layers[layer].optimizer_state
                if state is not None:
                    state.check_rate(task.step)
                gradient = self._sums.of_layer(task.step, sums, layer, once=True)
                flat = gradient[: outlines[layer].trained]
                norm = gradient_norm(flat)
                if self._checks.is_due(task.step, layer):
                    again = gradient_norm(flat)
                    self._checks.compare(task, digest([norm]), digest([again]))
                norms[layer] = float(norm)
                if found := self._state.setup.group_norms(layer, flat):
                    groups[layer] = found
            losses |= self._store[Item.red(task.step, cut, 0, slices)].losses
        said = self._claims.of(task.step) | self._copies(task)
        vote = Vote(norms, read_all(losses), said, groups)
        self._store[Item.vote(task.step, self._state.setup.agent)] = vote

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
        return self._count(task.step, list(cast.values()))

    def scored(self, step: int) -> CommitRecord:
        """The record of a validation alone."""
        return self._count(step, [])

    def _count(self, step: int, votes: list[Vote]) -> CommitRecord:
        scores: LateLosses = {
            item.index: score
            for item, score in self._store.items()
            if item.kind is Kind.SCORE and item.step == step
        }
        before = self._commits.get(step - 1)
        form, nominal = self._state.setup.loss_form, self._state.nominal
        return count(step, votes, read_all(scores), before, form=form, nominal=nominal)
