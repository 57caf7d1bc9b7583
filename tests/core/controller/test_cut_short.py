"""Agents that were heard, and end soon, though nobody has told them to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import TrainingProgress, Unwritten
from bamboo_core.api.reasons import ConditionType, FailureCause, Reason
from bamboo_core.api.spec import WorkerSpec
from bamboo_core.controller import ends
from bamboo_core.controller.ends import NODE_STAYS_S, PROVEN_S, WARNED_NODE_STAYS_S
from bamboo_core.controller.failures import FailedStarts, Failures
from bamboo_core.controller.reconcile import CreatePod, Step, step
from bamboo_core.controller.view import (
    ClusterView,
    Memory,
    NodeView,
    PodPhase,
    PodView,
    Slot,
    TrainingView,
)
from bamboo_core.evidence.pod_troubles import PodTrouble
from bamboo_core.model.ids import AgentId

from .builders import JOB, nodes, pod, spec
from .failing_starts import Change, Cluster, after, condition, exited

SEATS = 2
NOW = 1000.0


@dataclass
class Living(Cluster):
    """Agents are heard after some seconds, live for a while, and then end."""

    starts_s: float = 10.0
    lives_s: float = 20.0
    ends: set[str] = field(default_factory=set)

    def _go_on(self) -> None:
        for name, seen in list(self.pods.items()):
            age = self.now - seen.created_at
            if not seen.is_alive or age < self.starts_s:
                continue
            if self.change is None or age < self.starts_s + self.lives_s:
                self._hear(seen)
                continue
            ended = self.change(replace(seen, started_at=seen.created_at))
            assert ended is not None
            self.pods[name] = replace(ended, ended_at=self.now)
            known, lost = self.training, frozenset({seen.agent})
            self.training = replace(
                known, epoch=3, connected=known.connected - lost, members=known.members - lost
            )


@pytest.mark.parametrize("lives_s", [1.0, 20.0, 55.0])
@pytest.mark.parametrize("code", [0, 3, 137, 143])
def test_agents_that_are_ended_again_and_again_come_more_and_more_slowly(
    code: int, lives_s: float
) -> None:
    """A liveness probe, and a command that ends before the agent does."""
    cluster = Living(exited(code), lives_s=lives_s)
    cluster.live(600)
    assert SEATS < cluster.made <= 6 * SEATS
    last = condition(cluster.reconcile(), ConditionType.STALLED)
    assert (last.status, last.reason) == (True, Reason.STARTS_FAIL)
    assert f"exit code {code}" in last.message
    cause = FailureCause.AGENT_FAILED if code == 0 else FailureCause.START_FAILED
    assert dict(cluster.memory.failures.counts) == {cause: cluster.memory.failures.total}
    assert bool(cluster.memory.failures.unforgiven) == (code == 0)


def test_a_new_operator_goes_on_with_the_pause() -> None:
    cluster = Living(exited(137))
    cluster.live_with_new_operators(600)
    assert cluster.made <= 6 * SEATS


def test_agents_that_live_on_end_the_count() -> None:
    cluster = Living(exited(143))
    cluster.live(600)
    cluster.change = None
    cluster.live(300 + 15)
    assert cluster.heard == SEATS
    assert cluster.memory.failures.starts.rounds > 1, "only time proves them"
    cluster.live(int(PROVEN_S))
    assert cluster.memory.failures.starts == FailedStarts()
    assert not condition(cluster.reconcile(), ConditionType.STALLED).status


def committing(cluster: Living, steps: int) -> None:
    progress = TrainingProgress(cluster.training.progress.committed + steps)
    cluster.training = replace(cluster.training, progress=progress)


def test_stalled_ends_once_all_agents_have_committed_a_step_after_the_mend() -> None:
    """The count goes on, since they may still be killed."""
    cluster = Living(exited(143))
    cluster.live(400)
    rounds = cluster.memory.failures.starts.rounds
    cluster.change = None
    while cluster.heard < SEATS:
        cluster.live(1)
    assert condition(cluster.reconcile(), ConditionType.STALLED).reason == Reason.STARTS_FAIL
    committing(cluster, 1)
    assert condition(cluster.reconcile(), ConditionType.STALLED).reason == Reason.PROGRESSING
    assert cluster.memory.failures.starts.rounds == rounds
    lost = next(x for x in cluster.pods.values() if x.is_alive)
    cluster.training = replace(
        cluster.training, connected=cluster.training.connected - {lost.agent}
    )
    said = condition(cluster.reconcile(), ConditionType.STALLED)
    assert said.reason == Reason.STARTS_FAIL, "an agent is missing"


def test_a_restore_does_not_hide_that_a_step_was_committed_after_the_mend() -> None:
    starts = FailedStarts(3, 0.0, frozenset({(0, 0)}), 4, "no", were_heard=True, step=90)
    memory = Memory(incarnation=5, failures=Failures(starts=starts))
    both = (pod(0, 0, 5, created_at=NOW - 9.0), pod(0, 1, 1, zone="b"))
    agents = frozenset(x.agent for x in both)
    training = TrainingView(
        epoch=3, planned=True, has_state=True, members=agents, connected=agents,
        heard=dict.fromkeys(agents, ""), progress=TrainingProgress(49),
    )  # fmt: skip
    first = after(*both, training=training, memory=memory)
    assert condition(first, ConditionType.STALLED).reason == Reason.STARTS_FAIL
    later = replace(training, progress=TrainingProgress(50))
    found = after(*both, training=later, memory=first.memory)
    assert condition(found, ConditionType.STALLED).reason == Reason.PROGRESSING


def test_another_template_ends_the_count_although_no_suspension_was_seen() -> None:
    cluster = Living(exited(143))
    cluster.live(400)
    cluster.change = None
    cluster.wanted = replace(cluster.wanted, worker=WorkerSpec("agent:2"))
    found = cluster.reconcile()
    assert cluster.memory.failures.starts == FailedStarts()
    assert condition(found, ConditionType.STALLED).reason == Reason.PROGRESSING


# ---------------------------------------------------------------- one end


def one(change: Change, *, ended_s: float, ran_s: float = 30.0, **fields: object) -> PodView:
    """A pod that ended so long ago."""
    found = change(pod(started_at=NOW - ended_s - ran_s, ended_at=NOW - ended_s))
    assert found is not None
    return replace(found, **fields)  # type: ignore[arg-type]


def heard(seen: PodView, **fields: object) -> TrainingView:
    """The operator has heard its agent itself."""
    found = TrainingView(epoch=3, heard={seen.agent: "machine-a"})
    return replace(found, **fields)  # type: ignore[arg-type]


def made(found: Step) -> bool:
    return any(isinstance(x, CreatePod) and x.slot == (0, 0) for x in found.actions)


@pytest.mark.parametrize("code", [3, 137, 143])
def test_the_first_end_is_replaced_at_once_and_judged_once_its_node_has_stayed(code: int) -> None:
    soon = one(exited(code), ended_s=1.0)
    first = after(soon, pod(0, 1, zone="b"), training=heard(soon))
    assert made(first)
    assert first.memory.failures == Failures()
    late = one(exited(code), ended_s=NODE_STAYS_S)
    found = after(late, training=heard(late)).memory.failures
    assert (found.starts.rounds, found.unforgiven) == (1, 0)
    assert "while its node stayed" in found.message
    assert first.wake_at is not None
    assert first.wake_at <= NOW + NODE_STAYS_S


def test_an_exit_with_code_0_is_judged_at_once() -> None:
    """No node and no cloud ends an agent so."""
    soon = one(exited(0), ended_s=1.0)
    assert after(soon, training=heard(soon)).memory.failures.starts.rounds == 1


@pytest.mark.parametrize("code", [0, 3, 137, 143])
def test_an_agent_of_a_suspended_job_has_not_failed(code: int) -> None:
    """The operator asks all agents to end."""
    late = one(exited(code), ended_s=NODE_STAYS_S)
    view, suspended = ClusterView(nodes(a=8, b=8), (late,)), spec(suspend=True)
    found = step(suspended, view, heard(late), Memory(), job=JOB, now=NOW)
    assert found.memory.failures == Failures()


def test_one_kill_is_not_told_as_a_start_that_fails() -> None:
    late = one(exited(137), ended_s=NODE_STAYS_S)
    found = after(late, training=heard(late))
    assert condition(found, ConditionType.STALLED).reason != Reason.STARTS_FAIL


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("outcome", [None, Outcome.COMPLETE, Outcome.SUSPENDED])
def test_a_new_leader_counts_no_agent_that_was_let_go(outcome: Outcome | None, code: int) -> None:
    """It has not heard the agents of a job that is suspended or has ended."""
    late = one(exited(code), ended_s=NODE_STAYS_S)
    view, wanted = ClusterView(nodes(a=8, b=8), (late,)), spec(suspend=outcome is None)
    training = TrainingView(epoch=3, outcome=outcome)
    found = step(wanted, view, training, Memory(), job=JOB, now=NOW)
    assert found.memory.failures == Failures()
    crashed = ClusterView(nodes(a=8, b=8), (one(exited(1), ended_s=NODE_STAYS_S),))
    found = step(wanted, crashed, training, Memory(), job=JOB, now=NOW)
    assert found.memory.failures.starts.rounds == 1


@pytest.mark.parametrize("code", [3, 137, 143])
def test_a_first_end_is_named_while_the_job_does_not_train(code: int) -> None:
    """Its seat has a new pod by then."""
    ended = one(exited(code), ended_s=1.0)
    new = replace(pod(), name=ended.name[:-1] + "1", uid="uid-new", incarnation=1)
    running = condition(after(ended, new, training=heard(ended)), ConditionType.RUNNING)
    assert running.status is False
    text = f"container agent of {ended.name} has ended 30 s after its start with exit code {code}"
    assert text in running.message
    late = replace(ended, ended_at=1000.0 - NODE_STAYS_S)
    running = condition(after(late, new, training=heard(late)), ConditionType.RUNNING)
    assert "after its start" not in running.message, "Stalled tells it once it counts"


def test_a_second_end_of_a_seat_waits_until_it_is_judged() -> None:
    before = one(exited(137), ended_s=50.0)
    again = one(exited(137), ended_s=1.0)
    again = replace(again, name=again.name[:-1] + "1", uid="uid-again", incarnation=1)
    training = replace(heard(before), heard={before.agent: "machine-a", again.agent: "machine-a"})
    assert not made(after(before, again, training=training))
    gone = tuple(node for node in nodes(a=8, b=8) if node.name != "node-a")
    assert made(after(before, again, training=training, there=gone))


@pytest.mark.parametrize(
    ("ran_s", "there", "is_made"),
    [
        (30.0, None, False),
        (PROVEN_S, None, True),  # late kills are losses
        (30.0, {"machine": "another boot"}, True),
        (30.0, {"departing": True}, True),
    ],
)
def test_what_lets_a_second_end_not_wait(
    ran_s: float, there: dict[str, object] | None, is_made: bool
) -> None:
    before = one(exited(137), ended_s=50.0, ran_s=ran_s)
    again = one(exited(137), ended_s=1.0, ran_s=ran_s)
    again = replace(again, name=again.name[:-1] + "1", uid="uid-again", incarnation=1)
    training = replace(heard(before), heard={before.agent: "machine-a", again.agent: "machine-a"})
    seen = nodes(a=8, b=8) if there is None else changed(**there)
    assert made(after(before, again, training=training, there=seen)) == is_made


def changed(**fields: object) -> tuple[NodeView, ...]:
    first, *others = nodes(a=8, b=8)
    return (replace(first, **fields), *others)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 3, 137, 143])
@pytest.mark.parametrize(
    "there",
    [
        nodes(b=8),
        changed(ready=False),
        changed(departing=True),
        changed(machine="another boot"),
    ],
)
def test_an_agent_whose_node_goes_has_not_failed(code: int, there: tuple[NodeView, ...]) -> None:
    late = one(exited(code), ended_s=NODE_STAYS_S)
    assert after(late, training=heard(late), there=there).memory.failures == Failures()


@pytest.mark.parametrize("code", [0, 3, 137, 143])
@pytest.mark.parametrize(
    "order",
    [
        {"dismissed": True},
        {"slow": True},
        {"unwritten": Unwritten(9, "why", 1.0)},
        {"outcome": Outcome.SUSPENDED},
        {"heard": {AgentId("job-p0-s0-i0"): ""}},  # by an earlier operator, which may have ordered
    ],
)
def test_an_agent_that_was_told_to_go_has_not_failed(code: int, order: dict[str, object]) -> None:
    late = one(exited(code), ended_s=NODE_STAYS_S)
    fields = {key: frozenset({late.agent}) if x is True else x for key, x in order.items()}
    assert after(late, training=heard(late, **fields)).memory.failures == Failures()


@pytest.mark.parametrize("code", [0, 3, 137, 143])
@pytest.mark.parametrize(
    "fields", [{"deleting_at": 1010.0}, {"beside": PodTrouble(is_disrupted=True)}]
)
def test_an_agent_whose_pod_is_taken_away_has_not_failed(
    code: int, fields: dict[str, object]
) -> None:
    late = one(exited(code), ended_s=NODE_STAYS_S, **fields)
    assert after(late, training=heard(late)).memory.failures == Failures()


def test_an_agent_that_a_signal_has_ended_has_no_order() -> None:
    """It hands over and is dismissed, but nobody has said why."""
    late = one(exited(143), ended_s=NODE_STAYS_S)
    gone = frozenset({late.agent})
    training = heard(late, departing=gone, dismissed=gone)
    assert after(late, training=training).memory.failures.starts.rounds == 1


@pytest.mark.parametrize("code", [3, 137, 143])
@pytest.mark.parametrize("lets_go", [True, False])
def test_an_agent_that_was_told_of_its_nodes_end_is_judged_once_its_node_has_stayed_longer(
    code: int, *, lets_go: bool
) -> None:
    """Amazon tells 120 s before. The word of the agent alone is no order."""
    soon = one(exited(code), ended_s=WARNED_NODE_STAYS_S - 1.0)
    gone = frozenset({soon.agent})
    training = heard(soon, departing=gone, warned=gone, dismissed=gone if lets_go else frozenset())
    first = after(soon, training=training)
    assert made(first)
    assert first.memory.failures == Failures()
    assert first.wake_at == NOW + 1.0
    late = one(exited(code), ended_s=WARNED_NODE_STAYS_S)
    assert after(late, training=training).memory.failures.starts.rounds == 1
    for there in (nodes(b=8), changed(ready=False), changed(departing=True)):
        assert after(late, training=training, there=there).memory.failures == Failures()


def test_three_notices_of_a_seat_are_replaced_at_once_and_the_fourth_waits() -> None:
    """Spot nodes may go one after the other, and each of them stays for a while."""
    ends = [one(exited(143), ended_s=170.0 - 20 * n, ran_s=10.0) for n in range(4)]
    ends = [replace(x, name=f"job-p0-s0-i{n}", incarnation=n) for n, x in enumerate(ends)]
    for number in range(1, 5):
        told = frozenset(x.agent for x in ends[:number])
        training = heard(ends[0], departing=told, warned=told)
        training = replace(training, heard=dict.fromkeys(told, "machine-a"))
        assert made(after(*ends[:number], training=training)) == (number < 4)


@pytest.mark.parametrize("is_warned", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_the_next_end_of_a_seat_whose_start_has_failed_waits(
    has_ended: bool, is_warned: bool
) -> None:
    """Also that of an agent that says that it leaves, and is still there."""
    starts = FailedStarts(1, NOW - 1.0, frozenset({(0, 0)}), 0, "no", were_heard=True)
    memory = Memory(incarnation=5, failures=Failures(starts=starts))
    seen = one(exited(143), ended_s=1.0)
    if not has_ended:
        seen = replace(seen, phase=PodPhase.RUNNING, exit_code=None, exit_reason="", ended_at=None)
    told = frozenset({seen.agent})
    training = heard(seen, departing=told, warned=told if is_warned else frozenset())
    assert not made(after(seen, training=training, memory=memory))
    assert made(after(seen, training=training, memory=Memory(incarnation=5)))


@pytest.mark.parametrize("code", [0, 3, 137, 143])
def test_an_agent_that_leaves_in_order_does_not_excuse_another_one_on_its_node(code: int) -> None:
    left = one(exited(143), ended_s=NODE_STAYS_S)
    other = one(exited(code), ended_s=NODE_STAYS_S, name="job-p1-s0-i0", slot=Slot(1, 0))
    both = {left.agent: "machine-a", other.agent: "machine-a"}
    gone = frozenset({left.agent})
    training = heard(left, heard=both, departing=gone, warned=gone, dismissed=gone)
    found = after(left, other, training=training).memory.failures
    assert (found.total, found.starts.slots) == (1, {(1, 0)})
    staying = replace(left, phase=PodPhase.RUNNING, exit_code=None, ended_at=None)
    found = after(staying, other, training=training).memory.failures
    assert (found.total, found.starts.slots) == (1, {(1, 0)})


@pytest.mark.parametrize(("code", "total"), [(0, 1), (3, 0), (137, 0), (143, 0)])
def test_late_ends_pause_no_seat(code: int, total: int) -> None:
    """Nobody knows better than that a kill was a loss. Without an order, 0 is a failure."""
    late = one(exited(code), ended_s=NODE_STAYS_S, ran_s=PROVEN_S)
    found = after(late, training=heard(late)).memory.failures
    assert (found.total, found.unforgiven, found.starts.rounds) == (total, total, 0)


# ---------------------------------------------------------------- exit code 2, and room


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("python: can't open file 'train.py'", FailureCause.START_FAILED),
        ("", FailureCause.START_FAILED),
        ("bamboo-agent: BAMBOO_JOB is not set", FailureCause.USER_CODE_FAILED),
        ("UserCodeFailed: no module named x", FailureCause.USER_CODE_FAILED),
    ],
)
def test_exit_code_2_of_another_program_is_no_error_of_the_users_code(
    said: str, cause: FailureCause
) -> None:
    one_, other = (
        replace(exited(2)(seen) or seen, trouble=said) for seen in (pod(), pod(0, 1, zone="b"))
    )
    found = after(one_, other)
    assert found.memory.failures.last is not None
    assert found.memory.failures.last.cause is cause
    is_users = cause is FailureCause.USER_CODE_FAILED
    assert found.memory.reason == (Reason.USER_CODE_FAILED if is_users else "")
    if not is_users:
        assert "must start the agent" in found.memory.failures.starts.message


def test_a_pod_without_a_node_lacks_room_and_not_a_start() -> None:
    starts = FailedStarts(1, NOW - 1.0, frozenset({(0, 0)}), 4, "somebody has deleted its pod")
    memory = Memory(incarnation=5, failures=Failures(starts=starts))
    waiting = pod(0, 0, 5, phase=PodPhase.PENDING, node="", created_at=NOW - 1.0)
    found = after(waiting, memory=memory)
    assert condition(found, ConditionType.STALLED).reason != Reason.STARTS_FAIL
    assert found.memory.failures.starts.rounds == 1, "the next failure is of the next round"
    early = replace(starts, until=NOW + 1.0)
    found = after(waiting, memory=Memory(incarnation=5, failures=Failures(starts=early)))
    assert condition(found, ConditionType.STALLED).reason == Reason.STARTS_FAIL


@pytest.mark.parametrize(("code", "said"), [(137, ""), (143, ""), (137, "no route"), (1, "")])
def test_an_end_without_a_word_names_who_can_tell(code: int, said: str) -> None:
    seen = replace(pod(created_at=NOW - 5.0), exit_code=code, ended_at=NOW, trouble=said)
    training = replace(TrainingView(), heard={seen.agent: "machine-a"})
    text = ends.newest(ClusterView(nodes(a=8), (seen,)), training, Memory(), now=NOW)
    hint = " (kubectl describe pod job-p0-s0-i0 shows who ended it: a probe, an eviction, a node)"
    begin = f"container agent of job-p0-s0-i0 has ended 5 s after its start with exit code {code}"
    is_killed = code != 1
    assert text == (f"{begin}{f': {said}' if said else hint}" if is_killed else "")
