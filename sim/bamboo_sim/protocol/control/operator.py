"""One running operator: the production Leadership and DurableWriter, and their shell's state."""

from __future__ import annotations

from math import inf

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import ComputePlan, Timing
from bamboo_core.controller.view import JobView
from bamboo_core.job.durable_writer import DurableWriter, LeaderFacts
from bamboo_core.job.leadership import Leadership
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.clock import Hearing
from bamboo_sim.protocol.control.clone import clone

JOB = JobView("explore", "job", "uid", generation=1, created_at=0.0)


class Operator:
    """An operator as the job's actor is; only Leadership decides."""

    def __init__(
        self, name: AgentId, spec: JobSpec, timing: Timing, began: Durable, term: int
    ) -> None:
        self.name = name
        self.term = term  # of its election
        self.leadership = Leadership(JOB, spec, began, term=term, timing=timing)
        self.leader_facts = LeaderFacts(began, f"{name}/{self.leadership.term}")
        self.writer = DurableWriter()
        self.retry_at: float | None = None  # the next attempt to write, after a failed one
        self.sessions: dict[AgentId, int] = {}  # agent -> number of its newest stream
        self.dead: frozenset[AgentId] = frozenset()  # agents whose pods it has seen to end
        self.computing: ComputePlan | None = None  # the newest request to the planner
        self.is_leading = True  # it is certain that no other operator leads
        self.is_overtaken = False  # another leader has written
        self.must_look = True  # it has not seen the cluster since its arbiter began
        self.hearing = Hearing()
        self.agents: set[AgentId] = set()  # those that counted before the present event
        self.unasked: set[AgentId] = set()  # those of them that were not asked what they hold
        self.suspects: set[AgentId] = set()  # those that did not count
        self.suspected_at: dict[AgentId, float] = {}  # suspect -> since when it is one
        self.askable: set[AgentId] = set()  # those with a session
        self.unanswered: set[AgentId] = set()  # members that had not reported
        self.awaits_plan = False
        self.done = 0  # steps that it knew to be committed, undone ones included
        self.due_since = inf  # something is to be given up unless an agent helps
        self.due_after = -1  # the newest commit then

    def copy(self) -> Operator:
        """An independent copy."""
        new = Operator.__new__(Operator)
        new.__dict__.update(self.__dict__)
        memo: dict[int, object] = {}
        new.leadership = clone(self.leadership, memo)
        new.writer, new.hearing = clone(self.writer, memo), clone(self.hearing, memo)
        new.sessions = self.sessions.copy()
        return new

    @property
    def arbiter(self) -> Arbiter:
        """Its present arbiter."""
        return self.leadership.arbiter
