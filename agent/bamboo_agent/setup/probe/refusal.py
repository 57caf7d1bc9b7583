"""Why a job cannot start: what the probe has found, and what the user can change."""

from __future__ import annotations


class RefusedError(Exception):
    """The layer cannot be trained exactly. The text says what to change; the caller adds which."""
