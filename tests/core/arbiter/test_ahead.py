"""Agents report what they have in host memory since their start; the job's figures are sums."""

from __future__ import annotations

from bamboo_core.api.progress import Ahead, Hosted
from bamboo_core.arbiter.state import Ledger
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import CommitRecord, Progress

A, B = AgentId("a"), AgentId("b")


def test_a_report_that_is_repeated_or_missed_changes_no_sum() -> None:
    ledger = Ledger(9)
    first, second = Ahead(3, 1, 100, 200, 0.5), Ahead(7, 1, 90, 250, 0.75)
    said = [(A, 0, first), (A, 0, first), (B, 0, Ahead(2)), (A, 4, second), (A, 4, second)]
    for agent, step, ahead in said:
        ledger.learn(agent, Progress(CommitRecord(step), Fence(), ahead=ahead), 0.0)
    assert ledger.progress.ahead == Ahead(9, 1, 100, 250, 0.75)


def test_a_restore_keeps_the_sums() -> None:
    ledger = Ledger(9)
    ledger.learn(A, Progress(CommitRecord(0), Fence(), ahead=Ahead(3)), 0.0)
    ledger.forget_commit()
    assert ledger.progress.ahead == Ahead(3)


def test_figures_of_replicas_in_host_memory_are_sums_and_peaks() -> None:
    ledger = Ledger(9)
    first, second = Hosted(100, 5, 200, 0.5), Hosted(100, 20, 300, 0.75)
    said = [(A, 0, first), (A, 0, first), (B, 0, Hosted(80, 10, 10, 0.25)), (A, 4, second)]
    for agent, step, hosted in said:
        ledger.learn(agent, Progress(CommitRecord(step), Fence(), hosted=hosted), 0.0)
    assert ledger.progress.hosted == Hosted(100, 20, 310, 1.0)
