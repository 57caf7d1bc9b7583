"""The arbiter of one job: who takes part, from which facts training goes on, when it is over.

Pure: the shell feeds events with ``now`` (any clock that does not go back) and performs effects.
One leader at a time is in force, by its term. Only the Lease gives and takes terms: whoever says
that a later one is in force is not heard, and changes nothing.

An event is handled in two steps: what it says is noted, then :meth:`Arbiter._act` does what is due
in the phase. A member's report, for example, goes to :func:`rounds.reported`; then ``_act`` calls
:func:`rounds.go_on`, which asks for a plan once every member has reported. Which agents are lost
is decided in :mod:`bamboo_core.arbiter.losses`, when a running plan must change in
:mod:`bamboo_core.arbiter.changes`.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from math import inf

from bamboo_core.api import spec as specs
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter import (
    changes,
    endings,
    files,
    last_write,
    losses,
    plans,
    redundancy,
    refusals,
    rounds,
    training,
)
from bamboo_core.arbiter_state import snapshots
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    ArbiterStatus,
    Connected,
    DesiredState,
    Disconnected,
    Effect,
    Event,
    Glance,
    Lost,
    NodeLeaves,
    Paced,
    Persisted,
    Planned,
    Received,
    Send,
    Tick,
    Timing,
)
from bamboo_core.arbiter_state.membership import Membership, Suspect
from bamboo_core.arbiter_state.outbox import Outbox
from bamboo_core.arbiter_state.state import (
    Collecting,
    Holding,
    Ledger,
    Over,
    Phase,
    Planning,
    Protection,
    Returning,
    Running,
    State,
    Waiting,
)
from bamboo_core.evidence.liveness import Evidence
from bamboo_core.graph.reports import Extent, impossible
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.zones import feasible_pipelines
from bamboo_core.protocol.admission import foreign, newest_term
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Disputed,
    Failure,
    Finished,
    Halted,
    Heartbeat,
    Hello,
    Left,
    Listed,
    Notice,
    Progress,
    Ready,
    Release,
    Sealed,
    Welcome,
)


class Arbiter:
    """State machine of one job under one leader."""

    def __init__(self, job: ArbiterJob, durable: Durable, term: int) -> None:
        self.state = initial_state(job, durable, term)
        self._is_deposed = term < durable.term

    @property
    def durable(self) -> Durable:
        """The facts as they are now (some may not be written yet)."""
        return self.state.durable

    @property
    def fence(self) -> Fence:
        """The fence of the newest STOP."""
        return self.state.fence

    def handle(self, event: Event, now: float, heard_at: float = inf) -> list[Effect]:
        """Effects of the event, in order. ``now``: real time; all else is attentive time.

        heard_at: see :meth:`PatientClock.read`.
        """
        if self._is_deposed:
            return []
        state = self.state
        is_word = isinstance(event, Received | Connected | Disconnected)
        state.is_behind = state.backlog.is_behind(now, heard_at, is_word=is_word)
        state.real_s, now = now, state.clock.read(now, heard_at)
        if self._note(event, now):
            self._act(now)
            state.check()
        effects = state.out.take()
        rounds.sent(state, effects, now)
        return effects

    def keep_time(self, now: float, heard_at: float = inf) -> None:
        """Time has passed, and nothing need be decided yet."""
        self.state.clock.read(now, heard_at)

    def skip_time(self, now: float) -> None:
        """Signs of life have been dropped until now, so nobody's silence counts."""
        self.state.clock.skip(now)

    # ------------------------------------------------------------ what events say

    def _note(self, event: Event, now: float) -> bool:
        """Whether something may be due now."""
        state = self.state
        match event:
            case Received(agent, message):
                return self._received(agent, message, now)
            case Connected(hello, key):
                self._connected(hello, key, now)
            case Disconnected(agent):
                losses.disconnected(state, agent, now)
            case Lost(agent, confirmed, evidence):
                losses.lose(state, agent, evidence, confirmed=confirmed)
            case NodeLeaves(agent, notice):
                if agent in state.membership.agents:
                    losses.noticed(state, agent, notice)
            case DesiredState():
                self._aim(event)
            case Persisted(version):
                state.out.persisted(version)
                return False
            case Planned(request, result):
                redundancy.answered(state, event)
                plans.planned(state, request, result, now)
            case Paced(timing):
                self._pace(timing, now)
                return False
            case Tick():
                losses.look(state, now)
        return True

    def _received(self, agent: AgentId, message: AgentMessage, now: float) -> bool:
        """Facts count from anyone, and words of a replaced stream are judged like any others.
        A suspect is reinstated on contact where it decides nothing, and by its answer to the newest
        STOP; else it has no vote."""
        state, membership = self.state, self.state.membership
        if newest_term(message) > state.term:
            return False
        if membership.knows(agent):
            self._learn(agent, message, now)
        if agent not in membership.agents:
            suspect = membership.suspected.get(agent)
            is_idle = isinstance(state.phase, Waiting | Running)
            if suspect is not None and suspect.is_connected and is_idle:
                membership.reinstate(agent)
            elif rounds.can_answer(state, agent, message):
                rounds.take_back(state, agent)
            else:
                self._record_from_suspect(agent, suspect, message, now)
                return not isinstance(message, Heartbeat)
        state.evidence.hear(agent, now)
        is_member = agent in membership.members
        match message:
            case Heartbeat():
                return is_member and self._beat(agent, message, now)
            case Ready():
                self._admit(agent, message, now)
            case Notice() if not message.is_hint:
                losses.noticed(state, agent, message)
            case AgentReport() if is_member:
                return self._report(agent, message)
            case Left() if is_member:
                losses.left(state, agent, message)
            case Halted() if is_member:
                losses.halted(state, agent, message)
            case Finished() if is_member:
                training.finished(state, agent, message)
            case _:
                pass
        return True

    def _learn(self, agent: AgentId, fact: AgentMessage, now: float) -> None:
        """Note a fact that is true whoever says it, and whenever."""
        state = self.state
        match fact:
            case Failure():
                losses.failed(state, agent, fact)
            case Progress():
                training.progressed(state, agent, fact, now)
            case Sealed():
                files.sealed(state, fact)
            case Listed():
                files.listed(state, agent, fact, now)
            case BadCheckpoint():
                files.bad_checkpoint(state, agent, fact, now)
            case Disputed():
                training.disputed(state, fact, now)

    def _beat(self, agent: AgentId, beat: Heartbeat, now: float) -> bool:
        """A member's state of this epoch; whether something may be due."""
        state = self.state
        if beat.fence != state.fence:
            return False
        if beat.activity is None:
            state.stalls.activities.pop(agent, None)
        else:
            state.stalls.activities[agent] = beat.activity
        held = [s for s in beat.suspicions if s.fence == state.fence]
        is_news = state.evidence.suspect(agent, held, now)
        if is_news:
            losses.look(state, now)
        return is_news

    def _record_from_suspect(
        self, agent: AgentId, suspect: Suspect | None, message: AgentMessage, now: float
    ) -> None:
        """Keep words that come once in a session; they count if the suspect is reinstated."""
        if suspect is None or suspect.record is None:
            return
        if isinstance(message, Notice) and not message.is_hint:
            suspect.record.will_leave(self.state.real_s + message.lead_s)
        elif isinstance(message, Ready):
            refusal = self.state.membership.admit(agent, suspect.record, message, now)
            if refusal is not None:
                self.state.membership.suspected[agent] = Suspect(refusal.message, None)
                self.state.fence_suspect(agent)  # nobody waits for it
                self.state.reconsider()

    # ------------------------------------------------------------ agents

    def _connected(self, hello: Hello, key: bytes, now: float) -> None:
        state, agent = self.state, hello.agent
        state.out.at_once(Send(agent, self._welcome()))
        if hello.fence.term > state.term:
            return  # from our term an agent of a later leader sees that it has to look further
        if isinstance(state.phase, Over):
            state.out.after_facts(Send(agent, Release(0, self.durable.reason)))
            return
        if agent in state.membership.fenced:
            state.out.after_facts(Send(agent, Release(ExitCode.FENCED, "left out of the plan")))
            return
        if last_write.refuses(state, agent):
            last_write.release(state, agent)
            return
        state.evidence.hear(agent, now)
        if isinstance(state.phase, Waiting):
            state.membership.remember(hello)
        state.membership.connect(hello, key)
        if text := foreign(hello):
            losses.foreign(state, agent, text)
        elif agent in state.membership.members:
            self._returned(agent, hello, now)

    def _welcome(self) -> Welcome:
        job, timing = self.state.job, self.state.job.timing
        return Welcome(
            self.state.term,
            job.name,
            job.uid,
            job.spec_json,
            heartbeat_s=timing.heartbeat_s,
            lease_s=timing.lease_s,
            start_s=job.spec.run_policy.start_deadline_s,
            instruction_floor_s=timing.instruction_floor_s,
        )

    def take_args(self, spec: JobSpec) -> None:
        """Welcome agents with the args of this spec, which is the same otherwise."""
        self.state.job = replace(self.state.job, spec=spec, spec_json=specs.to_json(spec))

    def _pace(self, timing: Timing, now: float) -> None:
        """Agents take the pace from a new Welcome; they answer it as at the start of a session.

        Silence begins anew: the shorter bound must not count the time of the longer one.
        """
        state = self.state
        state.job = replace(state.job, timing=timing)
        state.evidence.patience = timing.patience
        for agent in sorted(state.membership.in_session()):
            state.evidence.hear(agent, now)
            state.out.at_once(Send(agent, self._welcome()))

    def _returned(self, agent: AgentId, hello: Hello, now: float) -> None:
        """A member's new session: what it may have missed is sent again."""
        state = self.state
        if isinstance(state.phase, Returning):
            return
        if isinstance(state.phase, Collecting) and agent not in state.phase.reports:
            state.out.after_facts(Send(agent, state.stop()))
        elif hello.fence < state.fence:
            rounds.begin(state, f"{agent} came back without its state", cause=[agent])
        elif isinstance(state.phase, Holding) and agent in state.listing.asked:
            state.out.after_facts(Send(agent, state.stop(want_manifests=True)))
        elif isinstance(state.phase, Running):
            assert state.in_force is not None
            state.out.after_facts(Send(agent, state.in_force.directives[agent]))
            if agent in state.in_force.continuations:
                state.out.after_facts(Send(agent, state.in_force.continuations[agent]))

    def _admit(self, agent: AgentId, ready: Ready, now: float) -> None:
        state, record = self.state, self.state.membership.agents[agent]
        refusal = state.membership.admit(agent, record, ready, now)
        if refusal is not None:
            losses.refuse(state, agent, refusal)
        elif agent in state.membership.members:
            refusals.look_at_newcomers(state)

    def _report(self, agent: AgentId, report: AgentReport) -> bool:
        """The numbers in it end where the job's do, or the planner would not. Whether something
        may be due: only the last report decides, and ticks find those that are late."""
        state = self.state
        ready = state.membership.agents[agent].ready
        if ready is None:
            return False  # it says that it is ready before it reports
        if what := impossible(report, Extent.of(state.job.spec, rounds.batch_of(state), ready)):
            losses.misreported(state, agent, what)
            return True
        rounds.reported(state, agent, report)
        return not rounds.is_waiting_for_reports(state)

    def _aim(self, desired: DesiredState) -> None:
        """A change of the desired state gives agents without a seat another chance."""
        state, before = self.state, self.state.desired
        state.desired, state.membership.drained = desired, desired.drained
        if before is None or _concerns_agents(before, desired):
            state.membership.without_seat.clear()
            if isinstance(state.phase, Holding):
                rounds.begin(state, "the desired state has changed")
            elif isinstance(state.phase, Planning):  # for a state that is not wanted any more
                state.reconsider()

    # ------------------------------------------------------------ what is due

    def _act(self, now: float) -> None:
        """Do what is due in the present phase; called after every event that may change that."""
        state, desired = self.state, self.state.desired
        if desired is None or last_write.expire(state, now):
            return
        match state.phase:
            case Returning():
                self._try_return(state.phase, now)
            case Collecting():
                losses.overdue(state, now)
                training.settle(state, now)
                rounds.go_on(state, now)
            case Holding():
                rounds.retry(state, now)
            case Planning():
                plans.await_plan(state, now)
            case Running():
                self._try_change(now)
            case Over():
                endings.resume(state, desired, now)
            case _:
                pass
        files.go_back(state, desired, now)
        if isinstance(state.phase, Waiting):
            self._try_start(state.phase, desired, now)

    def _try_start(self, phase: Waiting, desired: DesiredState, now: float) -> None:
        """From nothing, or from a checkpoint: with a full grid."""
        state, membership, spec = self.state, self.state.membership, self.state.job.spec
        stages, adjacency = spec.pipelines.stages, spec.placement.adjacency
        usable = membership.usable()
        if desired.suspended:
            endings.rest(state, phase)
            return
        most = desired.pipelines

        def fitting(agents: Set[AgentId]) -> int:
            zones = membership.zones(agents)
            return feasible_pipelines(zones, stages=stages, most=most, adjacency=adjacency)

        fit = fitting(usable)
        if fit < desired.at_least:
            phase.detail = (
                f"{counted(len(usable), 'agent')} ready; {desired.at_least} x {stages} are needed"
                f" at least, ring neighbours in different zones ({adjacency})"
            )
            return
        expected = desired.expected - usable
        if fit < most and expected and now < membership.ready_at + state.job.timing.start_grace_s:
            phase.detail = (
                f"{fit} of {most} pipelines can start; {counted(len(expected), 'agent')} awaited"
            )
            return
        strangers = membership.strangers(usable, state.processor, lambda x: fitting(x) >= most)
        if strangers:
            for agent, refusal in sorted(strangers.items()):
                losses.refuse(state, agent, refusal)
            self._try_start(phase, desired, now)  # the others may be enough
            return
        membership.members = usable
        membership.idle.clear()
        rounds.begin(state, endings.beginning(state))

    def _try_return(self, phase: Returning, now: float) -> None:
        """A new leader goes on from where the members are, once they are back."""
        state = self.state
        phase.until = min(phase.until, now + state.job.timing.return_s)
        members = state.membership.members
        away = {a for a in members if not state.membership.is_connected(a)}
        if away and now < phase.until:
            phase.detail = f"{counted(len(away), 'member')} awaited"
            return
        for agent in sorted(away):
            why = "did not come back to the new leader"
            losses.lose(state, agent, why, confirmed=False)
        rounds.begin(state, "a new leader")

    def _try_change(self, now: float) -> None:
        if endings.has_finished(self.state):
            if last_write.is_due(self.state, now):
                rounds.begin(self.state, "the last checkpoint is to be written again")
            else:
                endings.complete(self.state)
            return
        plans.await_continuations(self.state, now)
        if not isinstance(self.state.phase, Running):
            return
        changes.note_straggler(self.state, now)
        why, cause = changes.due(self.state, now)
        if why:
            rounds.begin(self.state, why, cause=cause)

    # ------------------------------------------------------------ status

    def glance(self) -> Glance:
        """The part of the snapshot of which users hear soon."""
        return snapshots.glance(self.state)

    def status(self) -> ArbiterStatus:
        """A snapshot for status, events and metrics."""
        return snapshots.status(self.state)


def _concerns_agents(before: DesiredState, desired: DesiredState) -> bool:
    """Whether the desired state has changed in something for which agents may be of use."""
    kept = replace(
        before,
        expected=desired.expected,
        bandwidth_gbps=desired.bandwidth_gbps,
        last_write_s=desired.last_write_s,
    )
    return kept != desired


def initial_state(job: ArbiterJob, durable: Durable, term: int) -> State:
    """The state of a new leader, who knows only the durable facts."""
    out = Outbox(durable)
    durable = endings.aimed(out, job.spec, term)
    membership = Membership(job.spec, members=set(durable.members) - set(durable.departed))
    phase: Phase = Waiting()
    if durable.outcome is not None:
        phase = Over()
        membership.members.clear()
    elif membership.members:
        phase = Returning(inf)
    return State(
        job=job,
        term=term,
        out=out,
        membership=membership,
        evidence=Evidence(job.timing.patience),
        ledger=Ledger(job.spec.training.steps),
        epoch=durable.plan.epoch,
        phase=phase,
        protection=Protection(durable.hazard, durable.measured, durable.empty),
    )
