"""The one mechanism for every change: STOP -> reports -> plan -> durable -> directives.

Part of the arbiter: it knows who is a member and what has been decided; why a round begins, and
who has been lost, is the arbiter's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from math import inf
from typing import NamedTuple

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import batch_shape
from bamboo_core.arbiter import changes
from bamboo_core.arbiter.durable import Durable, Fork, eligible, with_manifest
from bamboo_core.arbiter.events import (
    ArbiterJob,
    ArbiterPhase,
    ComputePlan,
    DesiredState,
    Dismiss,
    Over,
    Record,
    Send,
)
from bamboo_core.arbiter.evidence import Evidence
from bamboo_core.arbiter.membership import AgentRecord, Membership
from bamboo_core.arbiter.outbox import Outbox
from bamboo_core.arbiter.progress import Ledger
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.program import Op
from bamboo_core.placement.capacity import is_enough, pipelines_for
from bamboo_core.placement.plan import Plan
from bamboo_core.planning.requests import (
    Decision,
    Fatal,
    PlannerFault,
    PlanRequest,
    PlanResult,
    Unplaceable,
)
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import AgentReport, Directive, Release, Stop

_RETRY_S = 5.0  # until those whom nobody could reach are asked again; doubled every time
_PATIENCE = 3  # plans in a row in which somebody learners; then everybody waits for the copies
_LOADING_FLOOR_S = 30.0  # INIT and LOAD are instructions that nobody has measured yet


class Doubt(NamedTuple):
    """Why an agent counts as lost, and what is known of it (None: it never came back)."""

    why: str
    known: AgentRecord | None


class Rounds:
    """members: who must report; plan: in force since the last decision of this leader;
    without_seat: agents to whom the last plan gives nothing lasting; finished: members whose last
    program has run; doubted: lost, but perhaps alive, with the evidence; fenced: left out of a plan
    for ever; caught_up: those who learn and keep up with the others by now; catch_up_by: until when
    they may."""

    def __init__(
        self, job: ArbiterJob, out: Outbox, roster: Membership, evidence: Evidence, term: int
    ) -> None:
        self._job, self._spec, self._timing = job, job.spec, job.timing
        self._out, self._roster, self._evidence, self._term = out, roster, evidence, term
        self._epoch = out.durable.plan.epoch
        self.ledger = Ledger(job.spec.training.steps)
        self.members: set[AgentId] = set(out.durable.members)
        self.dead: set[AgentId] = set()
        self.goal: DesiredState | None = None
        self.plan: Plan | None = None
        self.directives: dict[AgentId, Directive] = {}
        self.reports: dict[AgentId, AgentReport] = {}
        self.finished: set[AgentId] = set()
        self.without_seat: set[AgentId] = set()
        self.doubted: dict[AgentId, Doubt] = {}
        self.fenced: set[AgentId] = set()
        self.caught_up: set[AgentId] = set()
        self._learners, self.catch_up_by = 0, inf
        self.deadline = inf
        self.stopped_at: float | None = None
        self.request = 0
        self._retry_at, self._retry_s = inf, _RETRY_S
        self._voter_by = self._copy_by = inf
        self.detail = ""
        self.is_suspending = False
        self.is_loading = False
        self._is_first = True
        self.phase = ArbiterPhase.WAITING
        if out.durable.outcome is not None:
            self.phase = ArbiterPhase.OVER
        elif self.members:
            self.phase = ArbiterPhase.RETURNING

    @property
    def durable(self) -> Durable:
        """The facts as they are now."""
        return self._out.durable

    @property
    def fence(self) -> Fence:
        """What the newest STOP carries."""
        return Fence(self.durable.attempt, self._term, self._epoch)

    def standby(self) -> set[AgentId]:
        """Agents that could be given work."""
        return self._roster.usable() - self.members

    def _unasked(self) -> set[AgentId]:
        """Others whose facts are not known: they may hold what is missing, and hand it over even if
        they will not stay."""
        return self._roster.reachable() - self.members - self.reports.keys()

    def record(
        self,
        reason: EventReason,
        message: str,
        severity: Severity = Severity.NORMAL,
        *,
        facts: Mapping[EventFact, str | int | float] | None = None,
    ) -> None:
        """For events and log."""
        self._out.at_once(Record(severity, reason, message, facts or {}))

    # ------------------------------------------------------------ stop

    def begin(self, why: str, now: float) -> None:
        """Stop everyone who may be part of the next plan."""
        self._evidence.begin_epoch()
        self._epoch += 1
        if self.stopped_at is None:
            self.stopped_at = now
        is_held = self.phase is ArbiterPhase.HOLDING  # whoever comes may hold what is missing
        self.phase, self.detail = ArbiterPhase.COLLECTING, why
        self.reports.clear()
        self.finished.clear()
        self._out.withdraw(
            lambda e: isinstance(e, Send) and isinstance(e.message, Stop | Directive)
        )
        if is_held:
            self.members |= self._roster.reachable()
        elif self._are_newcomers_wanted():
            self.members |= self.standby()
        self.deadline = now + self._report_patience_s()
        self.record(EventReason.STOPPED, f"epoch {self._epoch}: {why}")
        stop = Stop(self.fence, want_manifests=self._is_first)
        self._is_first = False
        for agent in sorted(self.members):
            self._out.after_facts(Send(agent, stop))

    def resumed(self, step: int, now: float) -> None:
        """A step of the plan in force is committed: what the change has cost, in words. A commit
        that was on its way when the stop went out is no sign that training goes on."""
        if self.phase is ArbiterPhase.RUNNING and self.plan is not None and step > self.plan.target:
            self._retry_s = _RETRY_S
        if self.stopped_at is not None and self.phase is ArbiterPhase.RUNNING:
            pause_s, self.stopped_at = now - self.stopped_at, None
            text = f"epoch {self._epoch}: step {step} is committed {pause_s:.2f} s after the stop"
            self.record(EventReason.RESUMED, text)

    def _are_newcomers_wanted(self) -> bool:
        """Seats are empty: whoever only helps with the step at work has had its chance."""
        assert self.goal is not None
        staying = self.members & self._roster.usable()
        stages, wanted = self._spec.pipelines.stages, self.goal.pipelines
        if self.plan is not None:
            staying &= {*self.plan.live, *self.plan.learners}
            both = len(staying | self.standby())
            wanted = pipelines_for(both, stages=stages, wanted=wanted)
        return len(staying) < wanted * stages

    def _report_patience_s(self) -> float:
        if self.is_loading:
            return _LOADING_FLOOR_S
        longest_s = self._roster.longest_instruction_s(self.members)
        return max(self._timing.report_floor_s, 3 * longest_s)

    def reported(self, agent: AgentId, report: AgentReport) -> None:
        """A member's facts, if they answer the newest STOP."""
        if self.phase is not ArbiterPhase.COLLECTING or report.fence != self.fence:
            return
        self.reports[agent] = report
        self._roster.agents[agent].attempt = report.fence.attempt
        for manifest in report.manifests:
            if manifest.attempt <= self.durable.attempt:
                self._out.save(manifests=with_manifest(self.durable.manifests, manifest))

    def remove(self, agent: AgentId) -> None:
        """A member that does not count any more. While all are stopped the others' reports hold."""
        self.members.discard(agent)
        self.reports.pop(agent, None)
        self.reconsider()

    # ------------------------------------------------------------ decide

    def try_decide(self, now: float) -> None:
        """Once everyone has reported: plan, or wait, or restore."""
        if self.phase is not ArbiterPhase.COLLECTING or self.members - self.reports.keys():
            return
        voters = set(self.durable.voters)
        if not self.members and voters <= self.dead:
            if self._unasked():  # who had just handed over is no member any more
                self.phase = ArbiterPhase.HOLDING
                self.begin("whoever is left is asked", now)
            else:
                self._handle_layer_loss("all agents are lost", now)
            return
        if voters and not voters & self.reports.keys() and not voters <= self.dead:
            text = "no voter of the newest plan has reported: it may still be running elsewhere"
            self._voter_by = min(self._voter_by, now + self._timing.voter_wait_s)
            self._hold(text, self._voter_by, now)
            return
        self._voter_by = inf
        staying = self.members - self._leavers(now)
        if not self._is_enough(staying):
            self._hold(f"{len(staying)} agents are too few to go on; their state is kept", inf, now)
            return
        self.request += 1
        self.phase, self.detail = ArbiterPhase.PLANNING, "computing the plan"
        self._out.at_once(ComputePlan(self.request, self._make_request(now)))

    def _leavers(self, now: float) -> set[AgentId]:
        """Members without a future: all who will go away; but who has time has one as long as the
        others are too few, and for the last step before a rest everyone who lives as long as that
        takes."""
        assert self.goal is not None
        going = {a for a in self.members if self._roster.is_departing(a)}
        leave_at = self._roster.departures()
        if self.goal.suspended:
            return {a for a in going if leave_at.get(a, inf) < self._soon(now)}
        if self._is_enough(self.members - going):
            return going
        last = now + changes.late_s(self.ledger.step_s)
        return {a for a in going if leave_at.get(a, inf) <= last}

    def _soon(self, now: float) -> float:
        """Whoever is gone by then cannot hand over in order."""
        return now + changes.transition_s(self.ledger.step_s)

    def _is_enough(self, agents: Set[AgentId]) -> bool:
        assert self.goal is not None
        stages = self._spec.pipelines.stages
        return is_enough(agents, stages=stages, least=self.goal.at_least)

    def _hold(self, text: str, deadline: float, now: float) -> None:
        assert self.goal is not None
        if self.goal.suspended:
            words = f"{text}; steps since the newest checkpoint will be repeated"
            self.end(Outcome.SUSPENDED, Reason.USER_REQUESTED, words)
            return
        self.phase, self.detail, self.deadline = ArbiterPhase.HOLDING, text, deadline
        self._retry_at = min(self._retry_at, now + self._retry_s)  # newcomers do not put it off
        if deadline == inf:
            self._copy_by = inf
        self.record(EventReason.WAITING, text, Severity.WARNING)

    def try_again(self, now: float) -> None:
        """Newcomers may help; a voter that stays away is waited for only so long."""
        if now >= self.deadline:
            self.restore(self.detail, now)
        elif now >= self._retry_at and self._readmit():
            self._retry_at = inf
            self.begin("agents that were given up are asked again", now)
        elif self._unasked():
            self.begin("more agents are ready", now)

    def _make_request(self, now: float) -> PlanRequest:
        assert self.goal is not None
        durable, roster = self.durable, self._roster
        draining, soon = frozenset(self._leavers(now)), self._soon(now)
        leave_at = roster.departures()
        ready = roster.reference(self.members)
        return PlanRequest(
            fence=self.fence,
            spec=self._spec,
            batch=self._batch(),
            layers=ready.layers,
            costs=ready.costs,
            validation_samples=ready.validation_samples,
            pipelines=self.goal.pipelines,
            grid=durable.pipelines,
            cut=durable.cut,
            step_cut=durable.step_cut,
            target=durable.target,
            participants=roster.participants(self.members),
            reports=dict(sorted(self.reports.items())),
            draining=draining,
            short_notice=frozenset(a for a in draining if leave_at.get(a, inf) < soon),
            manifests=eligible(durable),
            base=durable.manifest.step - 1 if durable.manifest is not None else -1,
            has_voter=not self.reports.keys().isdisjoint(durable.voters),
            is_full=durable.plan.attempt != durable.attempt or not durable.pipelines,
            is_last=self.goal.suspended,
            least=self.goal.at_least,
            catch_up_above_bytes=self._timing.catch_up_above_bytes
            if self._learners < _PATIENCE
            else inf,
            memory_bytes=roster.smallest_memory(self.members),
        )

    def _batch(self) -> BatchShape:
        """L and C belong to the job for ever."""
        shape = self.durable.batch
        if shape is None:
            shape = batch_shape(self._spec)
            self._out.save(batch=shape)
        return shape

    def planned(self, result: PlanResult, now: float) -> None:
        """The planner's answer to the newest request."""
        self._evidence.begin_epoch()
        match result:
            case Decision():
                self._direct(result, now)
            case Fatal(layers, committed):
                self._out.save(committed=max(committed, self.durable.committed))
                self._handle_layer_loss(
                    f"no live copy of layers {', '.join(map(str, layers))}", now
                )
            case Unplaceable(message):
                self.without_seat = set(self.members)
                self._hold(message, inf, now)
            case PlannerFault(message):
                self.end(Outcome.FAILED, Reason.PLANNING_FAILED, message)

    def _handle_layer_loss(self, text: str, now: float) -> None:
        """A layer is lost, unless somebody holds it who has not been asked: who has come back since
        the stop, or was given up but is still connected."""
        doubted = any(d.known is not None and d.known.is_connected for d in self.doubted.values())
        if doubted or self._unasked():
            self._copy_by = min(self._copy_by, now + self._timing.voter_wait_s)
            self._hold(text, self._copy_by, now)
        else:
            self.restore(text, now)

    def reconsider(self) -> None:
        """Somebody who was waited for will not come, or what is being planned for has changed."""
        if self.phase in (ArbiterPhase.PLANNING, ArbiterPhase.HOLDING):
            self.phase = ArbiterPhase.COLLECTING

    def _direct(self, decision: Decision, now: float) -> None:
        """Durable first, then everyone's directive."""
        plan = decision.plan
        repeated = max(0, self.ledger.newest(self.durable) - decision.committed)
        if repeated:  # only the dead knew that these steps were committed
            self.ledger.committed = None
        idle = self.members - set(plan.members)
        before = set(self.durable.members)
        # whoever only hands over has had its chance, too, and is no newcomer when it is done
        self.without_seat = self.members - {*plan.live, *plan.learners}
        self.members = set(plan.members)
        self.plan, self.directives = plan, decision.directives
        self.is_suspending = plan.last < self._spec.training.steps
        self.is_loading = decision.loads > 0
        self._learners = self._learners + 1 if plan.learners else 0
        self.caught_up.clear()
        self.phase, self.detail, self.deadline = ArbiterPhase.RUNNING, "", inf
        self._voter_by = self._copy_by = self._retry_at = inf
        self.catch_up_by = now + self._timing.catch_up_s if plan.learners else inf
        self.ledger.progress_at = now
        self._out.save(
            plan=plan.fence,
            members=plan.members,
            voters=plan.live,
            pipelines=plan.pipelines,
            cut=plan.cut,
            step_cut=plan.step_cut,
            target=plan.target,
            committed=decision.committed,
        )
        for agent in plan.members:
            self._out.after_facts(Send(agent, decision.directives[agent]))
        for agent in sorted(idle & self._roster.departures().keys()):
            if agent in before:
                text = f"{agent} holds nothing that is needed"
                self.record(EventReason.AGENT_LEFT, text, facts={EventFact.AGENTS: agent})
            self.let_go(agent)
        self.fence_off()
        self.record(EventReason.PLANNED, _describe(decision, repeated))

    def loads_from(self, attempt: int, step: int) -> bool:
        """Whether somebody is told to read layers from this checkpoint."""
        return any(
            d.manifest is not None
            and (d.manifest.attempt, d.manifest.step) == (attempt, step)
            and any(x.op is Op.LOAD for x in d.resume)
            for d in self.directives.values()
        )

    def writes_anew(self, step: int) -> bool:
        """Whether the plan in force has every layer of this step's checkpoint written again."""
        if self.plan is None or self.plan.target != step:
            return False
        saves = [i for d in self.directives.values() for i in d.resume if i.op is Op.SAVE]
        return {x for i in saves for x in range(i.lo, i.hi)} == set(range(self.plan.layers))

    # ------------------------------------------------------------ restore and end

    def restore(self, why: str, now: float) -> None:
        """A new attempt from the newest good checkpoint: the only action that loses work."""
        durable = self.durable
        manifest = next(reversed(eligible(durable)), None)
        step = manifest.step if manifest is not None else 0
        lost = max(0, self.ledger.newest(durable) + 1 - step)
        source = f"the checkpoint of step {step}" if manifest is not None else "the start"
        text = f"attempt {durable.attempt + 1} from {source}: {lost} committed steps are repeated"
        severity = Severity.WARNING if lost else Severity.NORMAL
        self.record(EventReason.RESTORING, f"{why}; {text}", severity)
        self._out.save(
            attempt=durable.attempt + 1,
            manifest=manifest,
            forks=(*durable.forks, Fork(durable.attempt + 1, step)),
            members=(),
            voters=(),
            pipelines=(),
            committed=step - 1,
        )
        self.members.clear()
        self.plan, self.ledger.committed, self.is_suspending = None, None, False
        self.phase, self.detail, self.deadline = ArbiterPhase.WAITING, why, inf
        self._voter_by = self._copy_by = self._retry_at = inf
        self._roster.ready_at = now
        self.without_seat.clear()
        self.fence_off()

    def end(self, outcome: Outcome, reason: str, message: str) -> None:
        """Durable, then told to the shell, then everyone may go."""
        if self.phase is ArbiterPhase.OVER:
            return
        self._out.save(
            outcome=outcome,
            reason=str(reason),
            message=message,
            members=(),
            voters=(),
            committed=self.ledger.newest(self.durable),
        )
        self._out.withdraw(lambda e: isinstance(e, Send))
        self.phase, self.detail = ArbiterPhase.OVER, message
        self._out.after_facts(Over(outcome, str(reason), message))
        for agent in sorted(self._roster.agents):
            self._out.after_facts(Send(agent, Release(0, str(reason))))
        self.members.clear()
        self._roster.agents.clear()

    def let_go(self, agent: AgentId) -> None:
        """It wants to leave, and has handed over what it held, or has nothing."""
        self._out.after_facts(Send(agent, Release(ExitCode.DRAINED, "drained")))
        self.dismiss(agent, "drained")

    def dismiss(self, agent: AgentId, why: str) -> None:
        """Its pod is of no use any more."""
        self._out.after_facts(Dismiss(agent, why))
        self._roster.agents.pop(agent, None)
        self.doubted.pop(agent, None)

    def doubt(self, agent: AgentId, why: str) -> None:
        """It does not count; what becomes of it is settled when there is a plan without it."""
        self.doubted[agent] = Doubt(why, self._roster.agents.pop(agent, None))

    def _readmit(self) -> bool:
        """Doubted agents that are still connected get another chance; whether there were any."""
        back = {a: d.known for a, d in self.doubted.items() if d.known and d.known.is_connected}
        for agent, known in back.items():
            del self.doubted[agent]
            self._roster.agents[agent] = known
        self._retry_s *= 2 if back else 1
        return bool(back)

    def fence_off(self) -> None:
        """Nobody waits for the doubted any more: if they live, they are to end."""
        for agent, (why, _) in sorted(self.doubted.items()):
            self.fenced.add(agent)
            self._out.after_facts(Send(agent, Release(ExitCode.FENCED, why)))
            self.dismiss(agent, why)


def _describe(decision: Decision, repeated: int) -> str:
    plan = decision.plan
    text = (
        f"epoch {plan.fence.epoch}: {len(plan.pipelines)} x {len(plan.cut)} from step"
        f" {plan.target}, {len(plan.live)} agents"
    )
    parts = [
        f"{plan.holes} seats empty" if plan.holes else "",
        f"{len(plan.leaving)} leaving" if plan.leaving else "",
        f"{len(plan.learners)} get copies before they take part" if plan.learners else "",
        f"{decision.copies} layers copied" if decision.copies else "",
        f"{decision.loads} layers loaded" if decision.loads else "",
        f"{repeated} committed steps are made again" if repeated else "",
    ]
    return ", ".join([text, *filter(None, parts)])
