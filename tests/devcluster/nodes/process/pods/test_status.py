"""The status of pods: the kubelet's phases and conditions."""

import datetime as dt
from dataclasses import replace

import pytest

from bamboo_devcluster.nodes.process.pods.status import (
    ContainerRecord,
    PodView,
    Running,
    Terminated,
    Waiting,
    build_status,
    pod_phase,
)

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
RUN = Running(NOW)
GOOD = Terminated(0, "Completed", NOW, NOW)
BAD = Terminated(3, "Error", NOW, NOW, "why")
WAIT = Waiting("ContainerCreating")
CRASH = Waiting("CrashLoopBackOff")


def record(state, *, last=None, sidecar=False, ready=False, started=False) -> ContainerRecord:
    return ContainerRecord("c", "image", is_sidecar=sidecar, state=state, last=last,
                           is_ready=ready, is_started=started)  # fmt: skip


def view(*main, init=(), policy="Always", final=False, verdict=None, gates=()) -> PodView:
    spec = {"restartPolicy": policy, "readinessGates": [{"conditionType": g} for g in gates]}
    pod = {"metadata": {"generation": 7}, "spec": spec, "status": {}}
    return PodView(pod, init, main, "127.0.0.9", "127.0.0.2", NOW, True, verdict, final)


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        (view(record(WAIT)), "Pending"),
        (view(record(RUN), record(WAIT)), "Pending"),
        (view(record(RUN), record(GOOD)), "Running"),
        (view(record(CRASH, last=BAD)), "Running"),
        (view(record(GOOD)), "Running"),
        (view(record(GOOD), policy="OnFailure"), "Succeeded"),
        (view(record(BAD), policy="OnFailure"), "Running"),
        (view(record(BAD), policy="Never"), "Failed"),
        (view(record(BAD), record(RUN), policy="Never"), "Running"),
        (view(record(GOOD), policy="Never"), "Succeeded"),
        (view(record(GOOD), final=True), "Succeeded"),
        (view(record(BAD), final=True), "Failed"),
        (view(record(WAIT), final=True), "Failed"),
        (view(record(RUN), verdict=("DeadlineExceeded", "late")), "Running"),
        (view(record(BAD), verdict=("DeadlineExceeded", "late"), final=True), "Failed"),
        (view(record(WAIT), init=[record(RUN)]), "Pending"),
        (view(record(WAIT), init=[record(BAD)], policy="Never"), "Failed"),
        (view(record(WAIT), init=[record(BAD)]), "Pending"),
        (view(record(RUN), init=[record(GOOD)]), "Running"),
        (view(record(RUN), init=[record(RUN, sidecar=True, started=True)]), "Running"),
        (view(record(WAIT), init=[record(RUN, sidecar=True)]), "Pending"),
    ],
)
def test_phases(given: PodView, phase: str) -> None:
    assert pod_phase(given) == phase


def conditions(given: PodView, before=None):
    status = build_status(given, now=NOW, before=before or {})
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def test_conditions_of_a_ready_pod() -> None:
    seen = conditions(view(record(RUN, ready=True)))
    assert set(seen.values()) == {("True", None)}


def test_conditions_of_an_unready_pod() -> None:
    seen = conditions(view(record(RUN)))
    assert seen["Ready"] == seen["ContainersReady"] == ("False", "ContainersNotReady")


def test_conditions_of_finished_pods() -> None:
    assert conditions(view(record(GOOD), policy="Never"))["Ready"] == ("False", "PodCompleted")
    assert conditions(view(record(BAD), policy="Never"))["Ready"] == ("False", "PodFailed")


def test_readiness_gates_close_a_ready_pod() -> None:
    seen = conditions(view(record(RUN, ready=True), gates=["mine"]))
    assert seen["Ready"] == ("False", "ReadinessGatesNotReady")
    assert seen["ContainersReady"] == ("True", None)


def test_transition_times_stay_until_the_status_changes() -> None:
    first = build_status(view(record(RUN)), now=NOW, before={})
    later = NOW + dt.timedelta(seconds=9)
    same = build_status(view(record(RUN)), now=later, before=first)
    assert same["conditions"] == first["conditions"]
    ready = build_status(view(record(RUN, ready=True)), now=later, before=first)
    times = {c["type"]: c["lastTransitionTime"] for c in ready["conditions"]}
    assert (times["Ready"], times["Initialized"]) == (
        "2026-01-02T03:04:14Z",
        "2026-01-02T03:04:05Z",
    )


def test_container_statuses() -> None:
    status = build_status(
        view(record(CRASH, last=BAD), verdict=("Reason", "text"), final=True), now=NOW, before={}
    )
    container = status["containerStatuses"][0]
    assert container["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": ""}}
    assert container["lastState"]["terminated"]["exitCode"] == 3
    assert container["lastState"]["terminated"]["message"] == "why"
    assert (status["reason"], status["message"]) == ("Reason", "text")
    assert status["observedGeneration"] == 7


def test_a_refused_pod_has_a_reason_and_no_containers() -> None:
    given = replace(view(record(WAIT)), verdict=("OutOfcpu", "no"), is_refused=True)
    found = build_status(given, now=NOW, before={})
    assert found.keys() == {"phase", "reason", "message", "startTime"}
    assert (found["phase"], found["reason"], found["message"]) == ("Failed", "OutOfcpu", "no")
