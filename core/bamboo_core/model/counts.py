"""Numbers of things and durations in sentences."""

from __future__ import annotations

from collections.abc import Set

_MOST_RUNS = 8


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


def duration(seconds: float) -> str:
    """Such as ``45 s``, ``12 min``, ``3.5 h`` or ``4.2 d``."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 3 * 86_400 else f"{seconds / 86_400:.1f} d"


def runs(numbers: Set[int]) -> str:
    """Such as ``0-3, 7``. Of very many runs only the first ones."""
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    last = sorted(number for number in numbers if number + 1 not in numbers)
    found = [f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, last, strict=True)]
    return ", ".join(found[:_MOST_RUNS]) + (", ..." if len(found) > _MOST_RUNS else "")
