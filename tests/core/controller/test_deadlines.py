"""Deadlines count the time in which a job may have agents, and no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import RunPolicy
from bamboo_core.api.totals import TimeState
from bamboo_core.controller.reconcile import Step, step
from bamboo_core.controller.turn import Turn, Word
from bamboo_core.controller.view import ClusterView, Memory, TrainingView
from bamboo_operator.status import totals

from .builders import JOB, nodes, pod, spec

LONG = 1e6
ACTIVE, PENDING = Reason.ACTIVE_DEADLINE_EXCEEDED, Reason.PENDING_DEADLINE_EXCEEDED


@dataclass
class Life:
    """A job from step to step. Its memory goes through the status each time, as with operators that
    follow each other."""

    active_s: int = 0
    pending_s: int = 0
    now: float = 100.0
    memory: Memory = Memory()  # noqa: RUF009 - frozen
    wake_at: float | None = None

    def see(
        self, *, word: Word | None = None, suspend: bool = False, trains: bool = False
    ) -> Memory:
        """One step now, in this state."""
        policy = RunPolicy(active_deadline_s=self.active_s, pending_deadline_s=self.pending_s)
        pods = (pod(0, 0), pod(0, 1)) if trains else ()
        members = frozenset(each.agent for each in pods)
        training = TrainingView(
            planned=trains, has_state=trains, epoch=int(trains), members=members
        )
        done: Step = step(
            spec(run_policy=policy, suspend=suspend),
            ClusterView(nodes(a=1, b=1), pods),
            training,
            self.memory,
            job=JOB,
            now=self.now,
            turn=None if word is None else Turn(word, minimum=2),
        )
        self.memory, self.wake_at = done.memory, done.wake_at
        return done.memory

    def after(self, seconds: float) -> Life:
        """Time passes."""
        self.now += seconds
        return self


def test_a_job_that_waits_in_the_line_for_days_does_not_fail() -> None:
    """R20: it failed with "the job has run for" although it never had a pod."""
    life = Life(active_s=600, pending_s=600)
    for _ in range(10):
        assert life.see(word=Word.WAITS).terminal is None
        assert life.wake_at is None or life.wake_at < life.now + 600
        life.after(86_400)
    assert life.see(word=Word.STARTS).terminal is None
    assert life.after(599).see(word=Word.STARTS, trains=True).terminal is None
    assert life.after(1).see(word=Word.GROWS, trains=True).reason == ACTIVE


def test_a_job_behind_one_that_is_about_to_start_does_not_fail() -> None:
    """It is the next to ask for nodes. It failed with "the job has run for" without a pod."""
    life = Life(active_s=20, pending_s=20)
    for _ in range(5):
        assert life.see(word=Word.KEEPS).terminal is None
        life.after(20)
    life.see(word=Word.ASKS)
    assert life.after(20).see(word=Word.ASKS).reason == ACTIVE


def test_a_job_that_asks_for_nodes_may_start_so_its_time_counts() -> None:
    life = Life(pending_s=600)
    life.see(word=Word.ASKS)
    assert life.after(599).see(word=Word.ASKS).terminal is None
    assert life.wake_at == 700.0
    assert life.after(1).see(word=Word.ASKS).reason == PENDING


def test_the_pending_time_adds_up_over_the_turns_of_a_job() -> None:
    """A job that asks, stands aside and asks again would never fail otherwise."""
    life = Life(pending_s=600)
    for _ in range(5):
        assert life.see(word=Word.ASKS).terminal is None
        assert life.after(100).see(word=Word.WAITS).terminal is None
        life.after(1800)
    life.see(word=Word.ASKS)
    assert life.after(100).see(word=Word.ASKS).reason == PENDING


def test_a_suspension_stops_the_active_time_and_begins_the_pending_time_anew() -> None:
    life = Life(active_s=1000, pending_s=600)
    life.see()
    life.after(500).see(suspend=True)
    assert life.after(LONG).see(suspend=True).terminal is None
    life.see()
    assert life.after(499).see().terminal is None
    assert life.after(1).see().reason == ACTIVE
    life = Life(pending_s=600)
    life.see()
    life.after(500).see(suspend=True)
    life.after(LONG).see()
    assert life.after(599).see().terminal is None
    assert life.after(1).see().reason == PENDING


def test_a_suspension_that_comes_with_the_deadline_wins() -> None:
    life = Life(active_s=10)
    life.see()
    assert life.after(10).see(suspend=True).terminal is None


def test_a_job_that_has_trained_has_no_pending_time() -> None:
    life = Life(pending_s=10)
    life.see()
    life.after(9).see(trains=True)
    assert life.after(LONG).see().terminal is None
    life.see(suspend=True)
    life.after(LONG).see()
    assert life.after(10).see().reason == PENDING


STATES = st.sampled_from(
    [
        {"word": Word.WAITS},
        {"word": Word.WAITS, "trains": True},
        {"word": Word.STARTS},
        {"word": Word.ASKS},
        {"word": Word.KEEPS, "trains": True},
        {"word": Word.KEEPS},
        {"word": Word.GROWS, "trains": True},
        {"trains": True},
        {},
        {"suspend": True},
        {"suspend": True, "trains": True},
        {"suspend": True, "word": Word.WAITS},
    ]
)


def is_counted(state: dict[str, object]) -> bool:
    """A job that may have only what it is assured of, which is nothing, waits without pods."""
    is_kept_out = state.get("word") is Word.KEEPS and not state.get("trains")
    return not (state.get("suspend") or state.get("word") is Word.WAITS or is_kept_out)


@given(
    st.lists(st.tuples(STATES, st.integers(0, 1000)), min_size=1, max_size=12),
    st.integers(1, 4000),
    st.booleans(),
)
def test_the_active_time_is_that_in_which_the_job_is_neither_suspended_nor_barred(
    life: list[tuple[dict[str, Any], int]], limit: int, is_restarted: bool
) -> None:
    """Whatever follows what, and whoever leads it. The deadline ends the job exactly then."""
    job, counted = Life(active_s=limit), 0
    for state, seconds in life:
        job.see(**state)
        is_over = counted >= limit and not state.get("suspend")
        assert (job.memory.reason == ACTIVE) is is_over
        assert (job.memory.terminal is Outcome.FAILED) is is_over
        if is_over:
            return
        if is_counted(state):
            assert job.wake_at is not None
            assert job.wake_at <= job.now + limit - counted
            counted += seconds
        job.after(seconds)
        assert job.memory.times.active_s(job.now) == counted
        if is_restarted:
            written = {"times": totals.write_times(job.memory.times)}
            job.memory = Memory(times=totals.read_times(written))


def test_time_in_the_line_is_told_apart() -> None:
    life = Life()
    assert life.see(word=Word.WAITS).times.state is TimeState.WAITING_IN_LINE
    assert life.after(7).see(word=Word.STARTS).times.seconds == {"WaitingInLine": 7.0}
    assert life.after(1).see(suspend=True, word=None).times.state is TimeState.SUSPENDED
