"""The state of a job's arbiter. One object, in one phase; each phase has its own data.

The functions of ``arbiter`` take a :class:`State`, an event and ``now``. They alone change it. The
changes that several of them make are methods here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from bamboo_core.api.events import FACTS, EventFact, EventReason, RestoreCause, Severity, StallCause
from bamboo_core.api.progress import TrainingProgress
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    ArbiterPhase,
    DesiredState,
    Dismiss,
    Record,
    Send,
)
from bamboo_core.arbiter_state.findings import Findings
from bamboo_core.arbiter_state.last_write import Rewriting
from bamboo_core.arbiter_state.membership import Membership
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.waits import Deadlines, Incident
from bamboo_core.evidence.liveness import Evidence
from bamboo_core.evidence.speed import Speeds
from bamboo_core.evidence.wire import Wire
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.processors import ProcessorKind
from bamboo_core.model.program import Program
from bamboo_core.placement.plan import Plan
from bamboo_core.planning import redone
from bamboo_core.planning.redone import Part, Redone
from bamboo_core.planning.requests import Comparison, Decision, Relocation
from bamboo_core.protection.choice import Verdict
from bamboo_core.protection.hazard import Hazard
from bamboo_core.protection.measured import EmptySeats, Measured
from bamboo_core.protocol.clock import Backlog, PatientClock
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    Activity,
    AgentReport,
    Continuation,
    Directive,
    Manifest,
    Progress,
    Release,
    Stop,
)

LONGEST_LOOK_S = 0.5
"""An operator that looks at its job less often stands still; see bamboo_core.protocol.clock."""


# ---------------------------------------------------------------- phases


@dataclass
class Waiting:
    """No plan is in force; more agents are needed."""

    detail: str = ""


@dataclass
class Returning:
    """A new leader waits for the members of the plan that it found."""

    until: float = inf  # set when the leader first looks
    detail: str = ""


@dataclass
class Collecting:
    """All members were told to stop; their reports are on the way."""

    detail: str
    reports: dict[AgentId, AgentReport] = field(default_factory=dict)
    # member -> when its report is due; not there: the STOP has not left, or it has no session
    report_by: dict[AgentId, float] = field(default_factory=dict)
    asked_at: dict[AgentId, float] = field(default_factory=dict)  # when its first STOP left


@dataclass
class Planning:
    """Every member has reported; the planner works on this request."""

    request: int
    reports: dict[AgentId, AgentReport]
    speeds: Mapping[AgentId, float] = field(default_factory=dict)  # that the planner was told
    network: float = inf  # as speeds; bytes per second
    detail: str = "computing the plan"
    answer_by: float = inf


@dataclass
class Holding:
    """Every member has reported and keeps its state; other agents may bring what is missing."""

    detail: str
    reports: dict[AgentId, AgentReport]
    restore_by: float = inf  # then the newest checkpoint is used instead
    cause: RestoreCause = RestoreCause.LAYER_LOST  # of that restore
    plan_by: float = inf  # then the planner is asked again
    rest_by: float = inf  # then a job that is to be suspended rests

    @property
    def due_by(self) -> float:
        """When something is given up that suspects may hold."""
        return min(self.restore_by, self.rest_by)


@dataclass
class Running:
    """The members run the programs of ``State.in_force``."""

    finished: set[AgentId] = field(default_factory=set)  # their last program has run
    detail: str = ""


@dataclass
class Over:
    """The job has ended, or is suspended."""

    detail: str = ""


Phase = Waiting | Returning | Collecting | Planning | Holding | Running | Over
Stopped = Collecting | Planning | Holding

_NAMES: Mapping[type, ArbiterPhase] = {
    Waiting: ArbiterPhase.WAITING,
    Returning: ArbiterPhase.RETURNING,
    Collecting: ArbiterPhase.COLLECTING,
    Planning: ArbiterPhase.PLANNING,
    Holding: ArbiterPhase.HOLDING,
    Running: ArbiterPhase.RUNNING,
    Over: ArbiterPhase.OVER,
}


@dataclass
class Ledger:
    """Progress that members have reported in this attempt."""

    steps: int
    progress: TrainingProgress = TrainingProgress()  # noqa: RUF009 - frozen
    progress_at: float = -inf
    whole_s: float = 0.0  # duration of the last step that no change interrupted; 0: unknown

    def learn(self, agent: AgentId, report: Progress, now: float) -> bool:
        """True: a new commit (that of step ``steps``, the epilogue, does not count)."""
        commit, known = report.commit, self.progress
        if commit.validation_loss is not None:
            known = known.validated(commit.validation_loss, commit.validation_metrics)
        if report.step_s:
            known = replace(known, step_s=report.step_s)
        is_new = known.committed < commit.step < self.steps
        if is_new:
            known = known.trained(commit.step, commit.loss, commit.metrics, commit.skipped)
            self.progress_at = now
        self.progress = known
        return is_new

    @property
    def usual_s(self) -> float:
        """Seconds of a step, for limits: an interrupted step contains a pause, and the first one of
        a newcomer the start of its process. 0: unknown."""
        return self.whole_s or self.progress.step_s

    def forget_commit(self) -> None:
        """The reported commit is lost: a restore has undone it, or only lost agents knew it."""
        self.progress = replace(self.progress, committed=-1, loss=None, metrics={})

    def newest(self, durable: Durable) -> int:
        """Newest known commit of the attempt, reported or implied by a checkpoint; -1: none."""
        files = (m.step - 1 for m in durable.manifests if m.attempt == durable.attempt)
        return max(self.progress.committed, durable.committed, *files)


@dataclass
class InForce:
    """The newest plan of this leader. It stays known while agents are stopped for the next one."""

    plan: Plan
    directives: dict[AgentId, Directive]
    is_suspending: bool
    shortage: str = ""  # why the smallest device does not suffice for the mode of redundancy
    catch_up_by: float = inf  # learners get no more time than this
    continuations_by: float = inf  # then the planner has taken too long for its second part
    continuations: dict[AgentId, Continuation] = field(default_factory=dict)
    told: tuple[frozenset[Part], frozenset[Part]] | None = None  # as in Continuations
    sharing: Comparison | None = None  # as in Continuations
    speeds: Mapping[AgentId, float] = field(default_factory=dict)  # with which it was made
    network: float = inf  # as speeds; bytes per second between two agents
    begun_at: float = 0.0
    redone: frozenset[Part] = frozenset()  # of the target step, that plans for it have counted
    sent_at: dict[AgentId, float] = field(default_factory=dict)  # when its first directive left
    continued_at: dict[AgentId, float] = field(default_factory=dict)  # the same of the rest
    caught_up: set[AgentId] = field(default_factory=set)  # learners that keep up by now
    relocation: Relocation | None = None  # that the planner advises

    def told_in(self, step: int) -> frozenset[Part]:
        """Tasks that agents were told to compute in a step."""
        if self.told is None:
            programs = {agent: self.program(agent, step) for agent in self.directives}
            return redone.told_by(programs)
        return self.told[step != self.plan.target]

    def program(self, agent: AgentId, step: int) -> Program:
        """The program of an agent in a step."""
        if step != self.plan.target:
            told = self.continuations.get(agent)
            return told.steady if told is not None else ()
        first = self.directives.get(agent)
        return first.resume if first is not None else ()


@dataclass
class Listing:
    """A list of the checkpoints, since the newest plan."""

    since: Fence | None = None  # of the first STOP that asked for one; None: nobody was asked
    # when each member was first asked since the attempt began
    asked: dict[AgentId, float] = field(default_factory=dict)
    told: set[AgentId] = field(default_factory=set)  # those whose STOP has left
    is_here: bool = False  # a whole list has come that was begun since then

    def ask(self, agents: Iterable[AgentId], fence: Fence, now: float) -> None:
        self.since = self.since or fence
        for agent in agents:
            self.asked.setdefault(agent, now)

    def first(self, members: Iterable[AgentId], most: int) -> list[AgentId]:
        """So many members to ask: those first that have been asked already."""
        return sorted(members, key=lambda agent: (agent not in self.asked, agent))[:most]

    def left(self, agent: AgentId, now: float) -> None:
        """A STOP that asks has left: the time begins with the first one."""
        if agent not in self.told:
            self.told.add(agent)
            self.asked[agent] = now

    def give_time(self) -> None:
        """A new attempt has begun: every member may have time again."""
        self.asked.clear()
        self.told.clear()

    def due_at(self, members: Iterable[AgentId], patience_s: float) -> float:
        """When some member has had its time; inf: none of them was asked."""
        return min((self.asked[a] for a in members if a in self.asked), default=inf) + patience_s


@dataclass
class Stalls:
    """Activities of agents, and which ones have held up the training since the newest commit."""

    activities: dict[AgentId, Activity] = field(default_factory=dict)  # of the present epoch
    tried: set[AgentId] = field(default_factory=set)  # because of which planning was done again
    slow_since: float = inf  # some link has been too slow since then; inf: none is
    text: str = ""  # of the newest one; empty: training goes on
    told: dict[StallCause, str] = field(default_factory=dict)  # what users know, but nobody mends
    counts: dict[StallCause, int] = field(default_factory=dict)

    def settle(self) -> None:
        """A step is committed."""
        self.tried.clear()
        self.text = ""

    def note(self, cause: StallCause, text: str) -> bool:
        """Keep what is told now for this cause (empty: nothing); whether that begins now."""
        is_new = bool(text) and not self.told.get(cause)
        self.told[cause] = text
        if is_new:
            self.counts[cause] = self.counts.get(cause, 0) + 1
        return is_new


class Interrupted(NamedTuple):
    """A loss has interrupted a step."""

    step: int
    begun_at: float  # real time
    expected_s: float  # that the step should take, if the others go on at once


class Seats(NamedTuple):
    """Seats of the grid that the job asks for; none: they do not count now."""

    wanted: int = 0
    empty: int = 0


@dataclass
class Protection:
    """Observations and decisions of mode Auto."""

    hazard: Hazard = Hazard()  # noqa: RUF009 - frozen
    measured: Measured = Measured()  # noqa: RUF009 - frozen
    empty: EmptySeats = EmptySeats()  # noqa: RUF009 - frozen
    verdict: Verdict | None = None  # of this leader, in the newest answer of the planner
    counted_at: float | None = None  # until when the first and third count; real time
    zones: dict[str, int] = field(default_factory=dict)  # members by zone since then
    committed: tuple[int, float] = (-1, 0.0)  # newest step, and when (real time)
    interrupted: Interrupted | None = None  # until training goes on
    started_at: float | None = None  # of an attempt that has committed nothing yet; real time
    seats: Seats = Seats()  # noqa: RUF009 - since then

    def hold(self) -> None:
        """How long training stands still now does not show what a loss costs."""
        self.interrupted = self.started_at = None

    def end(self) -> None:
        """Nobody replaces agents now."""
        self.hold()
        self.seats = Seats()


@dataclass
class State:
    """All that one leader knows of one job."""

    job: ArbiterJob
    term: int
    out: Outbox
    membership: Membership
    evidence: Evidence
    ledger: Ledger
    epoch: int  # of the newest STOP
    phase: Phase
    desired: DesiredState | None = None  # None: the operator has not said it yet
    in_force: InForce | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    stopped_at: float | None = None  # since when training stands still
    is_loading: bool = False  # members read or make initial weights, which takes long
    copied_at: float = inf  # newest step in which layers may have been copied between agents
    learner_plans: int = 0  # plans in a row that had learners
    moves: tuple[frozenset[AgentId], int] = (frozenset(), 0)  # made by this fleet, and how many
    incident: Incident = field(default_factory=Incident)
    stalls: Stalls = field(default_factory=Stalls)
    speeds: Speeds = field(default_factory=Speeds)
    wire: Wire = field(default_factory=Wire)
    protection: Protection = field(default_factory=Protection)
    disputes: tuple[tuple[int, int], int] = ((0, -1), 0)  # newest (attempt, step), and how often
    straggler_after: float = -inf  # not before is another agent replaced because it is slow
    clock: PatientClock = field(default_factory=lambda: PatientClock(LONGEST_LOOK_S))
    real_s: float = 0.0  # real time of the present event
    backlog: Backlog = field(default_factory=lambda: Backlog(LONGEST_LOOK_S))
    is_behind: bool = False  # words wait to be read: nobody is lost for what others say
    failed: dict[AgentId, bool] = field(default_factory=dict)  # agent -> whether the user's code
    # text of an error of the user's code -> which members have met it, and under which plans
    users_errors: dict[str, set[tuple[AgentId, Fence]]] = field(default_factory=dict)
    listing: Listing = field(default_factory=Listing)
    rewriting: Rewriting = field(default_factory=Rewriting)
    findings: Findings = field(default_factory=Findings)
    broken_hooks: set[int] = field(default_factory=set)  # indexes of those that events have told
    faults: int = 0  # of the planner, in a row
    requests: int = 0  # number of the newest request to the planner

    @property
    def durable(self) -> Durable:
        """The facts as they are now (some may not be written yet)."""
        return self.out.durable

    @property
    def fence(self) -> Fence:
        """The fence of the newest STOP."""
        return Fence(self.durable.attempt, self.term, self.epoch)

    @property
    def processor(self) -> ProcessorKind:
        """The kind of the newest plan; of a new job any."""
        known = self.durable.processors
        return known[-1] if known else ProcessorKind()

    @property
    def phase_name(self) -> ArbiterPhase:
        """The phase without its data."""
        return _NAMES[type(self.phase)]

    def reports(self) -> dict[AgentId, AgentReport]:
        """Reports of members since the newest STOP."""
        return self.phase.reports if isinstance(self.phase, Stopped) else {}

    def unasked(self) -> set[AgentId]:
        """Reachable agents that have not reported: they may hold what is missing."""
        membership = self.membership
        return membership.reachable() - membership.members - self.reports().keys()

    def redone(self, decision: Decision) -> Redone:
        """Count the tasks of the interrupted step that a plan, not in force yet, computes again.

        Without a loss there are none. After a restore, the repeated steps count instead.
        """
        plan, durable, before, reports = decision.plan, self.durable, self.in_force, self.reports()
        is_same = before is not None and before.plan.target == plan.target
        counted = before.redone if before is not None and is_same else frozenset[Part]()
        lost = set(durable.members) - reports.keys()
        if not lost or durable.plan.attempt != plan.fence.attempt:
            return Redone(parts=counted)
        interrupted = redone.Interrupted(
            step=plan.target,
            batch=plan.batch,
            cut=plan.step_cut,
            told=before.told_in(plan.target) if before is not None else frozenset(),
            lost=[before.program(agent, plan.target) for agent in lost] if before else [],
            held=[report.items for report in reports.values()],
            counted=counted,
        )
        return redone.find(interrupted, {a: d.resume for a, d in decision.directives.items()})

    def check(self) -> None:
        """Assert what holds between any two events."""
        m, phase = self.membership, self.phase
        assert not m.agents.keys() & m.suspected.keys(), "an agent counts and is suspected"
        assert not m.fenced & (m.agents.keys() | m.members), "a fenced agent takes part"
        if isinstance(phase, Planning | Holding):
            assert phase.reports.keys() == m.members, "a member of a stopped job has not reported"
        if isinstance(phase, Collecting):
            assert phase.reports.keys() <= m.members, "an agent that is no member has reported"
        if isinstance(phase, Running):
            assert self.in_force is not None, "there is no plan to run"
            assert m.members <= set(self.in_force.plan.members), "a member is not in the plan"
        if isinstance(phase, Running | Waiting):
            assert self.deadlines == Deadlines(), "a job that is not held has deadlines"
        if isinstance(phase, Over):
            assert not m.agents.keys() | m.members, "a job that is over has agents"

    # ------------------------------------------------------------ transitions

    def record(
        self,
        reason: EventReason,
        message: str,
        severity: Severity = Severity.NORMAL,
        **facts: str | int | float,
    ) -> None:
        """For Kubernetes Events and the log. ``facts``: by the names in EventFact."""
        named = {EventFact[name.upper()]: value for name, value in facts.items()}
        assert named.keys() == set(FACTS[reason]), f"{reason} does not carry {sorted(named)}"
        self.out.at_once(Record(severity, reason, message, named))

    @property
    def questioned(self) -> frozenset[AgentId]:
        """Agents of which one is wrong: they send what they hold, and compute nothing."""
        question = self.durable.question
        return question.agents if question is not None else frozenset()

    def settle_dispute(self, step: int) -> None:
        """The step is committed, so all copies were equal. Agents that are in question because of
        it may take part again."""
        if self.durable.disputants and step >= self.durable.voided[-1]:
            self.out.save(disputants=())
        if self.durable.question is not None and step >= self.durable.question.step:
            self.membership.without_seat -= self.questioned
            self.out.save(question=None)

    def reconsider(self) -> None:
        """The facts from which a plan is computed, or is missing, have changed."""
        if isinstance(self.phase, Planning | Holding):
            self.phase = Collecting(self.phase.detail, self.phase.reports)

    def remove(self, agent: AgentId) -> None:
        """A member does not count any more. While all are stopped, the other reports hold."""
        self.membership.members.discard(agent)
        self.reports().pop(agent, None)
        self.reconsider()

    def dismiss(self, agent: AgentId, why: str) -> None:
        """The agent's pod is of no use any more."""
        self.out.after_facts(Dismiss(agent, why))
        self.membership.forget(agent)

    def let_go(self, agent: AgentId) -> None:
        """The agent wants to leave and has handed over what it held, or holds nothing."""
        self.out.after_facts(Send(agent, Release(ExitCode.DRAINED, "drained")))
        self.dismiss(agent, "drained")

    def stop(self, *, want_manifests: bool = False, suspect: Manifest | None = None) -> Stop:
        """The newest STOP."""
        return Stop(self.fence, want_manifests, self.durable.void, suspect)

    def fence_suspects(self) -> None:
        """Training goes on without the suspects: those that live must end."""
        for agent in sorted(self.membership.suspected):
            self.fence_suspect(agent)

    def fence_suspect(self, agent: AgentId) -> None:
        """The suspect must end, whatever becomes of the others."""
        why = self.membership.suspected[agent].why
        self.membership.fenced.add(agent)
        self.out.after_facts(Send(agent, Release(ExitCode.FENCED, why)))
        self.dismiss(agent, why)
