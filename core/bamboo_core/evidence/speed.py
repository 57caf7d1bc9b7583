"""How fast each agent computes, relative to the others.

Every member tells the computing time of each step. What its program should take, by the measured
costs, over what it took is a rate; the rate over the median of all members is the agent's speed.
A rate is the median of several steps, and a speed is rounded and kept until it has clearly
changed, so that noise changes no plan. A leader begins without speeds and learns them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from statistics import median

from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.planning.requests import Expected
from bamboo_core.protocol.messages import Progress

_STEPS = 8  # whose median is an agent's rate
_TYPICAL = 0.2  # a speed this near to 1 is 1
_CLEAR = 0.1  # a speed that changes by no more than this stays
_LEAST, _MOST = 0.1, 10.0
_SLOW = 0.5  # of the typical speed: a straggler, if it lasts
_WORTH = 1.25  # factor between speeds for which a plan is made


@dataclass(frozen=True)
class Lasting:
    """How long an agent must have been slow to be a straggler: both must hold."""

    steps: int = 20
    seconds: float = 30.0  # of attentive time


@dataclass
class _Slow:
    since: float
    steps: int = 0


class Speeds:
    """Relative speeds of the members; 1.0 is typical.

    Only steady steps of the plan in force count. Its first step may be the rest of an interrupted
    one, and its end is no step.
    """

    # set by ``begin``; without a plan nothing is expected
    _fence: Fence
    _target: int
    _step: int  # the newest of which progress has come
    _rates: dict[AgentId, deque[float]]

    def __init__(self, lasting: Lasting | None = None) -> None:
        self._lasting = lasting or Lasting()
        self._expected: Mapping[AgentId, Expected] = {}
        self._speed: dict[AgentId, float] = {}
        self._slow: dict[AgentId, _Slow] = {}

    def begin(self, fence: Fence, target: int, expected: Mapping[AgentId, Expected]) -> None:
        """A plan is in force. Speeds stay until they are measured again under this plan.

        target: the plan's first step; expected: of every member. Other agents are forgotten, and so
        are all if the costs are not measured (``expected`` is empty).
        """
        self._fence, self._target, self._step = fence, target, -1
        self._expected = expected
        self._rates = {a: deque(maxlen=_STEPS) for a in expected}
        self._speed = {a: x for a, x in self._speed.items() if a in expected}
        self._slow = {a: x for a, x in self._slow.items() if a in expected}

    def learn(self, agent: AgentId, progress: Progress, now: float) -> None:
        """The agent has ended a step. ``now``: attentive time in seconds."""
        step = progress.commit.step
        if agent not in self._expected or progress.fence != self._fence or step <= self._target:
            return
        if step > self._step:
            self._conclude(now)
            self._step = step
        expected_s = self._expected[agent].at(step)
        if expected_s > 0 and 0 < progress.busy_s < inf:
            self._rates[agent].append(expected_s / progress.busy_s)

    def relative(self) -> dict[AgentId, float]:
        """Speeds for the planner, in steps of 0.1. An agent of typical speed is absent."""
        return {a: x for a, x in sorted(self._speed.items()) if x != 1}

    def is_worth_a_plan(self, used: Mapping[AgentId, float]) -> bool:
        """Whether an agent has clearly become slow, or is no longer so, since a plan was made.

        used: the speeds in that plan's request. An agent faster than typical is no reason.
        """
        for agent in self._expected:
            before, after = (min(1.0, x.get(agent, 1.0)) for x in (used, self._speed))
            if max(before, after) >= _WORTH * min(before, after):
                return True
        return False

    def stragglers(self, now: float) -> tuple[AgentId, ...]:
        """Agents that have been slower than half the typical speed for long, slowest first."""
        bound = self._lasting
        found = [
            a
            for a, x in self._slow.items()
            if x.steps >= bound.steps and now - x.since >= bound.seconds
        ]
        return tuple(sorted(found, key=lambda a: (self._speed[a], a)))

    def _conclude(self, now: float) -> None:
        """Compare the members once all that compute are measured under this plan."""
        rates = {a: median(x) for a, x in self._rates.items() if len(x) == _STEPS}
        measured = {a for a, x in self._expected.items() if x.step_s > 0}
        if not rates or not rates.keys() >= measured:
            return
        typical = median(rates.values())
        for agent, rate in rates.items():
            speed = rate / typical
            self._speed[agent] = _settled(speed, self._speed.get(agent, 1.0))
            if speed >= _SLOW:
                self._slow.pop(agent, None)
            else:
                self._slow.setdefault(agent, _Slow(now)).steps += 1


def _settled(speed: float, before: float) -> float:
    """The speed rounded, or as before if it has not clearly changed."""
    if abs(speed - before) <= (_TYPICAL if before == 1 else _CLEAR):
        return before
    if abs(speed - 1) <= _TYPICAL:
        return 1.0
    return min(max(round(speed, 1), _LEAST), _MOST)
