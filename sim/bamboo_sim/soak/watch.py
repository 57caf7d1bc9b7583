"""What a soaked job does, compared with the reference as it comes in."""

from __future__ import annotations

import time

from bamboo_core.arbiter_state.events import ArbiterPhase, ArbiterStatus
from bamboo_core.protocol.messages import Progress
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.fleet.logs.state_log import EVERY, StateLogs
from bamboo_sim.soak.reference import LAYERS, Reference

VOTER_RULE = "no voter"
"""Begins the detail of a job that waits for a voter."""


class Watch:
    """Call :meth:`look` often."""

    def __init__(self, fleet: LocalFleet, reference: Reference) -> None:
        self.newest = -1
        """The newest step whose commit an agent has reported."""
        self.commits: list[float] = [time.monotonic()]
        """When a commit was first reported (time.monotonic())."""
        self.differences: list[str] = []
        self.voter_wait_s = 0.0
        """Time that the job waited for a voter, since it began."""
        self._fleet, self._reference = fleet, reference
        self._logs = StateLogs(fleet.folder / "states")
        self._read = 0
        self._seen: dict[int, set[int]] = {}
        self._steps: set[tuple[int, int]] = set()
        self._looked_at = time.monotonic()

    def status(self) -> ArbiterStatus | None:
        """The arbiter's status; None while there is no leader."""
        arbiter = self._fleet.operator.arbiter
        return None if arbiter is None else arbiter.status()

    def look(self) -> None:
        """Take in what is new."""
        messages = self._fleet.operator.messages
        for said in messages[self._read :]:
            if isinstance(said.message, Progress):
                self._take(said.message, said.at)
        self._read = len(messages)
        now, status = time.monotonic(), self.status()
        if self._is_waiting_for_voters(status):
            self.voter_wait_s += now - self._looked_at
        self._looked_at = now

    def read_states(self) -> None:
        """Compare all states that have been logged since."""
        for state in self._logs.read():
            self._seen.setdefault(state.step, set()).add(state.layer)
            if text := self._reference.state_differs(state):
                self.differences.append(text)

    def is_compared(self, step: int) -> bool:
        """Whether the states of all layers after ``step`` are known."""
        return len(self._seen.get(step, ())) == LAYERS

    def next_hashed(self) -> int:
        """A step soon after this moment, after which states are hashed."""
        return (self.newest // EVERY + 2) * EVERY

    def _take(self, progress: Progress, at: float) -> None:
        commit = progress.commit
        if text := self._reference.differs(commit):
            self.differences.append(text)
        self.newest = max(self.newest, commit.step)
        key = (progress.fence.attempt, commit.step)
        if key not in self._steps:
            self._steps.add(key)
            self.commits.append(at)

    @staticmethod
    def _is_waiting_for_voters(status: ArbiterStatus | None) -> bool:
        return (
            status is not None
            and status.phase is ArbiterPhase.HOLDING
            and status.detail.startswith(VOTER_RULE)
        )
