"""Wall-clock time in the forms that the Kubernetes API uses."""

import datetime as dt


def now() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(dt.UTC)


def to_time(instant: dt.datetime) -> str:
    """Format as metav1.Time (whole seconds)."""
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")


def to_micro_time(instant: dt.datetime) -> str:
    """Format as metav1.MicroTime."""
    return instant.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_time(text: str) -> dt.datetime:
    """Parse either form."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
