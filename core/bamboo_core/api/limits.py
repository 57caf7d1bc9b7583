"""How large a job may be: the numbers in its spec, the spec's text, and a step's tasks.

The schema of the custom resource has the same limits of numbers, and the API server checks them. A
manifest from elsewhere (a file, or a job that an older schema accepted) is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bamboo_core.api.records import Limits, Problem
from bamboo_core.api.spec import JobSpec

_STEPS = 1_000_000_000
_SAMPLES = 16_777_216
_PIPELINES = 1024
_STAGES = 256
_TEN_YEARS_S = 315_360_000
_COUNT = 1000
_READERS = 16
MOST_AGENTS = 1024
"""Pipelines times stages."""
MOST_HOOKS = 8
"""Entries of spec.hooks."""
MOST_BYTES = 64 << 10
"""Of the spec as JSON. In memory it takes up to thirty times as much."""
DEEPEST = 100
"""Levels of objects and lists in the spec."""
MOST_TASKS = 3 << 17
"""Of a step with its validation. The planner needs about 1.4 KB for each."""
RECURSION_LIMIT = 11_000
"""Python's own, for who reads jobs: the API server accepts JSON 10000 levels deep, and one such job
must not make lists of jobs unreadable."""
_SEED = 2**53 - 1  # JSON numbers are exact up to here
_NORM = 1_000_000_000
_LEAST_SAMPLE = 0.0001
_LEAST_GBPS, _MOST_GBPS = 0.001, 100_000

LIMITS: Mapping[str, Limits] = {
    "spec.seed": Limits(0, _SEED),
    "spec.data.workers": Limits(0, _READERS),
    "spec.training.steps": Limits(1, _STEPS),
    "spec.training.globalBatchSize": Limits(1, _SAMPLES),
    "spec.training.microBatchSize": Limits(1, _SAMPLES),
    "spec.training.clipNorm": Limits(0, _NORM),
    "spec.training.validateEvery": Limits(0, _STEPS),
    "spec.training.onNonFinite.skip": Limits(0, _STEPS),
    "spec.pipelines.count": Limits(1, _PIPELINES),
    "spec.pipelines.min": Limits(1, _PIPELINES),
    "spec.pipelines.max": Limits(1, _PIPELINES),
    "spec.pipelines.stages": Limits(1, _STAGES),
    "spec.placement.onDemand.afterSeconds": Limits(0, _TEN_YEARS_S),
    "spec.placement.onDemand.maxShare": Limits(0, 1),
    "spec.transport.bandwidthGbps": Limits(_LEAST_GBPS, _MOST_GBPS),
    "spec.corruption.sample": Limits(_LEAST_SAMPLE, 1),
    "spec.checkpoint.everySteps": Limits(0, _STEPS),
    "spec.checkpoint.keep": Limits(1, _COUNT),
    "spec.checkpoint.from.attempt": Limits(0, _STEPS),
    "spec.checkpoint.from.step": Limits(1, _STEPS),
    "spec.restore.fromStep": Limits(0, _STEPS),
    "spec.worker.gracePeriodSeconds": Limits(1, 3600),
    "spec.runPolicy.ttlSecondsAfterFinished": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.activeDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.pendingDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.startDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.lastWriteDeadlineSeconds": Limits(1, _TEN_YEARS_S),
    "spec.runPolicy.backoffLimit": Limits(0, _COUNT),
    "spec.runPolicy.nodeFailureLimit": Limits(0, _COUNT),
    "spec.runPolicy.forgiveAfterSteps": Limits(0, _STEPS),
}
"""By the field's path."""


def text_problems(spec: Any) -> list[Problem]:
    """The spec as it was sent is nested too deep, or too long."""
    if (deep := depth(spec)) > DEEPEST:
        text = f"is nested {deep} levels deep; at most {DEEPEST} are supported: flatten the args"
        return [Problem("spec", text)]
    if (size := _bytes(spec)) > MOST_BYTES:
        path, most = _largest(spec)
        text = (
            f"has {most} of the spec's {size} bytes of JSON; at most {MOST_BYTES} are supported:"
            " shorten it, for example by a file in the image that it names"
        )
        return [Problem(path, text)]
    return []


def depth(value: object) -> int:
    """Levels of objects and lists, counted without recursion."""
    levels = 0
    level: list[Any] = [value]
    while level := [x for x in level if isinstance(x, dict | list)]:
        levels += 1
        level = [y for x in level for y in (x.values() if isinstance(x, dict) else x)]
    return levels


def _bytes(value: object) -> int:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode(errors="replace"))  # half of a surrogate pair has no code


def _largest(spec: Any) -> tuple[str, int]:
    """The innermost field that makes up most of the spec, and its bytes."""
    path, value, size = "spec", spec, _bytes(spec)
    while isinstance(value, Mapping) and value:
        sizes = {key: _bytes(part) for key, part in value.items()}
        key = max(sizes, key=sizes.__getitem__)
        if 2 * sizes[key] < size:
            break
        path, value, size = f"{path}.{key}", value[key], sizes[key]
    return path, size


def evals(spec: JobSpec, validation_samples: int) -> int:
    """Micro-batches of the validation."""
    if spec.data.validation is None:
        return 0
    return validation_samples // spec.training.micro_batch_size


def tasks(spec: JobSpec, evals: int = 0) -> int:
    """About how many tasks a step has: the planner's time and memory grow with them.

    Each stage has four for a micro-batch and one for a micro-batch of the validation, and each
    pipeline sends a slice of its sum to each other one.
    """
    grid = spec.pipelines
    return grid.stages * (4 * spec.training.microbatches + grid.count**2 + evals)


def task_problems(spec: JobSpec) -> list[Problem]:
    """A step has more tasks than can be planned."""
    if (count := tasks(spec)) <= MOST_TASKS:
        return []
    training, grid = spec.training, spec.pipelines
    text = (
        f"{training.global_batch_size} makes {training.microbatches} micro-batches of"
        f" {training.micro_batch_size} samples; with spec.pipelines.count {grid.count} and stages"
        f" {grid.stages} a step has {count} tasks, and at most {MOST_TASKS} can be planned: raise"
        " microBatchSize, or lower globalBatchSize, count or stages"
    )
    return [Problem("spec.training.globalBatchSize", text)]
