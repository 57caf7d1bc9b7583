"""What a soaked job does, compared with the reference as it comes in."""

from __future__ import annotations

import time
from collections import Counter
from math import inf

from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints
from bamboo_core.arbiter_state.events import ArbiterPhase, ArbiterStatus
from bamboo_core.placement.plan import Plan
from bamboo_core.protocol.messages import Progress
from bamboo_sim.fleet.local_fleet import LocalFleet
from bamboo_sim.fleet.logs.state_log import EVERY, LayerState, StateLogs, digest_of
from bamboo_sim.soak import losses
from bamboo_sim.soak.losses import Holders
from bamboo_sim.soak.reference import LAYERS, Reference

VOTER_RULE = "no voter"
"""Begins the detail of a job that waits for a voter."""
QUIET_S = 40.0
"""A job that commits nothing for so long must have said why."""


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
        self._repeated = Counter[int]()
        self.attempt = 0
        """The newest attempt that an agent or the arbiter has told."""
        self.unexplained = 0
        """Times of more than QUIET_S without a commit, in which the job has not said why."""
        self._plans: list[Plan] = []
        self._committed: dict[int, int] = {}
        self._said_at = self._told_at = -inf
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
        if status is not None:
            self._learn(status)
        self._listen(status, now)
        if self._is_waiting_for_voters(status):
            self.voter_wait_s += now - self._looked_at
        self._looked_at = now

    def read_states(self) -> None:
        """Compare all states that have been logged since."""
        for state in self._logs.read():
            self._seen.setdefault(state.step, set()).add(state.layer)
            if text := self._reference.state_differs(state):
                self.differences.append(text)

    def read_checkpoint(self) -> None:
        """Compare the job's last checkpoint, which must be complete."""
        spec = self._fleet.spec
        assert spec.checkpoint is not None
        checkpoints = Checkpoints(spec.checkpoint.uri, self._fleet.operator.job.uid)
        steps = spec.training.steps
        try:
            found = max(checkpoints.scan().good, key=lambda m: (m.step, m.attempt), default=None)
            if found is None or found.step != steps:
                self.differences.append(f"{found} is not the checkpoint of step {steps}")
                return
            for layer, record in enumerate(checkpoints.read_layers(found, range(LAYERS))):
                state = LayerState(steps - 1, layer, digest_of(record))
                if text := self._reference.state_differs(state):
                    self.differences.append(f"{found.path}: {text}")
        except CheckpointError as error:
            self.differences.append(str(error))

    def repeated_after(self, attempt: int) -> int:
        """How many steps later attempts have committed that had been committed before."""
        return sum(times for number, times in self._repeated.items() if number > attempt)

    def holders(self) -> Holders:
        """The agents that hold each layer for certain at this moment."""
        self.look()
        return losses.holders(self._plans, self._committed)

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
        attempt = progress.fence.attempt
        key = (attempt, commit.step)
        if key not in self._steps:
            self._repeated[attempt] += any(step == commit.step for _, step in self._steps)
            self._steps.add(key)
            self.commits.append(at)
        self.attempt = max(self.attempt, attempt)
        self._committed[attempt] = max(self._committed.get(attempt, -1), commit.step)

    def _learn(self, status: ArbiterStatus) -> None:
        """Take in the newest plan."""
        self.attempt = max(self.attempt, status.fence.attempt)
        if status.plan is not None and status.plan not in self._plans[-1:]:
            self._plans.append(status.plan)

    def _listen(self, status: ArbiterStatus | None, now: float) -> None:
        """Note whether the job says why it does not go on, and count when it has not for long."""
        if status is not None and _says_why(status):
            self._said_at = now
        since = self.commits[-1]
        if now - since > QUIET_S and max(self._said_at, self._told_at) < since:
            self.unexplained += 1
            self._told_at = now

    @staticmethod
    def _is_waiting_for_voters(status: ArbiterStatus | None) -> bool:
        return (
            status is not None
            and status.phase is ArbiterPhase.HOLDING
            and status.detail.startswith(VOTER_RULE)
        )


def _says_why(status: ArbiterStatus) -> bool:
    """Whether the status tells what the job waits for, or that it has ended."""
    words = (status.stall, status.unreachable, status.unwritten, status.outcome)
    waits = status.phase in (ArbiterPhase.WAITING, ArbiterPhase.HOLDING)
    return any(words) or (waits and status.detail != "")
