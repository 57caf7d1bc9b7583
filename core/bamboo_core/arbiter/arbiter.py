"""The arbiter of one job: who takes part, from which facts training goes on, when it is over.

Pure: the shell feeds events with ``now`` (any clock that does not go back) and performs effects.
One leader at a time is in force, by its term; a deposed one falls silent. What a change is made of
stands in :mod:`bamboo_core.arbiter.rounds`, who is lost in :mod:`bamboo_core.arbiter.losses`; here
stands what else leads to one.
"""

from __future__ import annotations

from dataclasses import replace

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import Reason
from bamboo_core.arbiter import changes
from bamboo_core.arbiter.durable import Durable, eligible, with_manifest
from bamboo_core.arbiter.events import (
    ArbiterJob,
    ArbiterPhase,
    ArbiterStatus,
    Connected,
    DesiredState,
    Disconnected,
    Effect,
    Event,
    Lost,
    Persisted,
    Planned,
    Received,
    Send,
    Tick,
)
from bamboo_core.arbiter.evidence import Evidence
from bamboo_core.arbiter.losses import Losses
from bamboo_core.arbiter.membership import Membership
from bamboo_core.arbiter.outbox import Outbox
from bamboo_core.arbiter.rounds import Doubt, Rounds
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.placement.plan import layers_of
from bamboo_core.placement.zones import feasible_pipelines
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    BadCheckpoint,
    Failure,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Notice,
    Progress,
    Ready,
    Release,
    Sealed,
    Stop,
    Suspicion,
    Welcome,
)


class Arbiter:
    """State machine of one job under one leader."""

    def __init__(self, job: ArbiterJob, durable: Durable, term: int) -> None:
        self._job, self._spec, self._timing = job, job.spec, job.timing
        self._term = term
        self._out = Outbox(durable)
        self._out.save(term=max(term, durable.term))
        self._roster = Membership(job.spec)
        self._evidence = Evidence(job.timing.patience)
        self._rounds = Rounds(job, self._out, self._roster, self._evidence, term)
        self._losses = Losses(job, self._evidence, self._roster, self._rounds)
        self._return_by: float | None = None
        self._is_deposed = term < durable.term

    # ------------------------------------------------------------ outside

    @property
    def durable(self) -> Durable:
        """The facts as they are now (some may not be written yet)."""
        return self._out.durable

    @property
    def fence(self) -> Fence:
        """What the newest STOP carries."""
        return self._rounds.fence

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about the event, in order."""
        if self._is_deposed:
            return []
        self._dispatch(event, now)
        return self._out.take()

    def status(self) -> ArbiterStatus:
        """A snapshot for status, events and metrics."""
        rounds, durable = self._rounds, self.durable
        return ArbiterStatus(
            phase=rounds.phase,
            detail=rounds.detail,
            fence=rounds.fence,
            plan=rounds.plan,
            members=tuple(sorted(rounds.members)),
            connected=self._roster.connected(),
            ready=self._roster.ready(),
            standby=tuple(sorted(rounds.standby())),
            leaving=rounds.plan.leaving if rounds.plan is not None else (),
            committed=rounds.ledger.committed,
            validation_loss=rounds.ledger.validation_loss,
            step_s=rounds.ledger.step_s,
            checkpoint=next(reversed(eligible(durable)), None),
            copies=self._copies(),
            outcome=durable.outcome,
            reason=durable.reason,
            message=durable.message,
        )

    def _copies(self) -> dict[int, int]:
        """layer -> live agents that hold it by plan."""
        plan = self._rounds.plan
        if plan is None or self._rounds.phase is ArbiterPhase.OVER:
            return {}
        count = dict.fromkeys(range(plan.layers), 0)
        for agent, ranges in plan.wants.items():
            if agent in self._rounds.members:
                for layer in layers_of(ranges):
                    count[layer] += 1
        return count

    # ------------------------------------------------------------ events

    def _dispatch(self, event: Event, now: float) -> None:
        rounds = self._rounds
        match event:
            case Received(agent, message):
                if agent not in self._roster.agents and not self._is_back(agent):
                    self._record_from_suspect(agent, message, now)
                    return
                self._evidence.hear(agent, now)
                if isinstance(message, Heartbeat):
                    return
                self._received(agent, message, now)
            case Connected(hello, key):
                self._connected(hello, key, now)
            case Disconnected(agent):
                self._losses.disconnected(agent, now)
            case Lost(agent, confirmed, evidence):
                self._losses.lose(agent, evidence, confirmed=confirmed, now=now)
            case DesiredState():
                self._aim(event, now)
            case Persisted(version):
                self._out.persisted(version)
                return
            case Planned(id, result):
                if id == rounds.request and rounds.phase is ArbiterPhase.PLANNING:
                    rounds.planned(result, now)
            case Tick():
                self._losses.look(now)
        self._consider(now)

    def _aim(self, goal: DesiredState, now: float) -> None:
        """A goal that asks for something else gives agents without a part another chance."""
        rounds, before = self._rounds, self._rounds.goal
        rounds.goal, self._roster.drained = goal, goal.drained
        if before is None or replace(before, expected=goal.expected) != goal:
            rounds.without_seat.clear()
            if rounds.phase is ArbiterPhase.HOLDING:
                self._rounds.begin("the goal has changed", now)
            elif rounds.phase is ArbiterPhase.PLANNING:  # for a goal that is not wanted any more
                rounds.reconsider()

    def _connected(self, hello: Hello, key: bytes, now: float) -> None:
        agent, job, timing = hello.agent, self._job, self._timing
        if hello.fence.term > self._term:
            self._depose(hello)
            return
        welcome = Welcome(
            self._term, job.name, job.uid, job.spec_json, timing.heartbeat_s, timing.lease_s
        )
        self._out.at_once(Send(agent, welcome))
        if self._rounds.phase is ArbiterPhase.OVER:
            self._out.after_facts(Send(agent, Release(0, self.durable.reason)))
            return
        if agent in self._rounds.fenced:
            self._out.after_facts(Send(agent, Release(ExitCode.FENCED, "left out of the plan")))
            return
        self._rounds.doubted.pop(agent, None)
        self._evidence.hear(agent, now)
        self._roster.connect(hello, key)
        if agent in self._rounds.members:
            self._returned(agent, hello, now)

    def _is_back(self, agent: AgentId) -> bool:
        """Who has no part decides nothing: heard again, it counts again, so that nobody has to do
        without it when it is needed."""
        _, known = self._rounds.doubted.get(agent, ("", None))
        is_idle = self._rounds.phase in (ArbiterPhase.WAITING, ArbiterPhase.RUNNING)
        if not is_idle or known is None or not known.is_connected:
            return False
        del self._rounds.doubted[agent]
        self._roster.agents[agent] = known
        return True

    def _record_from_suspect(self, agent: AgentId, message: AgentMessage, now: float) -> None:
        """What is said once counts as soon as the agent does again."""
        rounds = self._rounds
        _, known = rounds.doubted.get(agent, ("", None))
        if known is None:
            return
        if isinstance(message, Notice):
            known.will_leave(now + message.lead_s)
        elif isinstance(message, Ready):
            refusal = self._roster.admit(agent, known, message, rounds.members, now)
            if refusal is not None:
                rounds.doubted[agent] = Doubt(refusal.message, None)

    def _returned(self, agent: AgentId, hello: Hello, now: float) -> None:
        """A member's new session: what it may have missed is said again."""
        rounds = self._rounds
        if rounds.phase is ArbiterPhase.RETURNING:
            return
        if rounds.phase is ArbiterPhase.COLLECTING and agent not in rounds.reports:
            self._out.after_facts(Send(agent, Stop(rounds.fence)))
        elif hello.fence < rounds.fence:
            self._rounds.begin(f"{agent} came back without its state", now)
        elif rounds.phase is ArbiterPhase.RUNNING:
            self._out.after_facts(Send(agent, rounds.directives[agent]))

    def _depose(self, hello: Hello) -> None:
        self._is_deposed = True
        self._out.withdraw(lambda _: True)
        text = f"{hello.agent} follows term {hello.fence.term}, ours is {self._term}"
        self._rounds.record(EventReason.LEADERSHIP_LOST, text, Severity.WARNING)

    def _received(self, agent: AgentId, message: AgentMessage, now: float) -> None:
        rounds = self._rounds
        is_member = agent in rounds.members
        match message:
            case Ready():
                self._admit(agent, message, now)
            case AgentReport() if is_member:
                rounds.reported(agent, message)
            case Progress() if is_member:
                self._progressed(agent, message, now)
            case Suspicion() if is_member and message.fence == rounds.fence:
                self._evidence.suspect(message.agent, agent, message.cause, now)
                self._losses.look(now)
            case Notice():
                self._losses.noticed(agent, message, now)
            case Failure():
                self._losses.failed(agent, message, now)
            case Sealed() if is_member:
                self._sealed(message)
            case BadCheckpoint():
                self._bad_checkpoint(message, now)
            case Left() if is_member:
                self._losses.left(agent)
            case Finished() if is_member and message.fence == rounds.fence:
                rounds.finished.add(agent)
            case _:
                pass

    # ------------------------------------------------------------ agents

    def _admit(self, agent: AgentId, ready: Ready, now: float) -> None:
        rounds = self._rounds
        known = self._roster.agents[agent]
        refusal = self._roster.admit(agent, known, ready, rounds.members, now)
        if refusal is None:
            return
        if self.durable.plan == Fence():
            rounds.end(Outcome.FAILED, refusal.reason, refusal.message)
            return
        rounds.record(
            EventReason.AGENT_REFUSED,
            refusal.message,
            Severity.WARNING,
            facts={EventFact.AGENTS: agent},
        )
        self._losses.lose(agent, refusal.reason, confirmed=False, now=now)
        rounds.fence_off()

    # ------------------------------------------------------------ training

    def _progressed(self, agent: AgentId, progress: Progress, now: float) -> None:
        rounds, step = self._rounds, progress.commit.step
        if self._roster.agents[agent].attempt != self.durable.attempt:
            return  # said late: it was out of reach when the attempt ended
        if rounds.plan is not None and agent in rounds.plan.learners:
            newest = rounds.ledger.committed
            if step >= max(rounds.plan.target, newest.step if newest is not None else 0):
                rounds.caught_up.add(agent)
        if rounds.ledger.learn(progress, now):
            self._evidence.settle()
            if rounds.plan is not None and step >= rounds.plan.target:
                rounds.is_loading = False
                rounds.resumed(step, now)

    def _sealed(self, sealed: Sealed) -> None:
        manifest, durable = sealed.manifest, self.durable
        if manifest.attempt != durable.attempt:
            return
        known, bad = with_manifest(durable.manifests, manifest), durable.bad
        if self._rounds.writes_anew(manifest.step):
            bad = tuple(mark for mark in bad if mark != (manifest.attempt, manifest.step))
        if (known, bad) != (durable.manifests, durable.bad):
            self._out.save(manifests=known, bad=bad)
            text = f"checkpoint of step {manifest.step} is complete: {manifest.path}"
            self._rounds.record(EventReason.CHECKPOINT_SEALED, text)

    def _bad_checkpoint(self, bad: BadCheckpoint, now: float) -> None:
        """It is not read any more; whether a layer is lost with it is for the next plan to find
        out, since what was read before lives on."""
        rounds, mark = self._rounds, (bad.attempt, bad.step)
        text = f"checkpoint of step {bad.step} cannot be used: {bad.message}"
        if mark not in self.durable.bad:
            self._out.save(bad=(*self.durable.bad, mark))
            rounds.record(EventReason.CHECKPOINT_BAD, text, Severity.WARNING)
        if rounds.phase is ArbiterPhase.RUNNING and rounds.loads_from(*mark):
            self._rounds.begin(text, now)

    # ------------------------------------------------------------ what is due

    def _consider(self, now: float) -> None:
        """Act if something is due; called after every event that may change that."""
        rounds = self._rounds
        if rounds.goal is None:
            return
        match rounds.phase:
            case ArbiterPhase.RETURNING:
                self._try_return(now)
            case ArbiterPhase.COLLECTING:
                self._losses.hurry(now)
                rounds.try_decide(now)
            case ArbiterPhase.HOLDING:
                rounds.try_again(now)
            case ArbiterPhase.RUNNING:
                self._try_change(rounds.goal, now)
            case ArbiterPhase.OVER:
                self._try_resume(rounds.goal, now)
            case _:
                pass
        if rounds.phase is ArbiterPhase.WAITING:
            self._try_start(rounds.goal, now)

    def _try_start(self, goal: DesiredState, now: float) -> None:
        """From nothing, or from a checkpoint: with a full grid."""
        rounds, usable, stages = self._rounds, self._roster.usable(), self._spec.pipelines.stages
        if goal.suspended:
            rounds.end(Outcome.SUSPENDED, Reason.USER_REQUESTED, "nothing was running")
            return
        adjacency = self._spec.placement.adjacency
        zones, most = self._roster.zones(usable), goal.pipelines
        fit = feasible_pipelines(zones, stages=stages, most=most, adjacency=adjacency)
        if fit < goal.at_least:
            rounds.detail = (
                f"{len(usable)} agents are ready; {goal.at_least} x {stages} are needed"
                f" at least, ring neighbours in different zones ({adjacency})"
            )
            return
        hoped = goal.expected - usable
        if fit < most and hoped and now < self._roster.ready_at + self._timing.start_grace_s:
            rounds.detail = f"{fit} of {most} pipelines can start; {len(hoped)} agents are awaited"
            return
        rounds.members = usable
        self._rounds.begin("the job starts", now)

    def _try_return(self, now: float) -> None:
        """A new leader goes on from where the members are, once they are back."""
        rounds = self._rounds
        if self._return_by is None:
            self._return_by = now + self._timing.return_s
        away = {a for a in rounds.members if not self._roster.is_connected(a)}
        if away and now < self._return_by:
            rounds.detail = f"{len(away)} members are awaited"
            return
        for agent in sorted(away):
            self._losses.lose(
                agent, "did not come back to the new leader", confirmed=False, now=now
            )
        self._rounds.begin("a new leader", now)

    def _try_change(self, goal: DesiredState, now: float) -> None:
        rounds = self._rounds
        assert rounds.plan is not None
        all_have = rounds.finished >= rounds.members.intersection(rounds.plan.live)
        is_resumed = rounds.is_suspending and not goal.suspended
        if rounds.finished and all_have and not is_resumed:
            self._complete()
            return
        why = changes.due(
            plan=rounds.plan,
            goal=goal,
            members=rounds.members,
            departures=self._roster.departures(),
            standby=rounds.standby(),
            fresh=rounds.standby() - rounds.without_seat,
            is_settled=now >= self._roster.ready_at + self._timing.join_grace_s,
            is_suspending=rounds.is_suspending,
            caught_up=rounds.caught_up,
            is_overdue=now >= rounds.catch_up_by,
            ledger=rounds.ledger,
            now=now,
        )
        if why:
            self._rounds.begin(why, now)

    def _complete(self) -> None:
        rounds = self._rounds
        assert rounds.plan is not None
        if rounds.is_suspending:
            text = f"suspended after {rounds.plan.last} of {self._spec.training.steps} steps"
            if self._spec.checkpoint is None:
                text += "; without spec.checkpoint nothing was saved: it will begin from the start"
            elif self._is_unsaved(rounds.plan.last):
                text += f"; {self._cannot_save()}: it will begin from an older checkpoint"
            rounds.end(Outcome.SUSPENDED, Reason.USER_REQUESTED, text)
        elif self._is_unsaved(self._spec.training.steps):
            text = f"the trained weights are not saved: {self._cannot_save()}"
            rounds.end(Outcome.FAILED, Reason.CHECKPOINT_FAILED, text)
        else:
            text = f"all {self._spec.training.steps} steps are committed"
            rounds.end(Outcome.COMPLETE, Reason.STEPS_REACHED, text)

    def _is_unsaved(self, step: int) -> bool:
        """Whether this attempt's checkpoint of the step could not be written."""
        return (self.durable.attempt, step) in self.durable.bad

    def _cannot_save(self) -> str:
        assert self._spec.checkpoint is not None
        return f"spec.checkpoint.uri {self._spec.checkpoint.uri} could not be written"

    def _try_resume(self, goal: DesiredState, now: float) -> None:
        if goal.suspended or self.durable.outcome is not Outcome.SUSPENDED:
            return
        self._out.save(outcome=None, reason="", message="")
        if self.durable.plan == Fence():
            self._rounds.phase = ArbiterPhase.WAITING
        else:
            self._rounds.restore("the job is resumed", now)
