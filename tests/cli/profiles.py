"""What `bamboo profile` could have measured of the job of the quick start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bamboo_core.api.spec import JobSpec

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
LAYER = {
    "forwardSeconds": 0.01,
    "backwardSeconds": 0.02,
    "parameterBytes": 400_000,
    "outputBytes": 50_000,
    "inputGradientSeconds": 0.01,
    "weightGradientSeconds": 0.01,
    "canSplit": True,
    "activationBytes": 1_000_000,
}


def profile_of(spec: JobSpec, **changes: Any) -> dict[str, Any]:
    return {
        "device": "cpu:AVX2",
        "memoryBytes": 0,
        "microBatchSize": spec.training.micro_batch_size,
        "model": {"factory": spec.model.factory, "args": spec.model.args},
        "layers": [LAYER] * 8,
        **changes,
    }
