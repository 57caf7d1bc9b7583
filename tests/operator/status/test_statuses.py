"""Status to and from the API."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.controller.builders import JOB, nodes, pod, spec

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import BestCheckpoint, Network, SlowPair, TrainingProgress, Way
from bamboo_core.api.reasons import FailureCause, JobPhase
from bamboo_core.api.spec import Channel, RunPolicy, TransportSpec
from bamboo_core.api.totals import Totals
from bamboo_core.arbiter_state.durable import Durable, to_json, with_manifest
from bamboo_core.controller import failures, shortage
from bamboo_core.controller.failures import (
    MOST_AVOIDED,
    MOST_RECENT,
    Avoided,
    FailedStarts,
    Failure,
    Failures,
    Misfits,
)
from bamboo_core.controller.lifecycle import JobStatus, ZoneCount
from bamboo_core.controller.reconcile import step
from bamboo_core.controller.view import (
    ClusterView,
    Condition,
    DryZone,
    Losses,
    Memory,
    PodView,
    Shortage,
    Slot,
    TrainingView,
)
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.protocol import channels
from bamboo_core.protocol.messages import Manifest
from bamboo_operator.kube.timestamps import instant
from bamboo_operator.status import statuses


def written(training: TrainingView, memory: Memory, *, count: int = 1, stages: int = 2) -> dict:  # type: ignore[type-arg]
    wanted = spec(count=count, stages=stages)
    decided = step(
        wanted, ClusterView(nodes(a=1, b=1), (pod(),)), training, memory, job=JOB, now=100.0
    )
    return statuses.to_object(JOB, wanted, decided.status, decided.memory)


def test_the_channel_and_its_reason_are_shown_once_an_agent_is_ready() -> None:
    route = channels.choose(TransportSpec(), "cpu:AVX2", "")
    found = written(TrainingView(route=route), Memory())
    reason = "the agents have no GPUs, and gloo is not faster than tcp"
    assert found["transport"] == {"channel": "Tcp", "encrypted": True, "reason": reason}
    assert "transport" not in written(TrainingView(), Memory())


def test_a_job_that_has_ended_counts_no_agents() -> None:
    """Not 0/0, which looks as if something were missing."""
    summaries = {"agentsSummary", "pipelinesSummary"}
    assert not summaries & written(TrainingView(), Memory(terminal=Outcome.COMPLETE)).keys()
    assert summaries < written(TrainingView(), Memory()).keys()


def summaries(training: TrainingView, *pods: PodView, suspend: bool) -> tuple[str, str]:
    wanted = spec(count=2, stages=3, suspend=suspend)
    view = ClusterView(nodes(a=1, b=1), pods)
    decided = step(wanted, view, training, Memory(), job=JOB, now=100.0)
    found = statuses.to_object(JOB, wanted, decided.status, decided.memory)
    return found["pipelinesSummary"], found["agentsSummary"]


def test_a_suspended_job_shows_what_it_would_have() -> None:
    """Not 0/0, and not 1/0 while its agents leave."""
    heard = frozenset({pod().agent})
    leaving = TrainingView(planned=True, has_state=True, pipelines=1, connected=heard)
    for suspend in (True, False):
        assert summaries(TrainingView(), suspend=suspend) == ("0/2", "0/6")
        assert summaries(leaving, pod(), suspend=suspend) == ("1/2", "1/6")


@pytest.mark.parametrize(("carried", "share"), [(0, 0.0), (250, 0.25), (2000, 1.0)])
def test_the_share_that_groups_really_carry_is_shown(carried: int, share: float) -> None:
    """Groups may be chosen, and yet no pair may have one."""
    route = channels.choose(TransportSpec(Channel.PROCESS_GROUP), "cpu:AVX2", "")
    totals = Totals(sent={Way("Boundary", "a", "b"): 400, Way("Sums", "b", "a"): 600})
    found = written(
        TrainingView(route=route, totals=replace(totals, group_bytes=carried)), Memory()
    )
    assert found["transport"]["groupShare"] == share


def test_what_agents_measure_of_the_network_is_shown() -> None:
    route = channels.choose(TransportSpec(), "cpu:AVX2", "")
    slowest = SlowPair(AgentId("job-p0-s0-i0"), AgentId("job-p1-s0-i0"), 0.15e9)
    network = Network(0.4e9, 0.42e9, slowest)
    found = written(TrainingView(route=route, network=network), Memory())["transport"]
    assert (found["plannedGbps"], found["measuredGbps"]) == (3.2, 3.36)
    pair = {"from": "job-p0-s0-i0", "to": "job-p1-s0-i0", "gbps": 1.2}
    assert found["slowestPair"] == pair
    unknown = written(TrainingView(route=route), Memory())["transport"]
    assert unknown.keys() == {"channel", "encrypted", "reason"}


INSTANTS = st.integers(1, 10**9).map(float)
FAILURES = st.builds(
    Failure,
    agent=st.just(AgentId("job-p0-s0-i0")),
    cause=st.sampled_from(FailureCause),
    step=st.integers(0, 9),
    at=INSTANTS,
    node=st.sampled_from(["", "node-a"]),
    machine=st.sampled_from(["", "uid/boot"]),
    is_user_error=st.booleans(),
    is_tolerated=st.booleans(),
    template=st.sampled_from(["", "0123456789abcdef"]),
)
LAST = st.just((None, "")) | st.tuples(FAILURES, st.text(max_size=9))


@given(
    st.builds(
        Memory,
        incarnation=st.integers(-1, 9),
        failures=st.builds(
            lambda last, **rest: Failures(last=last[0], message=last[1], **rest),
            LAST,
            counts=st.dictionaries(st.sampled_from(FailureCause), st.integers(1, 9)).map(
                lambda counts: tuple(sorted(counts.items()))
            ),
            recent=st.lists(FAILURES, max_size=MOST_RECENT).map(tuple),
            older=st.integers(1, 9),
            older_step=st.integers(0, 9),
            avoided=st.lists(
                st.builds(
                    Avoided,
                    st.just("node-a"),
                    st.just("uid/boot"),
                    INSTANTS,
                    st.booleans(),
                    st.sampled_from(["", "c5.large"]),
                    st.sampled_from(["", "0123456789abcdef"]),
                ),
                max_size=MOST_AVOIDED,
            ).map(tuple),
            misfits=st.just(Misfits())
            | st.builds(Misfits, st.integers(1, 9), INSTANTS, st.text(max_size=9)),
            starts=st.just(FailedStarts())
            | st.builds(
                FailedStarts,
                st.integers(1, 9),
                INSTANTS,
                st.frozensets(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=3),
                st.integers(-1, 99),
                st.text(max_size=9),
                is_counted=st.booleans(),
                taken=st.integers(0, 1),
            ),
        ),
        losses=st.builds(Losses, st.integers(0, 9), st.integers(0, 9)),
        settled=st.frozensets(st.sampled_from(["job-p0-s0-i0", "job-p0-s1-i2"])),
        started_at=st.none() | st.integers(1, 10**9).map(float),
        assured=st.integers(0, 9),
        assured_of=st.sampled_from(["", "0123456789abcdef"]),
        trained=st.booleans(),
        dry=st.lists(
            st.builds(DryZone, st.just("a"), st.integers(0, 9), INSTANTS, INSTANTS, st.just(3)),
            max_size=2,
        ).map(tuple),
        short=st.lists(
            st.builds(Shortage, INSTANTS, st.just((Slot(0, 1), Slot(12, 0)))), max_size=2
        ).map(tuple),
    )
)
def test_memory_survives_a_restart(memory: Memory) -> None:
    phase = JobPhase.RECOVERING if memory.trained else JobPhase.STARTING
    status = JobStatus(phase=phase, conditions=memory.conditions, losses=memory.losses)
    body = {
        "metadata": {"name": "job"},
        "status": json.loads(json.dumps(statuses.to_object(JOB, spec(), status, memory))),
    }
    assert statuses.read_memory(body) == memory


@given(st.integers(0, 253_402_300_799))  # until the end of the year 9999
@example(951_782_400)  # 2000-02-29
def test_the_core_writes_instants_as_the_status_does(at: int) -> None:
    assert shortage.instant(at + 0.5) == instant(at)


@pytest.mark.parametrize("value", [None, 3, "x"])
def test_a_status_of_another_version_counts_as_no_failure(value: object) -> None:
    body = {"metadata": {"name": "job"}, "status": {"failures": value}}
    assert statuses.read_memory(body).failures == Failures()


def test_the_newest_agents_stay_counted() -> None:
    """Also if very many have ended at once: a new operator must not count them again."""
    names = frozenset(f"job-p{n // 32}-s{n % 32}-i{n % 3}" for n in range(1024))
    assert kept_of(names) == names
    assert len(kept_of(frozenset(f"job-p0-s{n % 9}-i{n}" for n in range(2000)))) == 1024
    text = statuses.to_object(JOB, spec(), NOTHING, Memory(settled=names))["pods"]["settled"]
    assert len(text) < 16384, "the limit of the custom resource"


NOTHING = JobStatus(phase=JobPhase.RUNNING, conditions=())


def kept_of(names: frozenset[str]) -> frozenset[str]:
    """The agents that a new operator knows as counted."""
    found = statuses.to_object(JOB, spec(), NOTHING, Memory(settled=names))
    return statuses.read_memory({"metadata": {"name": "job"}, "status": found}).settled


def test_agents_that_an_earlier_version_has_counted_stay_counted() -> None:
    pods = {"settled": "p0-s0-i3 p12-s1-i14"}
    body = {"metadata": {"name": "job"}, "status": {"pods": pods}}
    assert statuses.read_memory(body).settled == {"job-p0-s0-i3", "job-p12-s1-i14"}


def test_the_outcome_survives_a_restart() -> None:
    done = written(TrainingView(outcome=Outcome.FAILED, reason="X", message="why"), Memory())
    found = statuses.read_memory({"metadata": {"name": "job"}, "status": done})
    assert (found.terminal, found.reason, found.message) == (Outcome.FAILED, "X", "why")
    assert found.finished_at == 100.0


def test_progress_survives_a_restart() -> None:
    training = TrainingView(
        planned=True, has_state=True,
        progress=TrainingProgress(4, 2.5, 1.25, step_s=6.4, skipped=3),
        losses=Losses(2, 1), checkpoint_step=3, checkpoint_path="/c",
        checkpoint_error="agent x: disk full",
    )  # fmt: skip
    status = written(training, Memory())
    assert status["progress"] == {
        "step": 5, "steps": 10, "loss": "2.5000", "validationLoss": "1.2500",
        "samplesPerSecond": "10.0", "skippedSteps": 3,
    }  # fmt: skip
    reported = statuses.read_progress({"status": status})
    assert reported.progress == TrainingProgress(4, loss=2.5, validation_loss=1.25, skipped=3)
    assert (reported.losses, reported.checkpoint_error) == (Losses(2, 1), "agent x: disk full")
    nothing = statuses.read_progress({})
    assert nothing.progress == TrainingProgress()


def test_metrics_survive_a_restart() -> None:
    progress = TrainingProgress(
        4, 2.5, 1.25, metrics={"top": 1 / 3, "ease": 1e-7}, validation_metrics={"top": math.nan}
    )
    status = written(TrainingView(progress=progress), Memory())
    assert status["progress"]["metrics"] == {"ease": "1e-07", "top": "0.333333"}
    assert status["progress"]["validationMetrics"] == {"top": "nan"}
    reported = statuses.read_progress({"status": status}).progress
    assert reported.metrics == {"ease": 1e-7, "top": 0.333333}
    assert math.isnan(reported.validation_metrics["top"])


@pytest.mark.parametrize("channel", [Channel.TCP, Channel.PROCESS_GROUP])
def test_the_channel_survives_a_restart(channel: Channel) -> None:
    route = channels.choose(TransportSpec(channel), "cpu:AVX2", "")
    status = written(TrainingView(route=route), Memory())
    found = statuses.read_progress({"status": status}).route
    assert found == replace(route, backend="")
    assert written(TrainingView(route=found), Memory())["transport"] == status["transport"]
    assert statuses.read_progress({}).route is None


def test_rollbacks_are_counted() -> None:
    assert written(TrainingView(rollbacks=2), Memory())["rollbacks"] == 2
    assert "rollbacks" not in written(TrainingView(), Memory())


def test_the_kinds_of_processor_are_shown() -> None:
    kinds = (ProcessorKind("cpu:AVX2"), ProcessorKind("cpu:AVX2", "d1", 8, 1))
    assert written(TrainingView(processors=kinds), Memory())["processors"] == [
        {"device": "cpu:AVX2", "step": 0},
        {"device": "cpu:AVX2", "products": "d1", "step": 8},
    ]
    assert "processors" not in written(TrainingView(), Memory())


def test_an_unknown_loss_is_left_out() -> None:
    """As after a restore: the step counts, its loss is in no agent's memory."""
    status = written(TrainingView(progress=TrainingProgress(4)), Memory())
    assert status["progress"] == {"step": 5, "steps": 10}
    reported = statuses.read_progress({"status": status})
    assert reported.progress == TrainingProgress(4)


@pytest.mark.parametrize(
    ("loss", "text"),
    [(float("nan"), "nan"), (-1e38, "-1.0000e+38"), (float("inf"), "inf"), (12.0, "12.0000")],
)
def test_a_huge_loss_is_short(loss: float, text: str) -> None:
    status = written(
        TrainingView(progress=TrainingProgress(4, loss=loss, validation_loss=loss)), Memory()
    )
    assert (status["progress"]["loss"], status["progress"]["validationLoss"]) == (text, text)


def test_a_condition_may_be_unknown() -> None:
    status = written(TrainingView(), Memory())
    (degraded,) = (c for c in status["conditions"] if c["type"] == "Degraded")
    assert degraded["status"] == "Unknown"
    known = statuses.read_memory({"metadata": {"name": "job"}, "status": status}).conditions
    assert next(c for c in known if c.type == "Degraded").status is None


def test_a_checkpoint_that_one_node_only_may_have_is_known_to_the_next_operator() -> None:
    training = TrainingView(checkpoint_step=3, checkpoint_path="/c", checkpoint_caveat="one node")
    status = written(training, Memory())
    assert status["lastCheckpoint"] == {"step": 3, "path": "/c", "caveat": "one node"}
    assert statuses.read_progress({"status": status}).checkpoint_caveats == {"/c": "one node"}
    seen = written(replace(training, checkpoint_caveat=""), Memory())
    assert seen["lastCheckpoint"] == {"step": 3, "path": "/c"}
    assert statuses.read_progress({"status": seen}).checkpoint_caveats == {}


def test_the_best_checkpoint_is_shown_and_read_again() -> None:
    best = BestCheckpoint(4, 1, "accuracy", 0.8125, "/c/4")
    status = written(TrainingView(best=best), Memory())
    assert status["best"] == {
        "step": 4, "attempt": 1, "metric": "accuracy", "value": "0.8125", "path": "/c/4",
    }  # fmt: skip
    assert statuses.read({"metadata": {"name": "job"}, "status": status}).best == best
    assert "best" not in written(TrainingView(), Memory())


def test_times_follow_changes() -> None:
    training = TrainingView(planned=True, has_state=True, checkpoint_step=3, checkpoint_path="/c")
    first = statuses.with_times(written(training, Memory()), {}, 100.0)
    again = statuses.with_times(written(training, Memory()), first, 200.0)
    assert again["lastCheckpoint"]["time"] == first["lastCheckpoint"]["time"]
    assert again["progress"]["reportTime"] == first["progress"]["reportTime"]
    newer = TrainingView(planned=True, has_state=True, checkpoint_step=6, checkpoint_path="/c")
    later = statuses.with_times(written(newer, Memory()), first, 200.0)
    assert later["lastCheckpoint"]["time"] == "1970-01-01T00:03:20Z"


def test_a_new_step_can_wait_for_its_write() -> None:
    at = [
        written(TrainingView(planned=True, has_state=True, progress=TrainingProgress(n)), Memory())
        for n in (1, 2)
    ]
    assert at[0] != at[1]
    assert statuses.differ_in_progress_only(at[0], at[1])
    stopped = TrainingView(
        planned=True, has_state=True, recovering=True, progress=TrainingProgress(2)
    )
    assert not statuses.differ_in_progress_only(at[0], written(stopped, Memory()))


def test_long_messages_are_clipped() -> None:
    long = Condition("Accepted", False, "SpecInvalid", "x" * 5000)
    (value,) = statuses.conditions([long], 1)
    assert value["message"] == "x" * 1021 + "..."
    (value,) = statuses.conditions([replace(long, message="层" * 5000)], 1)
    assert value["message"] == "层" * 340 + "..."
    (value,) = statuses.conditions([replace(long, message="caf\udce9")], 1)
    assert value["message"] == "caf\\udce9"


def test_status_of_1024_agents_fits_16_kb() -> None:
    """128 pipelines of 8 stages, 40 zones, every list full."""
    job = replace(JOB, name="j" * 40)
    agents = [AgentId(f"{job.name}-p{n // 8}-s{n % 8}-i{n % 5}") for n in range(1024)]
    grid = tuple(tuple(agents[d * 8 : d * 8 + 8]) for d in range(128))
    facts = Durable(
        term=9, plan=Fence(1, 9, 70), members=tuple(sorted(agents)), voters=tuple(sorted(agents)),
        pipelines=grid, cut=tuple((n, n + 1) for n in range(8)), batch=BatchShape(1024, 1, 128),
    )  # fmt: skip
    for n in range(9):
        sealed = Manifest(1, n, f"/checkpoints/{n:080}", "0" * 64)
        facts = replace(facts, manifests=with_manifest(facts, sealed))
    zones = tuple(ZoneCount(f"zone-{n:02}", 26, 26, 26, 26) for n in range(40))
    status = JobStatus(phase=JobPhase.RUNNING, conditions=(), zones=zones)
    machine = "01234567-89ab-cdef-0123-456789abcdef/01234567-89ab-cdef-0123-456789abcdef"
    failed = Failures()
    for n in range(20):
        cause = list(FailureCause)[n % 4]
        one = Failure(agents[n], cause, 10_000, 1e9, f"node-{n:040}", machine)
        failed = failures.add(failed, one, "x" * 1000, RunPolicy(node_failure_limit=1))
    memory = Memory(settled=frozenset(agents[:16]), failures=failed)
    decided = written(TrainingView(), Memory(), count=128, stages=8)
    whole = statuses.to_object(job, spec(), status, memory)
    whole |= {"conditions": decided["conditions"], "arbiter": to_json(facts)}
    assert len(json.dumps(whole, separators=(",", ":"))) <= 16 * 1024
    assert len(whole["agents"]) == 9


def test_several_lines_of_a_kubelet_are_one_in_a_condition() -> None:
    said = Condition("Stalled", True, "ImagePullFailed", "no:\n  not found\n\nfor a\n")
    (found,) = statuses.conditions([said], 1)
    assert found["message"] == "no: / not found / for a"


def test_the_cause_why_a_job_does_not_run_is_written_at_once() -> None:
    def status(said: str, *, runs: bool) -> object:
        return {"conditions": statuses.conditions([Condition("Running", runs, "X", said)], 1)}

    for runs in (True, False):
        old, new = (status(said, runs=runs) for said in ("step 1", "step 2"))
        assert statuses.differ_in_progress_only(old, new) is runs
