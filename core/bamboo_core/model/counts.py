"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Such as ``1 agent`` or ``2 agents``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def grid_of(pipelines: int, stages: int) -> str:
    """Such as ``1 pipeline x 4 stages``."""
    return f"{counted(pipelines, 'pipeline')} x {counted(stages, 'stage')}"


def repeated(steps: int) -> str:
    """Such as ``no step is repeated`` or ``2 steps are repeated``."""
    if not steps:
        return "no step is repeated"
    return f"{counted(steps, 'step')} {'is' if steps == 1 else 'are'} repeated"
