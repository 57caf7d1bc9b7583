"""Shapes of steps, with agent names that the scheduling tests share."""

from __future__ import annotations

from bamboo_core.model.ids import AgentId
from bamboo_core.planning.step_shape import StepShape


def name(pipeline: int, stage: int) -> AgentId:
    return AgentId(f"{pipeline}-{stage}")


def step(batch, pipelines=2, stages=4, lost=(), **options) -> StepShape:
    return StepShape(pipelines, stages, batch, lost=tuple(lost), **options)
