"""Which reports an agent of a job can send at all.

The planner counts the layers, micro-batches and slices that reports name, so a range without end
would make it count without end. Everything else in a report is the agent's word.
"""

from __future__ import annotations

from typing import NamedTuple

from bamboo_core.api import limits
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.items import Kind
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.messages import AgentReport, Ready


class Extent(NamedTuple):
    """How far the numbers in the names of a job's items go."""

    steps: int
    layers: int
    batch: BatchShape
    evals: int  # micro-batches of the validation

    @staticmethod
    def of(spec: JobSpec, batch: BatchShape, ready: Ready) -> Extent:
        """As the spec and an agent that has built model and data say."""
        evals = limits.evals(spec, ready.validation_samples)
        return Extent(spec.training.steps, ready.layers, batch, evals)

    def _bounds(self) -> dict[Kind, tuple[int, int]]:
        """Kind -> above the greatest index, and above the greatest part."""
        batch = self.batch
        slices = batch.leaves  # at most one for each agent with a leaf
        of_microbatch, of_step = (batch.microbatches, 1), (1, 1)
        of_validation = (self.evals, 1)
        return {
            Kind.ACT: of_microbatch,
            Kind.OUT: of_microbatch,
            Kind.INGRAD: of_microbatch,
            Kind.PREFIX: (batch.microbatches, self.layers + 1),
            Kind.PART: (batch.leaves, batch.leaf_size + 1),
            Kind.SUM: (batch.leaves, 1),
            Kind.PIECE: (batch.leaves, slices),
            Kind.RED: (1, slices),
            Kind.EVAL: of_validation,
            Kind.SCORE: of_validation,
            Kind.VOTE: of_step,
            Kind.COMMIT: of_step,
            Kind.VER: of_step,
            Kind.FILE: of_step,
        }


def impossible(report: AgentReport, extent: Extent) -> str:
    """The first part of a report that no agent of the job can hold; empty: it may be true."""
    steps, layers, bounds = extent.steps, extent.layers, extent._bounds()
    most = extent.batch.leaves
    for item in report.items:  # there may be a hundred thousand
        kind, step, lo, hi, index, part, _, leaves, slices = item
        indices, parts = bounds[kind]
        if not (
            0 <= step <= steps
            and lo <= layers
            and hi <= layers
            and index < indices
            and part < parts
            and (0 < leaves <= most - index if kind in _RUNS else not leaves)
            and (part < slices <= most if kind in _SLICES else not slices)
        ):
            return f"item {str(item)[:_SHOWN]}"
    for layer, version in report.versions.items():
        if not (0 <= layer < layers and version <= steps):
            return f"version {version} of layer {layer}"
    for commit in report.commits:
        if commit.step >= steps:
            return f"the commit of step {commit.step}"
    return f"the end of step {report.ended}" if report.ended > steps else ""


_RUNS, _SLICES = (Kind.SUM, Kind.PIECE), (Kind.PIECE, Kind.RED)
_SHOWN = 80  # characters of an item, whose numbers may be long
