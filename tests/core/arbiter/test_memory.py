"""A mode of redundancy that does not fit: refused before the start, and said afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.arbiter.fleet import Fleet, spec

from bamboo_core.api.events import EventReason
from bamboo_core.api.spec import RedundancyMode, RedundancySpec
from bamboo_core.arbiter_state import events as a
from bamboo_core.protocol.messages import LayerCost

COSTS = (LayerCost(1.0, 2.0, 1000, 10, activation_bytes=100),) * 4
ENOUGH = 40_000
SHORT = 34_000
"""Two layers of 1,000 bytes take 28,000 after a loss, and their activations come to that."""
NONE, REPLICA, EAGER, AUTO = RedundancyMode


def fleet_of(
    mode: RedundancyMode, *memory_bytes: int, host_memory: str = "0", steps: int = 40
) -> Fleet:
    job = replace(
        spec(pipelines=1, stages=2, steps=steps, every=0),
        redundancy=RedundancySpec(mode, host_memory),
    )
    fleet = Fleet(job)
    for i, size in enumerate(memory_bytes):
        fleet.add(f"a{i}", f"z{i}", costs=COSTS, memory_bytes=size)
    fleet.tell(a.DesiredState(1))
    return fleet


def warnings(fleet: Fleet) -> list[str]:
    return [r.message for r in fleet.records if r.reason is EventReason.MEMORY_SHORT]


@pytest.mark.parametrize("mode", [REPLICA, EAGER])
def test_a_mode_that_does_not_fit_is_refused_before_the_start(mode: RedundancyMode) -> None:
    fleet = fleet_of(mode, ENOUGH, SHORT)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.HOLDING)
    why = fleet.arbiter.status().detail
    assert why.startswith(f"spec.redundancy.mode is {mode.value}, but it needs 1 MiB after a loss")
    assert "raise spec.pipelines.stages" in why
    assert not any(agent.executor.installed.epoch for agent in fleet.agents.values())
    fleet.add("b", "z0", costs=COSTS, memory_bytes=ENOUGH)
    fleet.add("c", "z1", costs=COSTS, memory_bytes=ENOUGH)
    fleet.kill("a1")
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.status().shortage == ""


@pytest.mark.parametrize(
    ("mode", "memory_bytes", "host_memory"),
    [
        (NONE, ENOUGH, "0"),
        (AUTO, SHORT, "0"),
        (REPLICA, ENOUGH, "0"),
        (EAGER, ENOUGH, "0"),
        (REPLICA, SHORT, "8Gi"),
        (EAGER, 0, "0"),
    ],
)
def test_what_fits_starts(mode: RedundancyMode, memory_bytes: int, host_memory: str) -> None:
    fleet = fleet_of(mode, memory_bytes, memory_bytes, host_memory=host_memory)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    assert fleet.arbiter.status().shortage == ""
    assert warnings(fleet) == []


@pytest.mark.parametrize("mode", [NONE, AUTO])
def test_a_job_that_fits_in_no_mode_starts_with_a_warning(mode: RedundancyMode) -> None:
    """The need of memory is an estimate, and no mode needs less than None."""
    fleet = fleet_of(mode, 1, 1)
    fleet.until(lambda: fleet.arbiter.status().phase is a.ArbiterPhase.RUNNING)
    said = fleet.arbiter.status().shortage
    assert said.startswith("training may fail for want of memory, since by an estimate not even")
    assert "None fits: it needs 1 MiB, and 80% of the device's 0 MiB can be used" in said
    assert warnings(fleet) == [said]


def test_a_job_that_trains_goes_on_with_a_smaller_device_and_says_what_is_short() -> None:
    fleet = fleet_of(EAGER, ENOUGH, ENOUGH)
    fleet.until(lambda: fleet.arbiter.status().progress.committed >= 2)
    fleet.add("b", "z1", costs=COSTS, memory_bytes=SHORT)
    fleet.kill("a1")
    before = fleet.arbiter.status().progress.committed
    fleet.until(lambda: fleet.arbiter.status().progress.committed > before + 2)
    plan = fleet.arbiter.status().plan
    assert plan is not None
    assert "b" in plan.live
    said = fleet.arbiter.status().shortage
    assert said.startswith("spec.redundancy.mode is Eager, but it needs")
    assert warnings(fleet) == [said]
