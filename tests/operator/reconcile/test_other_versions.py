"""Agents of another version of Bamboo than the operator's, as users see them."""

from __future__ import annotations

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.protocol.messages import LANGUAGE

from ..harness import Harness
from .test_failed_starts import MANY, SEATS, report, runs

STARTS_S = 10


async def live(harness: Harness, seconds: int, language: int) -> list[str]:
    """Each new agent connects some seconds after its pod was made. The pods of that time."""
    made: dict[str, float] = {}
    for _ in range(seconds // 2):
        await harness.reconcile()
        await harness.settle()
        for name in harness.pods():
            age_s = harness.now - made.setdefault(name, harness.now)
            if age_s == 0:
                report(harness, name, {"phase": "Running", "containerStatuses": [runs("agent")]})
            elif age_s == STARTS_S:
                harness.hear(name, language=language)
        harness.now += 2.0
    return sorted(made)


@pytest.mark.parametrize(
    ("language", "remedy"),
    [
        (0, "rebuild the image that spec.worker.image names with the bamboo-train of the operator"),
        (LANGUAGE + 1, "upgrade the chart to the version of the agents' bamboo-train"),
    ],
)
async def test_they_come_more_and_more_slowly_until_the_image_is_right(
    language: int, remedy: str, harness: Harness
) -> None:
    harness.apply(**MANY | {"runPolicy": {"backoffLimit": 0, "nodeFailureLimit": 1}})
    made = await live(harness, 600, language)
    assert SEATS < len(made) <= 6 * SEATS
    said = harness.condition("Stalled")
    assert (said["status"], said["reason"]) == ("True", "StartsFail")
    assert f"speaks language {language} of programs" in said["message"]
    assert remedy in said["message"]
    refused = [x for x in harness.records if x.reason is EventReason.AGENT_REFUSED]
    assert [remedy in x.message for x in refused] == len(made) * [True]
    assert harness.condition("Failed")["status"] == "False"
    assert not harness.status["failures"].get("avoided"), "no node is at fault"
    again = await live(harness, 300, LANGUAGE)
    assert len(again) == SEATS
    assert harness.condition("Stalled")["status"] == "False"
