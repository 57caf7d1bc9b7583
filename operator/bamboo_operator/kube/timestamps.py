"""Instants in objects of Kubernetes: RFC 3339 to seconds since 1970, and back."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(text: str | None) -> float | None:
    """Seconds since 1970 from RFC 3339."""
    if not text:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def instant(at: float) -> str:
    """RFC 3339, whole seconds, UTC."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_instant(at: float) -> str:
    """RFC 3339, microseconds, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
