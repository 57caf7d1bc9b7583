"""Events of the operator, as the API server returns them."""

from __future__ import annotations

from typing import Any

from bamboo_core.api.events import ANNOTATION_PREFIX, EventFact, EventReason


def event(at_s: float, reason: EventReason, **facts: Any) -> dict[str, Any]:
    """``at_s``: Unix time in seconds, below 60."""
    annotations = {f"{ANNOTATION_PREFIX}{EventFact[n.upper()]}": str(v) for n, v in facts.items()}
    return {
        "metadata": {"annotations": annotations},
        "eventTime": f"1970-01-01T00:00:{at_s:09.6f}Z",
        "reason": str(reason),
        "message": "for people: epoch 9: gpt-p9-s9-i9 is lost",
    }
