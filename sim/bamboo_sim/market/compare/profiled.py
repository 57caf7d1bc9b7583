"""A user's own model: the costs that `bamboo profile` measured, as a model of a comparison."""

from __future__ import annotations

from pathlib import Path

from bamboo_core.protection import profile_file
from bamboo_sim.market.markets.parameters import MarketError
from bamboo_sim.market.policies.base.job import common
from bamboo_sim.market.policies.ours.modes import MODES
from bamboo_sim.market.step_times.dry import Job, fits
from bamboo_sim.market.step_times.models import ModelProfile
from bamboo_sim.market.step_times.networks import Network

_GIB = 2**30


def profiled(path: Path, global_batch: int | None) -> tuple[ModelProfile, str]:
    """The model of a file, and the device on which it was measured. ``global_batch``: samples of a
    step, which the file does not have. MarketError says what is wrong with either; OSError if the
    file cannot be read."""
    try:
        found = profile_file.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise MarketError(
            f"--profile {path} is not a file of `bamboo profile`: {error}; run it again."
        ) from error
    each = found.micro_batch_size
    if global_batch is None:
        raise MarketError(
            f"--profile {path} has the costs of a micro-batch of {each} samples; give"
            " --global-batch, the samples of a step."
        )
    if global_batch % each:
        raise MarketError(
            f"--global-batch is {global_batch}, and micro-batches of {path} have {each} samples;"
            " give a multiple."
        )
    if len(found.layers) < 2:
        raise MarketError(
            f"--profile {path} has {len(found.layers)} layer; a pipeline has two stages at least,"
            " so cut the model into more layers."
        )
    model = ModelProfile(
        found.model.factory,
        found.layers,
        global_batch // each,
        each,
        1,  # a setting says how many pipelines there are
        found.memory_bytes,
    )
    return model, found.device


def fewest_stages(model: ModelProfile, network: Network) -> int:
    """The fewest stages with which every mode fits onto the devices. MarketError: there are none
    among those that systems try."""
    most = min(common().most_stages, len(model.layers))
    for stages in range(2, most + 1):
        if all(fits(Job(model, mode, network), 1, stages) for mode in MODES):
            return stages
    raise MarketError(
        f"{model.name} does not fit onto devices with {model.memory_bytes / _GIB:.1f} GiB in every"
        f" mode, with {most} stages neither; profile it on a device with more memory, or with"
        " smaller micro-batches."
    )
