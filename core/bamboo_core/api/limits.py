"""The least and the most value of each number in a BambooJob's spec.

The schema of the custom resource has the same limits, and the API server checks them. A manifest
from elsewhere (a file, or a job that an older schema accepted) is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping

from bamboo_core.api.records import Limits

_STEPS = 1_000_000_000
_SAMPLES = 16_777_216
_PIPELINES = 1024
_STAGES = 256
_TEN_YEARS_S = 315_360_000
_COUNT = 1000
MOST_AGENTS = 1024
"""Pipelines times stages."""
DEEPEST = 100
"""Levels of objects and lists in the spec."""
RECURSION_LIMIT = 11_000
"""Python's own, for who reads jobs: the API server accepts JSON 10000 levels deep, and one such job
must not make lists of jobs unreadable."""
_SEED = 2**53 - 1  # JSON numbers are exact up to here
_NORM = 1_000_000_000
_LEAST_SAMPLE = 0.0001
_LEAST_GBPS, _MOST_GBPS = 0.001, 100_000

LIMITS: Mapping[str, Limits] = {
    "spec.seed": Limits(0, _SEED),
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
    "spec.worker.gracePeriodSeconds": Limits(1, 3600),
    "spec.runPolicy.ttlSecondsAfterFinished": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.activeDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.pendingDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.startDeadlineSeconds": Limits(0, _TEN_YEARS_S),
    "spec.runPolicy.backoffLimit": Limits(0, _COUNT),
    "spec.runPolicy.nodeFailureLimit": Limits(0, _COUNT),
    "spec.runPolicy.forgiveAfterSteps": Limits(0, _STEPS),
}
"""By the field's path."""
