"""Jobs of the explorer are as small as they say."""

from __future__ import annotations

import pytest

from bamboo_sim.protocol.exploration.time_budget import AHEAD, AHEAD_TIGHT, AHEAD_TIGHT_PAIR
from bamboo_sim.protocol.histories.history import History, replay
from bamboo_sim.protocol.parts.job import Job


@pytest.mark.parametrize(
    ("job", "most"), [(AHEAD, AHEAD.microbatches), (AHEAD_TIGHT, 1), (AHEAD_TIGHT_PAIR, 1)], ids=str
)
@pytest.mark.parametrize("lost", [False, True])
def test_agents_have_room_for_so_many_forwards_ahead(job: Job, most: int, *, lost: bool) -> None:
    script = ((120, ("kill", "a01", 0)),) if lost else ()
    world = replay(History(job, 1, "fifo", script))
    assert world.outcome == "complete"
    directives = [node.executor.directive for node in world.nodes.values()]
    assert len(directives) == job.pipelines * job.stages - lost
    assert {found.lane_limit for found in directives if found is not None} == {most}
