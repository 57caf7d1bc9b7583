"""SIGKILL or standstill at exact instructions of real processes: no bit of any step may change.

Each kill is before an instruction, after it, or after its results were sent. A standstill is a
SIGSTOP of supervisor and worker, or an instruction that never ends. A test run takes a few
points, which differ between commits; benchmarks/kill_points.py takes all.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from bamboo_core.api.spec import Channel
from bamboo_sim.fleet.local_fleet import ForkServerProcess
from bamboo_sim.fleet.runs.scenarios import (
    COMMITTING,
    COORDINATOR,
    EAGER,
    EAGER_ON_DEVICE,
    IN_GROUPS,
    ONE_PIPELINE,
    STANDSTILLS,
    TWO_DEATHS,
    Points,
    Scenario,
    run_scenario,
)

pytestmark = pytest.mark.timeout(400)
IN_TURN = pytest.mark.rotating(7)


def chosen(scenario: Scenario, count: int) -> list[Points]:
    """A sample that is the same for the same commit, or for $BAMBOO_KILL_SEED."""
    command = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return random.Random(os.environ.get("BAMBOO_KILL_SEED", head)).sample(scenario.faults, count)


@pytest.mark.parametrize(
    ("scenario", "count"),
    [
        pytest.param(ONE_PIPELINE, 3, id="one pipeline with replicas"),
        pytest.param(EAGER, 3, id="one pipeline that computes ahead", marks=IN_TURN),
        pytest.param(EAGER_ON_DEVICE, 3, id="that computes ahead on the device", marks=IN_TURN),
        pytest.param(COMMITTING, 2, id="two pipelines while they commit"),
        pytest.param(COORDINATOR, 2, id="the coordinator in its commit", marks=IN_TURN),
        pytest.param(TWO_DEATHS, 3, id="two deaths in one step", marks=IN_TURN),
        pytest.param(STANDSTILLS, 3, id="agents that stand still", marks=IN_TURN),
        pytest.param(
            COMMITTING.over(Channel.PROCESS_GROUP),
            2,
            id="commits over process groups",
            marks=IN_TURN,
        ),
        pytest.param(
            IN_GROUPS, 2, id="while groups are made and in the middle of messages", marks=IN_TURN
        ),
    ],
)
async def test_no_bit_changes(
    tmp_path: Path, forkserver: ForkServerProcess, scenario: Scenario, count: int
) -> None:
    survived = await run_scenario(tmp_path, forkserver, scenario, chosen(scenario, count))
    assert len(survived.faults) == count
    assert all(fault.points and fault.died_at for fault in survived.faults)
