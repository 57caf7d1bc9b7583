"""The words for pods that do not start: of conditions and events, with cause and remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bamboo_core.api.events import EventReason
from bamboo_core.api.reasons import ConditionType, Reason
from bamboo_core.api.spec import Adjacency, OnDemandSpec, PlacementSpec, WorkerSpec
from bamboo_core.controller import failures
from bamboo_core.controller.failures import FailedStarts, Failures
from bamboo_core.controller.reconcile import Step, step
from bamboo_core.controller.view import ClusterView, Memory, PodPhase, PodView, Slot, TrainingView
from bamboo_core.evidence.pod_troubles import PodTrouble

from .builders import JOB, nodes, pod, spec
from .failing_starts import KINDS, Cluster, after, condition


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "an init container that fails",
            "container fetch ended with exit code 1: no such bucket; kubectl logs job-p0-s0-i0 -c"
            " fetch",
        ),
        (
            "no healthy device",
            "its pod has ended on node node-a with the reason UnexpectedAdmissionError: Allocate"
            " failed due to no healthy devices; kubectl describe node node-a shows what the node"
            " has and lacks",
        ),
        (
            "too much disk of its own",
            "with the reason Evicted: Pod ephemeral local storage usage exceeds the limit 1Gi; let"
            " its containers use less, or ask for more in spec.worker.resources and"
            " spec.worker.podTemplate",
        ),
        (
            "a liveness probe that kills",
            "somebody has killed its container (exit code 137); look for a failing probe with"
            " kubectl describe pod job-p0-s0-i0",
        ),
        (
            "a command that ends at once",
            "agent job-p0-s0-i0 ended with exit code 0: Completed: see its log; kubectl logs"
            " job-p0-s0-i0 -c agent; if spec.worker.podTemplate has a command, it must start the"
            " agent",
        ),
        ("somebody deletes it in peace", "somebody has deleted its pod; find out who"),
        ("an end without a reason", "its status does not say why; kubectl describe pod"),
    ],
)
def test_the_cause_and_the_remedy_are_told_at_once(kind: str, text: str) -> None:
    starting = pod(phase=PodPhase.PENDING)
    seen = KINDS[kind](starting)
    assert seen is not None
    found = after(seen, memory=after(starting).memory)
    said = condition(found, ConditionType.STALLED)
    assert (said.status, said.reason) == (True, Reason.STARTS_FAIL)
    assert text in said.message
    assert "in 1 round of new pods" in said.message
    assert said.message.endswith("new pods for them come at 1970-01-01T00:16:45Z")
    (record,) = found.records
    assert record.reason is EventReason.START_FAILED
    assert text in record.message
    assert record.agents == ("job-p0-s0-i0",)
    capacity = condition(found, ConditionType.CAPACITY_AVAILABLE)
    assert "none is made for some seats before 1970-01-01T00:16:45Z" in capacity.message


def test_the_condition_ends_when_the_agents_are_there() -> None:
    cluster = Cluster(KINDS["no healthy device"])
    cluster.live(3)
    cluster.change = None
    cluster.live(10)
    found = cluster.reconcile()
    assert condition(found, ConditionType.STALLED).reason == Reason.PROGRESSING


def test_long_words_leave_room_for_the_remedy() -> None:
    beside = PodTrouble(reason="OutOfcpu", message="很" * 900)
    seen = pod(phase=PodPhase.FAILED, beside=beside)
    (record,) = after(seen).records
    assert "kubectl describe node node-a" in record.message
    assert len(record.message.encode()) <= failures.LONGEST_START_MESSAGE


# ---------------------------------------------------------------- what is not there


def waiting(**fields: object) -> PodView:
    return replace(pod(phase=PodPhase.PENDING), **fields)  # type: ignore[arg-type]


CLAIM = '0/6 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/6 nodes'


def test_a_missing_claim_is_named_and_its_pods_stay_where_they_are() -> None:
    """All zones lack it: pods that moved would be made and deleted for ever."""
    lacking = [
        waiting(node="", zone=zone, refused_at=1.0, refusal=CLAIM, slot=slot, name=name)
        for zone, slot, name in (
            ("a", Slot(0, 0), "job-p0-s0-i0"), ("b", Slot(0, 1), "job-p0-s1-i0"),
        )
    ]  # fmt: skip
    memory, now = Memory(), 1000.0
    for _ in range(60):
        view = ClusterView(nodes(a=0, b=0, c=8), tuple(lacking))
        found = step(spec(), view, TrainingView(), memory, job=JOB, now=now)
        assert found.actions == ()
        memory, now = found.memory, now + 30.0
    assert memory.dry == ()
    for kind in (ConditionType.STALLED, ConditionType.CAPACITY_AVAILABLE):
        said = condition(found, kind)
        assert said.reason == Reason.OBJECT_MISSING
        assert "PersistentVolumeClaim data in namespace ns does not exist: create" in said.message
        assert "add nodes" not in said.message
    assert condition(found, ConditionType.STALLED).status is True


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ({"schedulerName": "mine"}, "has schedulerName mine: check that such a scheduler runs"),
        ({"schedulingGates": [{"name": "a/b"}]}, "has schedulingGates a/b: somebody must remove"),
        (
            {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gone"}]},
            "has resourceClaims gone: check that they exist",
        ),
        ({"schedulerName": "default-scheduler"}, "add nodes to the pool"),
        ({}, "add nodes to the pool"),
    ],
)
def test_what_keeps_pods_from_the_scheduler_is_named(
    template: dict[str, object], text: str
) -> None:
    """It was "no answer yet; add nodes to the pool", where nodes were free."""
    worker = WorkerSpec("agent:1", pod_template={"spec": template})
    placed, silent = pod(0, 1, zone="b"), waiting(node="", zone="a", created_at=60.0)
    view = ClusterView(nodes(a=8, b=8), (silent, placed))
    found = step(spec(worker=worker), view, TrainingView(), Memory(), job=JOB, now=61.0)
    said = condition(found, ConditionType.CAPACITY_AVAILABLE).message
    assert "no scheduler has answered since 1970-01-01T00:01:00Z; " in said
    assert text in said
    assert ("add nodes" in said) == (text == "add nodes to the pool")
    refused = replace(silent, refused_at=60.0, refusal="0/2 nodes are available")
    view = ClusterView(nodes(a=8, b=8), (refused, placed))
    found = step(spec(worker=worker), view, TrainingView(), Memory(), job=JOB, now=61.0)
    assert "add nodes" in condition(found, ConditionType.CAPACITY_AVAILABLE).message


def test_a_missing_claim_asks_for_no_on_demand_nodes() -> None:
    placement = PlacementSpec(Adjacency.ALTERNATE, on_demand=OnDemandSpec(60, 1.0))
    lacking = waiting(node="", zone="a", refused_at=1.0, refusal=CLAIM)
    view = ClusterView(nodes(a=8, b=8), (lacking,))
    wanted = replace(spec(stages=1), placement=placement)
    found = step(wanted, view, TrainingView(), Memory(), job=JOB, now=1000.0)
    assert found.memory.short == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"waiting": "CreateContainerConfigError", "trouble": 'secret "token" not found'},
            "Secret token in namespace ns does not exist: create",
        ),
        (
            {
                "waiting": "CreateContainerConfigError",
                "trouble": "couldn't find key k in ConfigMap ns/settings",
            },
            "ConfigMap settings in namespace ns has no key k: create or repair it",
        ),
        (
            {
                "waiting": "PodInitializing",
                "beside": PodTrouble(
                    container="fetch",
                    state="CreateContainerConfigError",
                    words='configmap "settings" not found',
                ),
            },
            "ConfigMap settings in namespace ns does not exist",
        ),
    ],
)
def test_a_missing_object_of_a_container_is_named(fields: dict[str, object], text: str) -> None:
    found = after(waiting(**fields))
    said = condition(found, ConditionType.STALLED)
    assert (said.status, said.reason) == (True, Reason.OBJECT_MISSING)
    assert text in said.message
    assert not found.memory.failures.total


SAYS = 'the vault says: secret "token" not found'


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"container": "proxy", "state": "CrashLoopBackOff"}, Reason.CONTAINER_CANNOT_START),
        ({"container": "proxy", "state": "RunContainerError"}, Reason.CONTAINER_CANNOT_START),
        ({"container": "proxy", "state": "Error", "is_over": True}, Reason.CONTAINER_FAILED),
    ],
)
def test_a_program_cannot_say_that_an_object_is_missing(
    fields: dict[str, object], reason: Reason
) -> None:
    """A sidecar's log may have the same words: its pod waits for nothing, and is not to stay."""
    beside = PodTrouble(words=SAYS, **fields)  # type: ignore[arg-type]
    starting = waiting(waiting="PodInitializing", beside=beside)
    assert starting.missing is None
    said = condition(after(starting, pod(0, 1, zone="b")), ConditionType.STALLED)
    assert said.reason == reason


def test_a_registry_cannot_say_that_an_object_is_missing() -> None:
    assert waiting(waiting="ErrImagePull", trouble=SAYS).missing is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("ImagePullBackOff", Reason.IMAGE_PULL_FAILED),
        ("CrashLoopBackOff", Reason.CONTAINER_CANNOT_START),
        ("RunContainerError", Reason.CONTAINER_CANNOT_START),
    ],
)
def test_other_containers_that_cannot_start_are_named(state: str, reason: Reason) -> None:
    beside = PodTrouble(container="proxy", state=state, words="no")
    starting = waiting(waiting="PodInitializing", beside=beside)
    said = condition(after(starting, pod(0, 1, zone="b")), ConditionType.STALLED)
    assert (said.status, said.reason) == (True, reason)
    assert said.message == f"1 agent cannot start; job-p0-s0-i0: container proxy: {state}: no"


def test_a_job_that_trains_beside_a_container_that_cannot_start_is_not_stuck() -> None:
    beside = PodTrouble(container="proxy", state="ImagePullBackOff", words="no")
    both = (replace(pod(), beside=beside), pod(0, 1, zone="b"))
    agents = frozenset(seen.agent for seen in both)
    training = TrainingView(planned=True, has_state=True, epoch=1, members=agents, connected=agents)
    said = condition(after(*both, training=training), ConditionType.STALLED)
    assert (said.status, said.reason) == (False, Reason.IMAGE_PULL_FAILED)
    assert said.message == (
        "1 agent at work beside a container that cannot start; job-p0-s0-i0: container proxy:"
        " ImagePullBackOff: no"
    )


def test_what_the_volumes_of_a_pod_need_is_told_while_it_does_not_start() -> None:
    """Only the pod's events would show which of them is missing."""
    volumes = [{"name": "a", "secret": {"secretName": "s3"}}]
    worker = WorkerSpec("agent:1", pod_template={"spec": {"volumes": volumes}})
    view = ClusterView(nodes(a=8, b=8), (waiting(waiting="ContainerCreating"),))
    found = step(spec(worker=worker), view, TrainingView(), Memory(), job=JOB, now=1000.0)
    said = condition(found, ConditionType.RUNNING)
    assert said.message.endswith(
        "kubectl describe pod job-p0-s0-i0 shows the cause; their volumes need Secret s3"
    )


@pytest.mark.parametrize(
    ("beside", "late_s", "text"),
    [
        (
            PodTrouble(has_volumes=False),
            180.0,
            "its volumes are not mounted, or its network is not there, for over 3 minutes: kubectl"
            " describe pod job-p0-s0-i0 shows the cause; their volumes need Secret s3 with key",
        ),
        (
            PodTrouble(has_volumes=True),
            480.0,
            "no container has started for over 8 minutes, as while an image is pulled",
        ),
        (PodTrouble(), 480.0, "no container has started for over 8 minutes"),
        (
            PodTrouble(has_volumes=True, awaited="fetch"),
            480.0,
            "container fetch goes first, and has not let the agent start for over 8 minutes:"
            " kubectl logs job-p0-s0-i0 -c fetch",
        ),
    ],
)
def test_a_pod_that_does_not_start_is_stuck_after_a_while(
    beside: PodTrouble, late_s: float, text: str
) -> None:
    """A missing Secret of a volume raised no alert: the status of the pod says nothing of it."""
    source = {"secretName": "s3", "items": [{"key": "key", "path": "x"}]}
    template = {"spec": {"volumes": [{"name": "a", "secret": source}]}}
    wanted = spec(worker=WorkerSpec("agent:1", pod_template=template))
    starting = waiting(waiting="ContainerCreating", started_at=1000.0, beside=beside)
    other = pod(0, 1, zone="b")
    training = TrainingView(connected=frozenset({other.agent}), heard={other.agent: ""})

    def at(now: float, memory: Memory) -> Step:
        view = ClusterView(nodes(a=8, b=8), (starting, other))
        return step(wanted, view, training, memory, job=JOB, now=now)

    before = at(999.0 + late_s, Memory())
    assert condition(before, ConditionType.STALLED).reason == Reason.PROGRESSING
    assert before.wake_at == 1000.0 + late_s
    said = condition(at(1000.0 + late_s, before.memory), ConditionType.STALLED)
    assert (said.status, said.reason) == (True, Reason.CONTAINER_CANNOT_START)
    assert said.message.startswith("1 agent cannot start; job-p0-s0-i0: ")
    assert text in said.message


def test_a_container_beside_an_agent_that_has_failed_is_told() -> None:
    beside = PodTrouble(container="proxy", state="Error", words="it ended: no", is_over=True)
    both = (replace(pod(), beside=beside), pod(0, 1, zone="b"))
    text = "1 agent at work beside a container that has failed; job-p0-s0-i0: container proxy: "
    for connected in (frozenset(seen.agent for seen in both), frozenset({both[1].agent})):
        training = TrainingView(connected=connected, heard=dict.fromkeys(connected, ""))
        found = after(*both, training=training)
        said = condition(found, ConditionType.STALLED)
        assert (said.status, said.reason) == (False, Reason.CONTAINER_FAILED)
        assert said.message == f"{text}Error: it ended: no"
        assert not found.memory.failures.total
    late = waiting(name="job-p0-s1-i0", slot=Slot(0, 1), waiting="ErrImagePull", trouble="no")
    said = condition(after(both[0], late), ConditionType.STALLED)
    assert (said.status, said.reason) == (True, Reason.IMAGE_PULL_FAILED)
    assert said.message == "1 agent cannot start; job-p0-s1-i0: ErrImagePull: no"


def test_an_agent_that_runs_and_is_never_heard_is_told() -> None:
    """Its command is not that of an agent, or the network lets nothing through."""
    both = (pod(), pod(0, 1, zone="b"))
    connected = frozenset({both[1].agent})
    training = TrainingView(connected=connected, heard=dict.fromkeys(connected, ""))

    def at(now: float, memory: Memory) -> Step:
        view = ClusterView(nodes(a=8, b=8), both)
        return step(spec(), view, training, memory, job=JOB, now=now)

    first = at(1000.0, Memory())
    assert first.wake_at == 1012.0
    soon = at(1012.0, first.memory)
    assert soon.wake_at == 1060.0
    assert (condition(soon, ConditionType.STALLED).status, soon.records) == (False, ())
    assert condition(at(1059.0, first.memory), ConditionType.STALLED).status is False
    late = at(1060.0, first.memory)
    said = condition(late, ConditionType.STALLED)
    assert (said.status, said.reason) == (True, Reason.NOT_HEARD)
    assert said.message.startswith(
        "1 agent runs for over 60 s and never connected, the first: job-p0-s0-i0; kubectl logs"
    )
    heard = replace(training, heard={**training.heard, both[0].agent: ""})
    again = step(
        spec(), ClusterView(nodes(a=8, b=8), both), heard, late.memory, job=JOB, now=1070.0
    )
    assert condition(again, ConditionType.STALLED).reason == Reason.PROGRESSING


def test_an_agent_without_a_word_is_named_within_15_s() -> None:
    """It may still import its code, so nothing counts it, and the text stays as it is."""
    both = (pod(), pod(0, 1, zone="b"))

    def at(now: float, memory: Memory, training: TrainingView | None = None) -> Step:
        view, known = ClusterView(nodes(a=8, b=8), both), training or TrainingView()
        return step(spec(), view, known, memory, job=JOB, now=now)

    first = at(1000.0, Memory())
    before = condition(at(1011.0, first.memory), ConditionType.RUNNING)
    assert before.message == "0 of 2 agents connected"
    found = at(1012.0, first.memory)
    assert (found.actions, found.records) == ((), ())
    said = condition(found, ConditionType.RUNNING)
    assert said.reason == Reason.WAITING_FOR_AGENTS
    assert said.message == (
        "0 of 2 agents connected; the container of agent job-p0-s0-i0 has run for more than 12 s,"
        " and those of 1 more, and the operator has not heard it yet: at its first start it may"
        " still import its code; else check the command and args in spec.worker.podTemplate,"
        " network policies between it and the operator, and kubectl logs job-p0-s0-i0 -c agent"
    )
    assert condition(at(1059.0, first.memory), ConditionType.RUNNING).message == said.message
    members = frozenset({both[0].agent})
    heard = {both[0].agent: ""}
    trains = TrainingView(
        planned=True,
        has_state=True,
        members=members,
        connected=members,
        heard=heard,
        copies=(2,),
        pipelines=1,
    )
    grows = condition(at(1012.0, first.memory, trains), ConditionType.DEGRADED)
    assert grows.reason == Reason.FEWER_AGENTS
    assert grows.message.startswith("1 agent instead of 2; the container of agent job-p0-s1-i0 has")


def test_no_due_time_is_past() -> None:
    seat = frozenset({(0, 0)})
    starts = FailedStarts(2, 1010.0, seat, 1, "text", first=0)
    view = ClusterView(nodes(a=8, b=8), (pod(0, 1, zone="b"),))

    def told(now: float) -> str:
        memory = Memory(failures=Failures(starts=starts))
        found = step(spec(), view, TrainingView(), memory, job=JOB, now=now)
        return condition(found, ConditionType.STALLED).message

    assert told(1000.0).endswith("; new pods for them come at 1970-01-01T00:16:50Z")
    assert told(1010.0).endswith("; new pods for them are due now")
