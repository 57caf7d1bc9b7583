"""How long a worker has for its report: what runs when the STOP comes may end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.core.protocol.supervised import FIRST, SECOND, attend, kills, planned, report, sent

from bamboo_core.protocol import supervisor as m
from bamboo_core.protocol.messages import Activity, ActivityKind, Heartbeat, Stop

FORWARD = "F[0:2] m1 @2"
STOPPED_S = 10.0


def doing(
    kind: ActivityKind, limit_s: float, word: int = 7, longest_s: float = 0.5
) -> m.Progressed:
    return m.Progressed(word, 2, longest_s, kind, limit_s, FORWARD)


def stopped(*found: m.Progressed) -> m.Supervisor:
    """The worker has done this since 0 s when the STOP comes."""
    supervisor = planned(FIRST)
    for progressed in found:
        supervisor.handle(progressed, 0.0)
    attend(supervisor, 0.0, STOPPED_S)
    assert supervisor.handle(m.FromOperator(Stop(SECOND)), STOPPED_S) == [m.ToWorker(Stop(SECOND))]
    return supervisor


def killed_at(supervisor: m.Supervisor, start_s: float, end_s: float) -> float | None:
    """When the worker is killed, to 0.1 s; None: not until the end."""
    count = round((end_s - start_s) * 10)
    times = [start_s + i / 10 for i in range(count + 1)]
    for before, after in pairwise(times):
        if kills(attend(supervisor, before, after)):
            return round(after, 1)
    return None


@pytest.mark.parametrize("kind", [ActivityKind.RUNNING, ActivityKind.LOADING])
def test_an_instruction_that_runs_may_take_what_is_left_of_its_limit(kind: ActivityKind) -> None:
    supervisor = stopped(doing(kind, 300.0))
    assert killed_at(supervisor, STOPPED_S, 310.0) == pytest.approx(300.0, abs=0.11)


def test_a_report_ends_the_deadline_of_a_long_instruction() -> None:
    supervisor = stopped(doing(ActivityKind.RUNNING, 300.0))
    attend(supervisor, STOPPED_S, 20.0)
    assert sent(supervisor.handle(m.FromWorker(report(SECOND)), 20.0)) == [report(SECOND)]
    assert killed_at(supervisor, 20.0, 320.0) is None


@pytest.mark.parametrize(
    "found",
    [
        doing(ActivityKind.RUNNING, 9.0),  # overdue
        doing(ActivityKind.LOADING, 0.0),  # waits for storage, and the STOP abandons it
        doing(ActivityKind.WAITING, 0.0),
        doing(ActivityKind.IDLE, 0.0),
        doing(ActivityKind.WAITING, 300.0),
    ],
    ids=lambda found: f"{found.kind}-{found.limit_s:g}",
)
def test_nothing_else_is_given_longer(found: m.Progressed) -> None:
    supervisor = stopped(found)
    assert killed_at(supervisor, STOPPED_S, 20.0) == pytest.approx(12.0, abs=0.11)


def test_a_short_rest_of_a_limit_shortens_nothing() -> None:
    supervisor = stopped(doing(ActivityKind.RUNNING, 10.5))
    assert killed_at(supervisor, STOPPED_S, 20.0) == pytest.approx(12.0, abs=0.11)


def test_three_times_the_longest_instruction_count_if_that_is_more() -> None:
    supervisor = stopped(doing(ActivityKind.RUNNING, 12.0, longest_s=1.0))
    assert killed_at(supervisor, STOPPED_S, 20.0) == pytest.approx(13.0, abs=0.11)


def test_an_instruction_that_reads_data_after_the_stop_has_the_limit_of_reading() -> None:
    supervisor = stopped(doing(ActivityKind.RUNNING, 30.0))
    supervisor.handle(doing(ActivityKind.LOADING, 300.0), STOPPED_S)
    assert killed_at(supervisor, STOPPED_S, 320.0) == pytest.approx(310.0, abs=0.11)


def test_a_worker_whose_instruction_has_ended_without_a_report_is_killed() -> None:
    supervisor = stopped(doing(ActivityKind.RUNNING, 300.0))
    assert killed_at(supervisor, STOPPED_S, 20.0) is None
    supervisor.handle(doing(ActivityKind.IDLE, 0.0, word=8), 20.0)
    assert killed_at(supervisor, 20.0, 21.0) == pytest.approx(20.1)


def test_heartbeats_go_on_telling_what_runs_after_the_stop() -> None:
    """So the operator knows for how long it must wait."""
    supervisor = stopped(doing(ActivityKind.RUNNING, 300.0))
    beats = [x for x in sent(attend(supervisor, STOPPED_S, 20.0)) if isinstance(x, Heartbeat)]
    assert {beat.fence for beat in beats} == {SECOND}
    told = [beat.activity for beat in beats]
    first, last = told[0], told[-1]
    assert first is not None
    assert last is not None
    assert replace(last, age_s=0.0) == Activity(ActivityKind.RUNNING, 0.0, 300.0, FORWARD)
    assert first.age_s == pytest.approx(STOPPED_S, abs=0.3)
    assert last.age_s == pytest.approx(20.0, abs=0.3)
