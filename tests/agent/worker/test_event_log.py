"""The log of a worker's executor has a line for every effect."""

from __future__ import annotations

from typing import get_args

from bamboo_agent.worker.event_log import describe
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Item
from bamboo_core.model.program import parse_instruction
from bamboo_core.protocol.effects import (
    Drop,
    Effect,
    Retract,
    Run,
    SendOperator,
    StepEnded,
    Transmit,
)
from bamboo_core.protocol.messages import CommitRecord, Finished

ITEM = Item.ver(1, 0)
EFFECTS: dict[str, Effect] = {
    "run INIT[0:2]": Run(parse_instruction("INIT[0:2]")),
    "send ver[0:1] @1 to b in 0.1.2": Transmit(ITEM, AgentId("b"), Fence(0, 1, 2)),
    "drop ver[0:1] @1": Drop((ITEM,)),
    "drop for room ver[0:1] @1": Drop((ITEM,), for_room=True),
    "retract the claims": Retract(is_new=False),
    "forget all claims": Retract(is_new=True),
    "send Finished": SendOperator(Finished(Fence(0, 1, 2))),
    f"ended {CommitRecord(3)}": StepEnded(CommitRecord(3)),
}


def test_every_effect_has_a_line() -> None:
    assert {type(effect) for effect in EFFECTS.values()} == {*get_args(Effect)}
    assert [describe(effect) for effect in EFFECTS.values()] == [*EFFECTS]
