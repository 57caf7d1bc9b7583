"""Exit codes of the agent. The operator reads them from the pod."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    RELEASED = 0  # the operator released it
    FAILED = 1
    USER = 2  # the user's code or configuration is wrong
    FENCED = 3  # replaced, or its lease has expired
    THREAD_DIED = 70  # of the worker: one of its threads has died
    DRAINED = 143  # SIGTERM: handed over, or the grace period has ended


def is_from_outside(code: int) -> bool:
    """Whether a process that ended so may have been ended by somebody else: by SIGHUP, SIGINT,
    SIGKILL (also for its use of memory) or SIGTERM. code: 128 + n after signal n."""
    return code in (128 + 1, 128 + 2, 128 + 9, 128 + 15)
