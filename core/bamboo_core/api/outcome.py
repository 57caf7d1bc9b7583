"""How a job ends, or comes to rest."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How the arbiter ended a job, or put it to rest."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
