"""How training recovers from the loss of agents, read from events."""

from __future__ import annotations

import pytest
from tests.cli.events import event
from tests.cli.runs import LOST, PLAN, RECOVERY, SIX

from bamboo_cli.run.recovery import PlanSummary, Recovery, plan_text, recovery
from bamboo_core.api.events import EventReason


def test_a_loss_is_followed_to_the_next_commit() -> None:
    assert recovery([LOST], RECOVERY) == Recovery(plan=PLAN, stopped_at=41.5, resumed_at=42.34)
    assert recovery(["gpt-p0-s0-i0"], RECOVERY) is None


def test_the_plan_under_which_training_resumed_counts() -> None:
    superseded = event(
        41.6, EventReason.PLANNED, epoch=3, step=33, pipelines=2, stages=4, agents=SIX
    )
    found = recovery([LOST], [superseded, *RECOVERY])
    assert found is not None
    assert found.plan == PLAN


def test_a_loss_without_a_commit_after_it() -> None:
    assert recovery([LOST], RECOVERY[3:6]) == Recovery(None, 41.5, None)


def test_an_agent_lost_while_training_is_stopped_is_named_by_its_own_event() -> None:
    while_stopped = [
        event(41.8, EventReason.AGENT_LOST, agents="gpt-p0-s1-i0"),
        event(41.6, EventReason.AGENT_LEFT, agents="gpt-p0-s2-i0"),
    ]
    found = recovery(["gpt-p0-s2-i0", "gpt-p0-s1-i0"], [*while_stopped, *RECOVERY])
    assert found == Recovery(PLAN, 41.5, 42.34)
    assert recovery(["gpt-p0-s0-i0"], [*while_stopped, *RECOVERY]) is None
    assert recovery(["gpt-p0-s1-i0"], while_stopped) is None


def test_an_event_without_a_time_is_ignored() -> None:
    timeless = [{k: v for k, v in event.items() if k != "eventTime"} for event in RECOVERY]
    assert recovery([LOST], timeless) is None


def test_the_sentence_of_an_event_is_ignored() -> None:
    bare = [{**event, "metadata": {}} for event in RECOVERY]
    assert recovery([LOST, "gpt-p9-s9-i9"], [*bare, *RECOVERY[:3]]) is None


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (PLAN, "2 x 4 from step 33, 7 agents, 1 seat empty"),
        (PlanSummary(0, 2, 4, 8), "2 x 4 from step 0, 8 agents"),
        (
            PlanSummary(9, 2, 4, 6, 2, 1, 3, 4, 5, 6),
            "2 x 4 from step 9, 6 agents, 2 seats empty, 1 leaving, 3 catching up, 4 layers copied,"
            " 5 layers loaded, 6 steps repeated",
        ),
        (
            PlanSummary(9, 1, 1, 1, 0, 0, 0, 1, 1, 1),
            "1 x 1 from step 9, 1 agent, 1 layer copied, 1 layer loaded, 1 step repeated",
        ),
        (PlanSummary(0, 1, 2, 2, loaded_layers=4), "1 x 2 from step 0, 2 agents, 4 layers built"),
        (None, ""),
    ],
)
def test_a_plan_in_words(plan: PlanSummary | None, text: str) -> None:
    assert plan_text(plan) == text
