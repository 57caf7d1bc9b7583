"""Builds what a job's spec names: model, data, optimizer, and the profile of the layers."""

from __future__ import annotations

import torch

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import (
    check_patterns,
    check_ties,
    group_of,
    grouping,
    optimizer_factory,
)
from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.data.batches import Data
from bamboo_agent.device import precision as precisions
from bamboo_agent.ipc.computed import Computed
from bamboo_agent.losses.forms import LOSS, LossForm
from bamboo_agent.model import FactoryError, Model
from bamboo_agent.setup.determinism import check_deterministic, settings
from bamboo_agent.setup.probe.layers import Profile, probe
from bamboo_agent.setup.tries import check_fit, try_data, watch_targets
from bamboo_agent.user_code import build_model
from bamboo_agent.weight_files.initial import InitialWeights
from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_core.api.spec import Clipping, JobSpec
from bamboo_core.model.ids import AgentId


def build_setup(
    agent: AgentId, spec: JobSpec, device: torch.device, computed: Computed | None = None
) -> tuple[TrainingSetup, Profile]:
    """Model, data and optimizer of the spec. FactoryError, DataTooSmallError.

    computed: where the part of the user's code that runs is noted, now and in training.
    """
    computed = computed or Computed()
    precision = spec.training.precision
    precisions.check_supported(precision, device)
    precisions.set_products(precision)
    before = settings()
    computed.begin(f"spec.model.factory {spec.model.factory}")
    model = build_model(spec.model, seed=spec.seed)
    computed.begin(f"spec.data.factory {spec.data.factory}")
    data = Data(spec, device)
    computed.end()
    make = optimizer_factory(spec.training.optimizer, seed=spec.seed)
    group = grouping(spec.training.optimizer)
    initial = _initial_weights(spec, model)
    builder = LayerBuilder(
        model,
        make,
        seed=spec.seed,
        device=device,
        initial=initial,
        group=group,
        precision=precision,
    )
    computed.begin(f"spec.data.factory {spec.data.factory}")
    samples = try_data(data, spec.training.microbatches, spec.training.steps)
    check_fit(spec, model, samples)
    try:
        profile = probe(model, builder, samples, device, computed)
    except FactoryError as error:
        raise FactoryError(f"{spec.model.factory}: {error}") from error
    computed.end()
    if initial is not None:
        try:
            initial.check_used()  # the probe has built every layer
        except WeightsError as error:
            raise FactoryError(str(error)) from error
    check_patterns(spec.training.optimizer, profile.names)
    check_ties(spec.training.optimizer, profile.ties)
    _check_best(spec, profile.loss.form)
    watch_targets(data, profile.loss.ignored)
    check_deterministic(before)
    setup = TrainingSetup(
        agent=agent,
        model=model,
        data=data,
        builder=builder,
        outlines=profile.outlines,
        halves=profile.halves,
        ties=profile.ties,
        computed=computed,
        seed=spec.seed,
        clip_norm=spec.training.clip_norm,
        clip_groups=_clip_groups(spec, profile),
        device=device,
        model_factory=spec.model.factory,
        host_memory_bytes=spec.redundancy.host_memory_bytes,
        check_every=spec.corruption.check_every,
        save_every=spec.save_every,
        loss_form=profile.loss.form,
        usual_count=profile.loss.usual_count,
    )
    return setup, profile


def _check_best(spec: JobSpec, form: LossForm) -> None:
    """FactoryError if the loss reports no such metric."""
    known = (LOSS, *form.names)
    if spec.best is not None and spec.best.metric not in known:
        raise FactoryError(
            f"spec.checkpoint.best.metric {spec.best.metric!r}: the loss reports no such metric; it"
            f" reports {', '.join(known)}: name one of them, or return it from the loss"
        )


def _clip_groups(spec: JobSpec, profile: Profile) -> tuple[tuple[int, ...], ...]:
    """Layer -> number of each parameter's group; empty if the whole gradient is clipped."""
    if spec.training.clip is Clipping.WHOLE:
        return ()
    groups = spec.training.optimizer.groups
    return tuple(tuple(group_of(name, groups) for name in names) for names in profile.names)


def _initial_weights(spec: JobSpec, model: Model) -> InitialWeights | None:
    """From the files that the spec names; None: it names none. FactoryError."""
    if spec.model.initial_from is None:
        return None
    try:
        return InitialWeights(spec.model.initial_from, model.names)
    except WeightsError as error:
        raise FactoryError(str(error)) from error
