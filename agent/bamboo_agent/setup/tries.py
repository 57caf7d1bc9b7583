"""Tries what a job needs, before the worker says that it is ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bamboo_agent.data.batches import Data, SampleError
from bamboo_agent.data.content import content_hash
from bamboo_agent.data.needs import Need, Part
from bamboo_agent.loading.errors import LoadingError
from bamboo_agent.loading.loader import Loader
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.probe.layers import Samples
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, UnreachableError
from bamboo_agent.storage.origin import Origin
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId

log = logging.getLogger(__name__)

_WITHOUT_LOADER = "with spec.data.workers: 0 agents read samples in the process that trains"


def try_data(data: Data, microbatches: int, steps: int) -> Samples:
    """Micro-batches for the probe. microbatches: of a step; steps: of the job.

    An error here is the user's, since it occurs on every agent. A sample that cannot be read later
    may be a fault of this node.
    """
    try:
        return Samples(
            data.training(0, 0),
            data.training(0, 1) if microbatches > 1 else None,
            data.validation(0) if data.validation_samples else None,
            steps,
            f"spec.data ({data.origin(0, 0)})",
        )
    except SampleError as error:
        raise FactoryError(str(error)) from error


FIRST = Need(0, 0)
"""The micro-batch by which the loader is tried."""


def try_loader(loader: Loader, data: Data) -> None:
    """FactoryError unless the loader makes the same first micro-batch as this process."""
    try:
        found = loader.take(FIRST)
    except (SampleError, FactoryError, LoadingError) as error:
        raise FactoryError(f"{error}; {_WITHOUT_LOADER}") from error
    parts = found[Part.INPUT], found[Part.TARGET]
    if content_hash(parts, 0) != content_hash(data.training(0, 0), 0):
        raise FactoryError(
            "the first micro-batch differs when another process reads it: a data set may depend on"
            f" its args, the index and the global generators alone; {_WITHOUT_LOADER}"
        )


def check_fit(spec: JobSpec, model: Model, samples: Samples) -> None:
    """FactoryError if the model says that its loss would take the first micro-batch, or the first
    of the validation, wrongly."""
    if model.misfit is None:
        return
    sets = [(spec.data.factory, samples.first)]
    if spec.data.validation is not None and samples.validation is not None:
        sets.append((spec.data.validation.factory, samples.validation))
    for factory, (given, target) in sets:
        if why := model.misfit(given, target):
            raise FactoryError(f"{spec.model.factory} with {factory}: {why}")


def watch_targets(data: Data, ignored: Sequence[int | None]) -> None:
    """Let no micro-batch through in which other numbers of targets count than in the first one.
    ignored: what the loss leaves out of its mean, None: nothing. FactoryError."""
    for value in ignored:
        try:
            data.watch_targets(value)
        except SampleError as error:
            raise FactoryError(str(error)) from error


def try_storage(agent: AgentId, checkpoints: Checkpoints) -> str:
    """Why checkpoints cannot be written here, better known now than hours later; empty: they can.

    What follows from it is the operator's business.
    """
    try:
        checkpoints.probe()
    except CheckpointError as error:
        log.error("checkpoints cannot be written: %s", error)
        return f"agent {agent}: {error.cause}"
    return ""


def try_origin(origin: Origin, checkpoints: Checkpoints) -> None:
    """Let the job begin with the checkpoint that it names. OriginError if it cannot.

    A storage that cannot be reached is tried again when the operator asks for the checkpoints,
    before the first plan.
    """
    try:
        origin.settle(checkpoints)
    except UnreachableError as error:
        log.warning("%s", error)
