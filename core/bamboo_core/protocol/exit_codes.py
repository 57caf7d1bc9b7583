"""Exit codes of an agent's process, which the operator reads from the pod."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the pod's exit code says."""

    RELEASED = 0
    FAILED = 1
    USER = 2
    FENCED = 3
    DRAINED = 143
