"""What status says about mode Auto."""

from __future__ import annotations

from dataclasses import replace

from tests.core.protection.job import spec, usual

from bamboo_core.api.reasons import JobPhase
from bamboo_core.api.spec import JobSpec, RedundancyMode, RedundancySpec
from bamboo_core.controller.lifecycle import JobStatus
from bamboo_core.controller.view import JobView, Memory
from bamboo_core.planning.requests import Bound, Comparison, StepTime
from bamboo_core.protection.choice import choose
from bamboo_operator.status import protection as written_protection
from bamboo_operator.status import statuses

JOB = JobView("ns", "job", "uid", 1, 0.0)
TAKEN = JobStatus(
    JobPhase.RUNNING,
    (),
    mode=RedundancyMode.REPLICA,
    # a device with room for Replica, but for nothing ahead of it
    verdict=choose(
        usual(hazard_per_agent_hour=0.5, host_memory_bytes=0, memory_bytes=1_577_000_000)
    ),
)


def protection(status: JobStatus) -> dict[str, object] | None:
    found: dict[str, object] | None = statuses.to_object(JOB, spec(), status, Memory()).get(
        "protection"
    )
    return found


def test_mode_reason_and_inputs() -> None:
    found = protection(replace(TAKEN, copies=((2, "0-7"),)))
    assert found is not None
    assert (found["mode"], found["leastCopies"]) == ("Replica", 2)
    text = "with 3.9 losses an hour among 8 agents, of whose seats 2.4 % are empty, for 180 s each"
    assert str(found["reason"]).startswith(f"{text} time, Replica costs")
    none, replica, eager = found["estimates"]  # type: ignore[misc]
    assert none["overhead"] == "1.0000"
    assert float(replica["expectedStep"]) < float(none["expectedStep"])
    assert float(replica["lostSecondsPerHour"]) < float(none["lostSecondsPerHour"])
    assert set(eager) == {"mode", "excluded"}
    assert all(isinstance(value, str) for mode in (none, replica, eager) for value in mode.values())


def test_all_inputs_say_where_they_are_from() -> None:
    facts = usual(
        memory_bytes=16 << 30,
        measured=("empty_share", "memory_bytes", "parameter_bytes", "refill_s", "step_s"),
        refill_s=41.25,
        empty_share=0.25,
        empty_together=0.125,
    )
    found = protection(replace(TAKEN, mode=choose(facts).mode, verdict=choose(facts)))
    assert found is not None
    table = {x["name"]: (x["value"], x["source"]) for x in found["inputs"]}  # type: ignore[attr-defined]
    assert table == {
        "hazardPerAgentHour": ("0.05", "Assumed"),
        "stepSeconds": ("3.3", "Measured"),
        "forwardSeconds": ("0.1", "Assumed"),
        "backwardSeconds": ("0.2", "Assumed"),
        "idleSeconds": ("0.5", "Computed"),
        "aheadSeconds": ("0.6", "Computed"),
        "copyingSeconds": ("0.08", "Computed"),
        "delaySeconds": ("0.1", "Computed"),
        "tightSeconds": ("0", "Computed"),
        "stageBytes": ("100000000", "Measured"),
        "activationBytes": ("10000000", "Assumed"),
        "deviceMemoryBytes": (str(16 << 30), "Measured"),
        "hostMemoryBytes": (str(8 << 30), "Spec"),
        "bandwidthGbps": ("10", "Spec"),
        "hostBandwidthGbps": ("96", "Assumed"),
        "stopSeconds": ("1", "Assumed"),
        "refillSeconds": ("41.25", "Measured"),
        "emptySeatShare": ("0.25", "Measured"),
        "emptySeatsTogether": ("0.125", "Measured"),
        "restartSeconds": ("60", "Assumed"),
        "checkpointSeconds": ("600", "Computed"),
    }


def test_what_is_not_known_is_no_input() -> None:
    found = protection(replace(TAKEN, mode=choose(usual()).mode, verdict=choose(usual())))
    assert found is not None
    assert "deviceMemoryBytes" not in str(found["inputs"])


def test_a_new_leader_knows_the_mode_but_not_yet_why() -> None:
    assert protection(replace(TAKEN, verdict=None)) == {"mode": "Replica"}
    other = replace(TAKEN, mode=RedundancyMode.NONE)  # the verdict is for the next plan
    assert protection(other) == {"mode": "None"}


def test_the_reason_stays_when_nobody_knows_it_any_more() -> None:
    """A report of an ended job said which mode Auto had taken, and no longer why."""
    auto, old = (
        spec(redundancy=RedundancySpec(mode=RedundancyMode.AUTO)),
        {"protection": protection(TAKEN)},
    )
    known = replace(TAKEN, verdict=None)

    def after(status: JobStatus, job: JobSpec = auto) -> object:
        new = statuses.to_object(JOB, job, status, Memory())
        return written_protection.with_reason(new, old, job)["protection"]

    assert after(known) == old["protection"]
    assert after(TAKEN) == protection(TAKEN)
    assert after(replace(known, mode=RedundancyMode.NONE)) == {"mode": "None"}
    assert after(known, spec(redundancy=RedundancySpec(mode=RedundancyMode.REPLICA))) == {
        "mode": "Replica"
    }


def test_a_mode_of_the_spec_is_not_repeated() -> None:
    assert protection(replace(TAKEN, mode=None, verdict=None)) is None


def test_the_way_to_share_lost_work_is_shown_with_the_others() -> None:
    compared = Comparison(
        StepTime("Peers", 2.345),
        (
            StepTime("Diffuse", 4.0),
            StepTime("Shadow", 6, Bound.LEAST),
            StepTime("OnePeer", 7, Bound.MOST),
        ),
    )
    assert protection(replace(TAKEN, mode=None, verdict=None, sharing=compared)) == {
        "sharing": {
            "way": "Peers",
            "stepSeconds": "2.35",
            "others": [
                {"way": "Diffuse", "stepSeconds": "4"},
                {"way": "Shadow", "stepSeconds": "6", "atLeast": True},
                {"way": "OnePeer", "stepSeconds": "7", "atMost": True},
            ],
        }
    }
