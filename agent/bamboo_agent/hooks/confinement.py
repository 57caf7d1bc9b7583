"""What a process of hooks may take of the agent's machine: it gives way to training."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from pathlib import Path

MOST_DATA_BYTES = 4 << 30
"""Private memory of one process. More is a MemoryError in the hook."""
_NICENESS = 10
"""Beyond that of workers. One that computes all the time leaves it a tenth of a core. With the
lowest priority a tracker could need minutes to import torch on a busy machine, and miss a short
job."""
_FIRST_TO_END = "1000"


def environment(before: Mapping[str, str]) -> dict[str, str]:
    """The environment of such a process: no GPU, and one thread for libraries that compute."""
    return {**before, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def confine(*, gives_way: bool = True) -> None:
    """Confine this process: bounded memory, the first to end when memory is short, and no core
    file. gives_way: with low priority, too."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS if gives_way else 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END, encoding="ascii")
    for kind, most in ((resource.RLIMIT_DATA, MOST_DATA_BYTES), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or most <= hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (most, most))
