"""Each alert on its fault, and on what differs from it by one thing: promtool's notation, one value
a minute, looked at after two hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bamboo_sim.watching.definitions import rules, source
from bamboo_sim.watching.definitions.alert import RELEASE, filled
from bamboo_sim.watching.definitions.operator_alerts import OPERATOR
from bamboo_sim.watching.proof import promtool

AT = "2h"


@dataclass(frozen=True)
class Case:
    """Series by name and further labels, such as ``bamboo_x|type=y``."""

    alert: str
    fires: Mapping[str, str]
    quiet: Mapping[str, str]  # what differs when it must not fire
    labels: Mapping[str, str] = field(default_factory=dict)  # of the alert, beside the job's

    @property
    def is_operators(self) -> bool:
        """Whether the alert is about the operator."""
        return any(alert.name == self.alert for alert in OPERATOR)


def condition(kind: str) -> str:
    """The series of a condition."""
    return f"bamboo_job_condition|type={kind}"


def reason(kind: str, why: str, status: str = "True") -> str:
    """The series of a condition's reason."""
    return f"bamboo_job_condition_reason|type={kind}|status={status}|reason={why}"


def spent(state: str) -> str:
    """The series of a job's time in a state."""
    return f"bamboo_job_time_seconds_total|state={state}"


def handed_on(counter: str, before: str, after: str) -> dict[str, str]:
    """The counter ends at one operator's pod, and begins at the next one's."""
    return {f"{counter}|pod=a": f"{before}x100 stale", f"{counter}|pod=b": f"_x101 {after}x99"}


LEADER = "bamboo_operator_leader"
TRAINING = spent("Training")
FAILED_AGENTS = "bamboo_job_failures_total|cause=AgentFailed"
FAILED_STARTS = "bamboo_job_failures_total|cause=StartFailed"
NEWEST = "bamboo_checkpoint_last_timestamp_seconds"
RESTARTS = "kube_pod_container_status_restarts_total|pod=bamboo-operator-5d4f-x|container=operator"
STANDS_STILL = {
    "bamboo_job_steps_total": "0+1x90 90x110",
    "bamboo_job_plan_steps": "5x200",
    "bamboo_job_step_seconds": "2x200",
    TRAINING: "0+60x200",
    condition("Running"): "1x200",
}
NOT_RUNNING = {
    spent("Waiting"): "0+60x200",
    TRAINING: "0x200",
    condition("Accepted"): "1x200",
    condition("CapacityAvailable"): "1x200",
    condition("Running"): "0x200",
    condition("Complete"): "0x200",
}
STARTS_FAIL = {
    FAILED_STARTS: "0x108 2x2 4x90",
    "bamboo_job_workers_wanted": "2x200",
    "bamboo_job_workers|state=connected|zone=a": "1x200",
}
SLOW = {
    "bamboo_job_step_seconds": "2x90 20x110",
    "bamboo_job_workers_wanted": "2x200",
    "bamboo_job_workers|state=connected|zone=a": "2x200",
    condition("Running"): "1x200",
}
TOO_OLD = {
    "bamboo_checkpoint_behind_steps": "201x200",
    "bamboo_checkpoint_interval_steps": "100x200",
    NEWEST: "600x200",
    condition("Running"): "1x200",
}
NEVER_SAVED = {
    "bamboo_checkpoint_behind_steps": "201x200",
    "bamboo_checkpoint_interval_steps": "100x200",
    TRAINING: "0+60x200",
    condition("Running"): "1x200",
}
CASES: list[Case] = [
    Case("BambooJobStandsStill", STANDS_STILL, {"bamboo_job_steps_total": "7+1x200"}),
    Case(
        "BambooJobStandsStill",
        STANDS_STILL
        | {"bamboo_job_steps_total": "_x200"}
        | handed_on("bamboo_job_steps_total", "7", "7"),
        {"bamboo_job_steps_total|pod=b": "_x101 8+1x99"},
    ),
    Case(  # the plan has not committed its first step, or one step takes 400 s
        "BambooJobStandsStill", STANDS_STILL, {"bamboo_job_plan_steps": "0x200"}
    ),
    Case("BambooJobStandsStill", STANDS_STILL, {"bamboo_job_step_seconds": "400x200"}),
    Case(  # it has not trained during the whole window
        "BambooJobStandsStill", STANDS_STILL, {TRAINING: "0x107 0+60x92"}
    ),
    Case("BambooJobStandsStill", STANDS_STILL, {condition("Running"): "0x200"}),
    Case(  # not even the first step was committed, for more than an hour
        "BambooJobStandsStill",
        STANDS_STILL | {"bamboo_job_steps_total": "0x200", "bamboo_job_plan_steps": "0x200"},
        {TRAINING: "0x65 0+60x140"},
    ),
    Case(
        "BambooJobStalled",
        {reason("Stalled", "ImagePullFailed"): "1x200"},
        {reason("Stalled", "ImagePullFailed"): "1x100"},
        {"reason": "ImagePullFailed"},
    ),
    Case(
        "BambooStartsFail",
        {
            reason("Stalled", "StartsFail"): "1x200",
            FAILED_AGENTS: "0x108 2x92",
            FAILED_STARTS: "0x110 2x90",
        },
        {reason("Stalled", "StartsFail"): "1x100"},
    ),
    Case(  # one failure is not three
        "BambooStartsFail",
        {
            reason("Stalled", "StartsFail"): "1x200",
            FAILED_AGENTS: "0x108 2x92",
            FAILED_STARTS: "0x110 2x90",
        },
        {FAILED_AGENTS: "0x108 1x92", FAILED_STARTS: "0x200"},
    ),
    Case("BambooStartsFail", STARTS_FAIL, {"bamboo_job_workers|state=connected|zone=a": "2x200"}),
    Case("BambooStartsFail", STARTS_FAIL, {FAILED_STARTS: "0x110 2x90"}),
    Case(  # an init container that never ends
        "BambooJobNotRunning", NOT_RUNNING, {spent("Waiting"): "0x65 0+60x140"}
    ),
    Case(  # it has trained for a while
        "BambooJobNotRunning", NOT_RUNNING, {spent("Waiting"): "0+60x90 5400x10 5400+60x100"}
    ),
    Case(  # another alert says so
        "BambooJobNotRunning", NOT_RUNNING, {condition("CapacityAvailable"): "0x100 1x15 0x100"}
    ),
    Case("BambooJobNotRunning", NOT_RUNNING, {condition("Complete"): "0x115 1x100"}),
    Case("BambooJobSlow", SLOW, {"bamboo_job_step_seconds": "2x90 9x110"}),
    Case("BambooJobSlow", SLOW, {"bamboo_job_workers|state=connected|zone=a": "2x90 1x110"}),
    Case("BambooJobSlow", SLOW, {"bamboo_job_step_seconds": "2x112 20x90"}),
    Case("BambooJobSlow", SLOW, {"bamboo_job_workers_wanted": "4x90 2x110"}),
    Case(
        "BambooJobWaitsForCapacity",
        {condition("CapacityAvailable"): "1x80 0x100"},
        {condition("CapacityAvailable"): "1x100 0x100"},  # not for long enough
    ),
    Case("BambooCheckpointTooOld", TOO_OLD, {NEWEST: "0+60x200"}),
    Case("BambooCheckpointTooOld", TOO_OLD, {condition("Running"): "0x200"}),
    Case(  # its interval is long
        "BambooCheckpointTooOld", TOO_OLD, {"bamboo_checkpoint_interval_steps": "300x200"}
    ),
    Case(  # it has just resumed: the newest checkpoint is old, but holds nearly all
        "BambooCheckpointTooOld", TOO_OLD, {"bamboo_checkpoint_behind_steps": "199x200"}
    ),
    Case(  # none was ever written
        "BambooCheckpointTooOld", NEVER_SAVED, {"bamboo_checkpoint_interval_steps": "_x200"}
    ),
    Case("BambooCheckpointTooOld", NEVER_SAVED, {NEWEST: "_x70 4200+60x130"}),
    Case(  # it has waited for most of the time
        "BambooCheckpointTooOld", NEVER_SAVED, {TRAINING: "0x106 0+60x100"}
    ),
    Case(
        "BambooCheckpointFails",
        {reason("Checkpointed", "WriteFailed", "False"): "1x200"},
        {reason("Checkpointed", "WriteFailed", "False"): "_x112 1x90"},
    ),
    Case(
        "BambooJobNotAccepted",
        {condition("Accepted"): "0x200"},
        {condition("Accepted"): "0x100 1x100"},
    ),
    Case(
        "BambooOneLossFromRestore",
        {"bamboo_job_least_copies": "1x200", condition("Degraded"): "1x200"},
        {condition("Degraded"): "0x200"},  # the spec does not ask for more
    ),
    Case(
        "BambooOneLossFromRestore",
        {"bamboo_job_least_copies": "1x200", condition("Degraded"): "1x200"},
        {"bamboo_job_least_copies": "2x200"},
    ),
    Case(
        "BambooWorkRepeated",
        {"bamboo_job_repeated_steps_total": "0x100 5x100"},
        {"bamboo_job_repeated_steps_total": "5x200"},
    ),
    Case(
        "BambooWorkRepeated",
        handed_on("bamboo_job_repeated_steps_total", "0", "500"),
        handed_on("bamboo_job_repeated_steps_total", "500", "500"),
    ),
    Case(
        "BambooPausesTooLong",
        {"bamboo_job_pause_seconds_total|cause=Loss": "0+18x200"},
        {"bamboo_job_pause_seconds_total|cause=Loss": "0+6x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            "bamboo_preemptions_total|noticed=false": "0x10 6x200",
            "bamboo_preemptions_total|noticed=true": "0x200",
        },
        {"bamboo_preemptions_total|noticed=true": "0x10 1x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            "bamboo_preemptions_total|noticed=false": "0x10 6x200",
            "bamboo_preemptions_total|noticed=true": "0x200",
        },
        {"bamboo_preemptions_total|noticed=false": "0x10 2x200"},
    ),
    Case(
        "BambooUnannouncedLosses",
        {
            **handed_on("bamboo_preemptions_total|noticed=false", "1", "7"),
            **handed_on("bamboo_preemptions_total|noticed=true", "3", "3"),
        },
        handed_on("bamboo_preemptions_total|noticed=true", "3", "4"),
    ),
    Case(
        "BambooAgentsFail",
        handed_on("bamboo_job_failures_total|cause=TaskFailed", "2", "7"),
        handed_on("bamboo_job_failures_total|cause=TaskFailed", "7", "7"),
    ),
    Case(
        "BambooAgentsFail",
        {"bamboo_job_failures_total|cause=TaskFailed": "0x100 6x100"},
        {"bamboo_job_failures_total|cause=TaskFailed": "0x100 2x100"},
    ),
    Case(
        "BambooCorruptionFound",
        {"bamboo_job_corruptions_total": "0x100 1x100"},
        {"bamboo_job_corruptions_total": "1x200"},
    ),
    Case(
        "BambooCorruptionFound",
        {"bamboo_job_failures_total|cause=Corruption": "0x100 1x100"},
        {"bamboo_job_failures_total|cause=Corruption": "0x200"},
    ),
    Case(
        "BambooCorruptionFound",
        handed_on("bamboo_job_corruptions_total", "1", "2"),
        handed_on("bamboo_job_corruptions_total", "2", "2"),
    ),
    Case(
        "BambooJobFailed",
        {condition("Failed"): "0x100 1x100"},
        {condition("Failed"): "0x200"},
    ),
    Case(  # those that run do not lead, and one has led lately or none ever has
        "BambooNoLeader", {LEADER: "1x100 0x100"}, {LEADER: "1x200"}
    ),
    Case("BambooNoLeader", {LEADER: "0x200"}, {LEADER: "_x119 0x80"}),
    Case("BambooNoLeader", {LEADER: "1x100 stale"}, {LEADER: "_x200"}),
    Case("BambooOperatorMissing", {LEADER: "1x100 stale"}, {LEADER: "0x107 stale"}),
    Case(
        "BambooOperatorRestarts",
        {"bamboo_operator_start_timestamp_seconds|pod=a": "1x100 2x4 3x4 4x90"},
        {"bamboo_operator_start_timestamp_seconds|pod=a": "1x100 2x4 3x90"},
    ),
    Case(  # one pod after the other begins
        "BambooOperatorRestarts",
        {"bamboo_operator_start_timestamp_seconds|pod=a": "1x100 2x4 3x4 4x90"},
        {
            "bamboo_operator_start_timestamp_seconds|pod=a": "1x100",
            "bamboo_operator_start_timestamp_seconds|pod=b": "_x101 2x4",
            "bamboo_operator_start_timestamp_seconds|pod=c": "_x106 3x4",
            "bamboo_operator_start_timestamp_seconds|pod=d": "_x111 4x90",
        },
    ),
    Case(  # it ends before anybody scrapes it
        "BambooOperatorRestarts",
        {RESTARTS: "0x100 1x4 2x4 3x90"},
        {RESTARTS: "0x100 1x4 2x90"},
    ),
    Case(
        "BambooOperatorFails",
        {"bamboo_operator_reconcile_total|outcome=error": "0+6x200"},
        {"bamboo_operator_reconcile_total|outcome=error": "0+1x200"},
    ),
]


def inputs(
    series: Mapping[str, str], own: Mapping[str, str], target: Mapping[str, str] = source.LABELS
) -> list[dict[str, str]]:
    """Series of promtool. own: labels of all. target: what Prometheus says of the target."""
    found = []
    for key, values in series.items():
        name, *pairs = key.split("|")
        labels = {**own, **dict(pair.split("=") for pair in pairs), **target}
        found.append(promtool.series(name, labels, values))
    return found


def fired(case: Case, own: Mapping[str, str]) -> dict[str, Any]:
    """The alert as promtool expects it."""
    (alert,) = (a for a in rules.ALERTS if a.name == case.alert)
    labels = {**own, **case.labels}

    def told(text: str) -> str:
        for name, value in labels.items():
            text = text.replace(f"{{{{ $labels.{name} }}}}", value)
        return filled(text, alert.defaults | RELEASE)

    return {
        "exp_labels": labels | {"severity": alert.severity},
        "exp_annotations": {
            "summary": told(alert.summary),
            "description": told(alert.text),
            "action": told(alert.action),
            "runbook_url": f"{rules.RUNBOOKS}/{alert.name}.md",
        },
    }


def asked(name: str, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """The question to promtool about one alert."""
    return {"eval_time": AT, "alertname": name, "exp_alerts": expected}


def of_jobs(cases: list[Case]) -> dict[str, Any]:
    """One test: each case is two jobs, one for which its alert fires and one for which it does
    not. So none of them may fire another alert either."""
    series, expected = [], dict[str, list[dict[str, Any]]]()
    for number, case in enumerate(cases):
        loud = {"job_namespace": "ns", "training_job": f"{number}-fires"}
        series += inputs(case.fires, loud)
        series += inputs({**case.fires, **case.quiet}, loud | {"training_job": f"{number}-quiet"})
        expected.setdefault(case.alert, []).append(fired(case, loud))
    asks = [asked(name, alerts) for name, alerts in expected.items()]
    return promtool.test("jobs", series, alert_rule_test=asks)


def of_operator(case: Case, *, fires: bool) -> dict[str, Any]:
    """A test of a case about the operator."""
    series = case.fires if fires else {**case.fires, **case.quiet}
    asks = [asked(case.alert, [fired(case, {})] if fires else [])]
    name = f"{case.alert}, {'fires' if fires else 'is quiet'}"
    return promtool.test(name, inputs(series, {}), alert_rule_test=asks)


def tests() -> list[dict[str, Any]]:
    """Every case as tests of promtool."""
    about_operator = [case for case in CASES if case.is_operators]
    found = [of_operator(case, fires=fires) for case in about_operator for fires in (True, False)]
    return [*found, of_jobs([case for case in CASES if not case.is_operators])]
