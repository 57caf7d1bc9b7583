"""Builds what a job's spec names: model, data, optimizer, and the profile of the layers."""

from __future__ import annotations

import torch

from bamboo_agent.compute.layers import LayerBuilder
from bamboo_agent.compute.optim import optimizer_factory
from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.data.batches import Data
from bamboo_agent.setup.determinism import check_deterministic, settings
from bamboo_agent.setup.probe.layers import Profile, probe
from bamboo_agent.setup.tries import try_data, watch_targets
from bamboo_agent.user_code import build_model
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId


def build_setup(
    agent: AgentId, spec: JobSpec, device: torch.device
) -> tuple[TrainingSetup, Profile]:
    """Model, data and optimizer of the spec. FactoryError, DataTooSmallError."""
    before = settings()
    model = build_model(spec.model, seed=spec.seed)
    data = Data(spec, device)
    make = optimizer_factory(spec.training.optimizer, seed=spec.seed)
    builder = LayerBuilder(model, make, seed=spec.seed, device=device)
    samples = try_data(data, spec.training.microbatches, spec.training.steps)
    profile = probe(model, builder, samples, device)
    watch_targets(data, profile.ignored)
    check_deterministic(before)
    setup = TrainingSetup(
        agent=agent,
        model=model,
        data=data,
        builder=builder,
        outlines=profile.outlines,
        halves=profile.halves,
        seed=spec.seed,
        clip_norm=spec.training.clip_norm,
        device=device,
        host_memory_bytes=spec.redundancy.host_memory_bytes,
        check_every=spec.corruption.check_every,
        save_every=spec.checkpoint.every_steps if spec.checkpoint is not None else 0,
    )
    return setup, profile
