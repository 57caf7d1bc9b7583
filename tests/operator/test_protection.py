"""What status says about mode Auto."""

from __future__ import annotations

from dataclasses import replace

from tests.core.protection.job import spec, usual

from bamboo_core.api.reasons import JobPhase
from bamboo_core.api.spec import RedundancyMode
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView, Memory
from bamboo_core.protection.choice import choose
from bamboo_operator import status as statuses

JOB = JobView("ns", "job", "uid", 1, 0.0)
TAKEN = JobStatus(
    JobPhase.RUNNING,
    (),
    mode=RedundancyMode.REPLICA,
    # a device with room for Replica, but for nothing ahead of it
    verdict=choose(
        usual(hazard_per_agent_hour=0.2, host_memory_bytes=0, memory_bytes=1_577_000_000)
    ),
)


def protection(status: JobStatus) -> dict[str, object] | None:
    found: dict[str, object] | None = statuses.describe(JOB, spec(), status, Memory()).get(
        "protection"
    )
    return found


def test_mode_reason_and_inputs() -> None:
    found = protection(replace(TAKEN, copies=((2, "0-7"),)))
    assert found is not None
    assert (found["mode"], found["hazardPerAgentHour"], found["leastCopies"]) == (
        "Replica",
        "0.2000",
        2,
    )
    assert str(found["reason"]).startswith("with 1.6 losses an hour among 8 agents, Replica costs")
    none, replica, eager = found["estimates"]  # type: ignore[misc]
    assert none["overhead"] == "1.0000"
    assert float(replica["lostSecondsPerHour"]) < float(none["lostSecondsPerHour"])
    assert set(eager) == {"mode", "excluded"}
    assert all(isinstance(value, str) for mode in (none, replica, eager) for value in mode.values())


def test_a_new_leader_knows_the_mode_but_not_yet_why() -> None:
    assert protection(replace(TAKEN, verdict=None)) == {"mode": "Replica"}
    other = replace(TAKEN, mode=RedundancyMode.NONE)  # the verdict is for the next plan
    assert protection(other) == {"mode": "None"}


def test_a_mode_of_the_spec_is_not_repeated() -> None:
    assert protection(replace(TAKEN, mode=None, verdict=None)) is None
