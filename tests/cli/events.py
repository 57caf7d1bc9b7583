"""Events of the operator, as the API server returns them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bamboo_core.api.events import ANNOTATION_PREFIX, EventFact, EventReason


def event(at_s: float, reason: EventReason, **facts: Any) -> dict[str, Any]:
    """``at_s``: Unix time in seconds."""
    annotations = {f"{ANNOTATION_PREFIX}{EventFact[n.upper()]}": str(v) for n, v in facts.items()}
    when = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")
    return {
        "metadata": {"annotations": annotations},
        "eventTime": when.replace("+00:00", "Z"),
        "reason": str(reason),
        "message": "for people: epoch 9: gpt-p9-s9-i9 is lost",
    }
