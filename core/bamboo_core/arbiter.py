"""The arbiter of one job: who takes part, from which facts training goes on, when it is over.

Pure: the shell feeds events with ``now`` (any clock that does not go back) and performs effects.
One leader at a time is in force, by its term; a deposed one falls silent. What a change is made of
stands in :mod:`bamboo_core.rounds`; here stands what leads to one.
"""

from __future__ import annotations

from dataclasses import replace

from bamboo_core import changes
from bamboo_core.arbitration import (
    ArbiterJob,
    ArbiterStatus,
    Connected,
    Disconnected,
    Effect,
    Event,
    Goal,
    Happening,
    Lost,
    Persisted,
    Phase,
    Planned,
    Received,
    Send,
    Severity,
    Tick,
)
from bamboo_core.durable import Durable, eligible, with_manifest
from bamboo_core.evidence import Evidence, expel
from bamboo_core.ids import AgentId, Fence
from bamboo_core.member import ExitCode
from bamboo_core.messages import (
    AgentMessage,
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
    Report,
    Sealed,
    Stop,
    Suspicion,
    Welcome,
)
from bamboo_core.outbox import Outbox
from bamboo_core.plan import layers_of
from bamboo_core.program import Op
from bamboo_core.reasons import Reason
from bamboo_core.roster import Roster
from bamboo_core.rounds import Doubt, Rounds
from bamboo_core.view import Outcome
from bamboo_core.zones import feasible_pipelines


class Arbiter:
    """State machine of one job under one leader."""

    def __init__(self, job: ArbiterJob, durable: Durable, term: int) -> None:
        self._job, self._spec, self._timing = job, job.spec, job.timing
        self._term = term
        self._out = Outbox(durable)
        self._out.save(term=max(term, durable.term))
        self._roster = Roster(job.spec)
        self._evidence = Evidence(job.timing.patience)
        self._rounds = Rounds(job, self._out, self._roster, term)
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
        if plan is None or self._rounds.phase is Phase.OVER:
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
                if agent not in self._roster.agents:
                    return
                self._evidence.hear(agent, now)
                if isinstance(message, Heartbeat):
                    return
                self._received(agent, message, now)
            case Connected(hello, key):
                self._connected(hello, key, now)
            case Disconnected(agent):
                self._disconnected(agent, now)
            case Lost(agent, confirmed, evidence):
                self._lose(agent, evidence, confirmed=confirmed, now=now)
            case Goal():
                self._aim(event, now)
            case Persisted(version):
                self._out.persisted(version)
                return
            case Planned(id, result):
                if id == rounds.request and rounds.phase is Phase.PLANNING:
                    self._evidence.begin_epoch()
                    rounds.planned(result, now)
            case Tick():
                self._look(now)
        self._consider(now)

    def _aim(self, goal: Goal, now: float) -> None:
        """A goal that asks for something else gives agents without a part another chance."""
        rounds, before = self._rounds, self._rounds.goal
        rounds.goal, self._roster.drained = goal, goal.drained
        if before is None or replace(before, expected=goal.expected) != goal:
            rounds.unseated.clear()
            if rounds.phase is Phase.HOLDING:
                self._begin("the goal has changed", now)

    def _connected(self, hello: Hello, key: bytes, now: float) -> None:
        agent, job, timing = hello.agent, self._job, self._timing
        if hello.fence.term > self._term:
            self._depose(hello)
            return
        welcome = Welcome(
            self._term, job.name, job.uid, job.spec_json, timing.heartbeat_s, timing.lease_s
        )
        self._out.at_once(Send(agent, welcome))
        if self._rounds.phase is Phase.OVER:
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

    def _disconnected(self, agent: AgentId, now: float) -> None:
        known = self._roster.agents.get(agent)
        if known is not None:
            known.is_connected = False
            self._evidence.disconnect(agent, now)
            self._look(now)
        elif agent in self._rounds.doubted:
            why, _ = self._rounds.doubted[agent]
            self._rounds.doubted[agent] = Doubt(why, None)

    def _returned(self, agent: AgentId, hello: Hello, now: float) -> None:
        """A member's new session: what it may have missed is said again."""
        rounds = self._rounds
        if rounds.phase is Phase.RETURNING:
            return
        if rounds.phase is Phase.COLLECTING and agent not in rounds.reports:
            self._out.after_facts(Send(agent, Stop(rounds.fence)))
        elif hello.fence < rounds.fence:
            self._begin(f"{agent} came back without its state", now)
        elif rounds.phase is Phase.RUNNING:
            self._out.after_facts(Send(agent, rounds.directives[agent]))

    def _depose(self, hello: Hello) -> None:
        self._is_deposed = True
        self._out.withdraw(lambda _: True)
        text = f"{hello.agent} follows term {hello.fence.term}, ours is {self._term}"
        self._rounds.record(Happening.LEADERSHIP_LOST, text, Severity.WARNING)

    def _received(self, agent: AgentId, message: AgentMessage, now: float) -> None:
        rounds = self._rounds
        is_member = agent in rounds.members
        match message:
            case Ready():
                self._admit(agent, message, now)
            case Report() if is_member:
                rounds.reported(agent, message)
            case Progress() if is_member:
                self._progressed(agent, message, now)
            case Suspicion() if is_member and message.fence == rounds.fence:
                self._evidence.suspect(message.agent, agent, message.cause, now)
                self._look(now)
            case Notice():
                self._noticed(agent, message, now)
            case Failure():
                self._failed(agent, message, now)
            case Sealed() if is_member:
                self._sealed(message)
            case BadCheckpoint():
                self._bad_checkpoint(message, now)
            case Left() if is_member:
                self._left(agent)
            case Finished() if is_member and message.fence == rounds.fence:
                rounds.finished.add(agent)
            case _:
                pass

    # ------------------------------------------------------------ agents

    def _admit(self, agent: AgentId, ready: Ready, now: float) -> None:
        rounds = self._rounds
        refusal = self._roster.admit(agent, ready, rounds.members, now)
        if refusal is None:
            return
        if self.durable.plan == Fence():
            rounds.end(Outcome.FAILED, refusal.reason, refusal.message)
            return
        rounds.record(Happening.AGENT_REFUSED, refusal.message, Severity.WARNING, agent=agent)
        self._lose(agent, refusal.reason, confirmed=False, now=now)
        rounds.fence_off()

    def _noticed(self, agent: AgentId, notice: Notice, now: float) -> None:
        known = self._roster.agents[agent]
        is_news = not self._roster.is_departing(agent)
        known.departs_at = min(known.departs_at, now + notice.lead_s)
        if is_news and agent in self._rounds.members:
            text = f"{agent} will go away in {notice.lead_s:g} s ({notice.reason})"
            self._rounds.record(Happening.AGENT_LEAVING, text, agent=agent)

    def _failed(self, agent: AgentId, failure: Failure, now: float) -> None:
        """The worker's process is gone for certain, and its state with it."""
        text = f"{agent}: {failure.reason}: {failure.message}"
        if failure.user_error:
            self._rounds.end(Outcome.FAILED, Reason.USER_CODE_FAILED, text)
            return
        self._rounds.record(Happening.WORKER_FAILED, text, Severity.WARNING, agent=agent)
        self._lose(agent, f"worker ended: {failure.reason}", confirmed=True, now=now)

    def _left(self, agent: AgentId) -> None:
        """EXIT has run; a stop that came too late for it does without its report."""
        plan = self._rounds.plan
        if plan is not None and agent in plan.live:
            return
        self._rounds.remove(agent)
        text = f"{agent} has handed over what it held"
        self._rounds.record(Happening.AGENT_LEFT, text, agent=agent)
        if self._roster.is_departing(agent):
            self._rounds.let_go(agent)
            self._evidence.forget(agent)

    def _lose(self, agent: AgentId, why: str, *, confirmed: bool, now: float) -> None:
        """An agent does not count any more. If its end is not certain, it is fenced only by the
        next plan: until then it may come back, as a newcomer whose holdings are facts."""
        rounds, was_member = self._rounds, agent in self._rounds.members
        if confirmed:
            rounds.dead.add(agent)
            if rounds.phase is not Phase.OVER:  # its log is all that is left of the job
                rounds.dismiss(agent, why)
        elif agent in self._roster.agents or was_member:
            rounds.doubt(agent, why)
        self._evidence.forget(agent)
        if not was_member:
            return
        rounds.remove(agent)
        rounds.record(Happening.AGENT_LOST, f"{agent}: {why}", Severity.WARNING, agent=agent)
        if rounds.phase is not Phase.RUNNING:
            return
        if self._is_dispensable(agent):
            rounds.fence_off()
        else:
            self._begin(f"{agent} is lost", now)

    def _is_dispensable(self, agent: AgentId) -> bool:
        """Nobody can be waiting for it: all have finished, or it only had to help with a step
        that is committed, or it learns. (One that has finished may have died with its last
        messages unsent; one that learns may hold what nobody else has.)
        """
        rounds = self._rounds
        assert rounds.plan is not None
        if agent in rounds.plan.learns:
            programs = (d.resume for d in rounds.directives.values())
            return not any(x.op is Op.RECV and x.peer == agent for p in programs for x in p)
        if agent in rounds.finished:
            return rounds.finished >= rounds.members.intersection(rounds.plan.live)
        newest, target = rounds.ledger.committed, rounds.plan.target
        done = newest is not None and newest.step > target and not self._is_unsealed(target)
        return done and agent in rounds.plan.leaving

    def _is_unsealed(self, step: int) -> bool:
        """Whether a checkpoint of the step may still wait for somebody's files."""
        checkpoint = self._spec.checkpoint
        if checkpoint is None or not checkpoint.every_steps or step % checkpoint.every_steps:
            return False
        mark = (self.durable.attempt, step)
        sealed = {(m.attempt, m.step) for m in self.durable.manifests}
        return step > 0 and mark not in sealed and mark not in self.durable.bad

    def _look(self, now: float) -> None:
        """Draw conclusions from who has been silent."""
        rounds = self._rounds
        self._evidence.look(now)
        if rounds.phase in (Phase.OVER, Phase.RETURNING):
            return
        known = rounds.members | self._roster.agents.keys()
        for agent, why in self._evidence.lost(known, now):
            self._lose(agent, why, confirmed=False, now=now)
        if rounds.phase is Phase.RUNNING:
            self._mend(now)

    def _mend(self, now: float) -> None:
        """Links that are broken though both ends live: once a new epoch, then one end goes."""
        rounds = self._rounds
        links = self._evidence.broken(
            rounds.members,
            progress_at=rounds.ledger.progress_at,
            patience_s=2 * rounds.ledger.step_s,
            now=now,
        )
        if not links:
            return
        again = [link for link in links if link in self._evidence.tried]
        self._evidence.tried.update(links)
        for agent in expel(again, self._is_sole_holder):
            self._lose(agent, "cut off from other members", confirmed=False, now=now)
        if rounds.phase is Phase.RUNNING:
            pairs = ", ".join(f"{a}-{b}" for a, b in links)
            self._begin(f"connections are broken: {pairs}", now)

    def _is_sole_holder(self, agent: AgentId) -> bool:
        plan = self._rounds.plan
        if plan is None:
            return False
        others = {
            x
            for a, r in plan.wants.items()
            if a in self._rounds.members and a != agent
            for x in layers_of(r)
        }
        return any(x not in others for x in layers_of(plan.wants.get(agent, ())))

    # ------------------------------------------------------------ training

    def _progressed(self, agent: AgentId, progress: Progress, now: float) -> None:
        rounds, step = self._rounds, progress.commit.step
        if rounds.plan is not None and agent in rounds.plan.learns:
            newest = rounds.ledger.committed
            if step >= max(rounds.plan.target, newest.step if newest is not None else 0):
                rounds.learned.add(agent)
        if rounds.ledger.learn(progress, now):
            self._evidence.settle()
            if rounds.plan is not None and step >= rounds.plan.target:
                rounds.is_loading = False
                rounds.resumed(step, now)

    def _sealed(self, sealed: Sealed) -> None:
        manifest = sealed.manifest
        if manifest.attempt != self.durable.attempt:
            return
        known = with_manifest(self.durable.manifests, manifest)
        if known != self.durable.manifests:
            self._out.save(manifests=known)
            text = f"checkpoint of step {manifest.step} is complete: {manifest.path}"
            self._rounds.record(Happening.CHECKPOINT_SEALED, text)

    def _bad_checkpoint(self, bad: BadCheckpoint, now: float) -> None:
        rounds, mark, base = self._rounds, (bad.attempt, bad.step), self.durable.manifest
        text = f"checkpoint of step {bad.step} cannot be used: {bad.message}"
        if mark not in self.durable.bad:
            self._out.save(bad=(*self.durable.bad, mark))
            rounds.record(Happening.CHECKPOINT_BAD, text, Severity.WARNING)
        if base is not None and (base.attempt, base.step) == mark:
            rounds.restore(text, now)
        elif rounds.phase is Phase.RUNNING and rounds.loads_from(*mark):
            self._begin(text, now)

    # ------------------------------------------------------------ what is due

    def _begin(self, why: str, now: float) -> None:
        self._evidence.begin_epoch()
        self._rounds.begin(why, now)

    def _consider(self, now: float) -> None:
        """Act if something is due; called after every event that may change that."""
        rounds = self._rounds
        if rounds.goal is None:
            return
        match rounds.phase:
            case Phase.RETURNING:
                self._try_return(now)
            case Phase.COLLECTING:
                self._hurry(now)
                rounds.try_decide(now)
            case Phase.HOLDING:
                rounds.try_again(now)
            case Phase.RUNNING:
                self._try_change(rounds.goal, now)
            case Phase.OVER:
                self._try_resume(rounds.goal, now)
            case _:
                pass
        if rounds.phase is Phase.WAITING:
            self._try_start(rounds.goal, now)

    def _try_start(self, goal: Goal, now: float) -> None:
        """From nothing, or from a checkpoint: with a full grid."""
        rounds, usable, pipelines = self._rounds, self._roster.usable(), self._spec.pipelines
        if goal.suspended:
            rounds.end(Outcome.SUSPENDED, Reason.USER_REQUESTED, "nothing was running")
            return
        adjacency = self._spec.placement.adjacency
        zones, most = self._roster.zones(usable), goal.pipelines
        fit = feasible_pipelines(zones, stages=pipelines.stages, most=most, adjacency=adjacency)
        if fit < max(1, min(pipelines.min, most)):
            rounds.detail = (
                f"{len(usable)} agents are ready; {pipelines.min} x {pipelines.stages} are needed"
                f" at least, ring neighbours in different zones ({adjacency})"
            )
            return
        hoped = goal.expected - usable
        if fit < most and hoped and now < self._roster.ready_at + self._timing.start_grace_s:
            rounds.detail = f"{fit} of {most} pipelines can start; {len(hoped)} agents are awaited"
            return
        rounds.members = usable
        self._begin("the job starts", now)

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
            self._lose(agent, "did not come back to the new leader", confirmed=False, now=now)
        self._begin("a new leader", now)

    def _hurry(self, now: float) -> None:
        """Who has not reported in time is lost."""
        rounds = self._rounds
        if now >= rounds.deadline:
            for agent in sorted(rounds.members - rounds.reports.keys()):
                self._lose(agent, "no report in time", confirmed=False, now=now)

    def _try_change(self, goal: Goal, now: float) -> None:
        rounds = self._rounds
        assert rounds.plan is not None
        if rounds.finished and rounds.finished >= rounds.members.intersection(rounds.plan.live):
            self._complete()
            return
        why = changes.due(
            plan=rounds.plan,
            goal=goal,
            members=rounds.members,
            departures=self._roster.departures(),
            standby=rounds.standby(),
            fresh=rounds.standby() - rounds.unseated,
            is_settled=now >= self._roster.ready_at + self._timing.join_grace_s,
            is_suspending=rounds.is_suspending,
            learned=rounds.learned,
            ledger=rounds.ledger,
            now=now,
        )
        if why:
            self._begin(why, now)

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

    def _try_resume(self, goal: Goal, now: float) -> None:
        if goal.suspended or self.durable.outcome is not Outcome.SUSPENDED:
            return
        self._out.save(outcome=None, reason="", message="")
        if self.durable.plan == Fence():
            self._rounds.phase = Phase.WAITING
        else:
            self._rounds.restore("the job is resumed", now)
