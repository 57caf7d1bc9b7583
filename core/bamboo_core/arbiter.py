"""The arbiter of one job: who takes part, from which facts training goes on, when it is over.

One mechanism for every change (DESIGN section 4): STOP -> reports -> plan -> durable -> directives.
Pure: the shell feeds events with ``now`` (any clock that does not go back) and performs effects.
One leader at a time is in force, by its term; a deposed one falls silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from bamboo_core import admission, changes
from bamboo_core.arbitration import (
    ArbiterJob,
    ArbiterStatus,
    ComputePlan,
    Connected,
    Decision,
    Disconnected,
    Dismiss,
    Effect,
    Event,
    Fatal,
    Goal,
    Happening,
    Lost,
    Over,
    Participant,
    Persisted,
    Phase,
    Planned,
    PlannerFault,
    PlanRequest,
    Received,
    Record,
    Send,
    Severity,
    Tick,
    Unplaceable,
)
from bamboo_core.durable import Durable, Fork, eligible, with_manifest
from bamboo_core.evidence import Evidence, expel
from bamboo_core.ids import AgentId, Fence
from bamboo_core.messages import (
    AgentMessage,
    BadCheckpoint,
    CommitRecord,
    Directive,
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
from bamboo_core.numerics import BatchShape, choose
from bamboo_core.outbox import Outbox
from bamboo_core.plan import Plan, layers_of
from bamboo_core.reasons import Reason
from bamboo_core.view import Outcome
from bamboo_core.zones import feasible_pipelines

_DRAINED = 143
_FENCED = 3
_LOADING_FLOOR_S = 30.0  # INIT and LOAD are instructions that nobody has measured yet


@dataclass
class _Agent:
    """A connected agent, or one that may come back. departs_at: by its own notice."""

    hello: Hello
    key: bytes
    ready: Ready | None = None
    is_connected: bool = True
    departs_at: float = inf


class Arbiter:
    """State machine of one job under one leader."""

    def __init__(self, job: ArbiterJob, durable: Durable, term: int) -> None:
        self._job, self._spec, self._timing = job, job.spec, job.timing
        self._out = Outbox(durable)
        self._out.save(term=max(term, durable.term))
        self._term = term
        self._epoch = durable.plan.epoch
        self._members: set[AgentId] = set(durable.members)
        self._agents: dict[AgentId, _Agent] = {}
        self._dead: set[AgentId] = set()
        self._evidence = Evidence(job.timing.patience)
        self._goal: Goal | None = None
        self._plan: Plan | None = None
        self._directives: dict[AgentId, Directive] = {}
        self._reports: dict[AgentId, Report] = {}
        self._finished: set[AgentId] = set()
        self._unseated: set[AgentId] = set()
        self._committed: CommitRecord | None = None
        self._validation_loss: float | None = None
        self._step_s = 0.0
        self._progress_at = -inf
        self._ready_at = -inf
        self._deadline: float | None = None
        self._request = 0
        self._is_first_round = True
        self._is_last = False
        self._is_loading = False
        self._is_deposed = term < durable.term
        self._detail = ""
        self._phase = Phase.WAITING
        if durable.outcome is not None:
            self._phase = Phase.OVER
        elif self._members:
            self._phase = Phase.RETURNING

    # ------------------------------------------------------------ outside

    @property
    def durable(self) -> Durable:
        """The facts as they are now (some may not be written yet)."""
        return self._out.durable

    @property
    def fence(self) -> Fence:
        """What the newest STOP carries."""
        return Fence(self.durable.attempt, self._term, self._epoch)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about the event, in order."""
        if not self._is_deposed:
            self._dispatch(event, now)
        return self._out.take()

    def status(self) -> ArbiterStatus:
        """A snapshot for status, events and metrics."""
        durable = self.durable
        return ArbiterStatus(
            phase=self._phase,
            detail=self._detail,
            fence=self.fence,
            plan=self._plan,
            members=tuple(sorted(self._members)),
            connected=tuple(sorted(a for a, x in self._agents.items() if x.is_connected)),
            ready=tuple(sorted(a for a, x in self._agents.items() if x.ready is not None)),
            standby=tuple(sorted(self._standby())),
            leaving=self._plan.leaving if self._plan is not None else (),
            committed=self._committed,
            validation_loss=self._validation_loss,
            step_s=self._step_s,
            checkpoint=next(reversed(eligible(durable)), None),
            copies=self._copies(),
            outcome=durable.outcome,
            reason=durable.reason,
            message=durable.message,
        )

    def _copies(self) -> dict[int, int]:
        """layer -> live agents that hold it by plan."""
        if self._plan is None or self._phase is Phase.OVER:
            return {}
        count = dict.fromkeys(range(self._plan.layers), 0)
        for agent, ranges in self._plan.wants.items():
            if agent in self._members:
                for layer in layers_of(ranges):
                    count[layer] += 1
        return count

    # ------------------------------------------------------------ events

    def _dispatch(self, event: Event, now: float) -> None:
        match event:
            case Received(agent, message):
                if agent not in self._agents:
                    return
                self._evidence.hear(agent, now)
                if isinstance(message, Heartbeat):
                    return
                self._received(agent, message, now)
            case Connected(hello, key):
                self._connected(hello, key, now)
            case Disconnected(agent):
                if agent in self._agents:
                    self._agents[agent].is_connected = False
                    self._evidence.disconnect(agent, now)
                    self._look(now)
            case Lost(agent, confirmed, evidence):
                self._lose(agent, evidence, confirmed=confirmed, now=now)
            case Goal():
                self._goal = event
                self._unseated.clear()
            case Persisted(version):
                self._out.persisted(version)
                return
            case Planned(id, result):
                if id == self._request and self._phase is Phase.PLANNING:
                    self._planned(result, now)
            case Tick():
                self._look(now)
        self._consider(now)

    def _connected(self, hello: Hello, key: bytes, now: float) -> None:
        agent, job, timing = hello.agent, self._job, self._timing
        if hello.fence.term > self._term:
            self._depose(hello)
            return
        self._evidence.hear(agent, now)
        self._out.at_once(
            Send(
                agent,
                Welcome(
                    self._term, job.name, job.uid, job.spec_json, timing.heartbeat_s, timing.lease_s
                ),
            )
        )
        known = self._agents.get(agent)
        if known is not None:
            known.hello, known.is_connected = hello, True
        else:
            self._agents[agent] = _Agent(hello, key)
        if self._phase is Phase.OVER and self.durable.outcome is not Outcome.SUSPENDED:
            self._out.after_facts(Send(agent, Release(0, self.durable.reason)))
        elif agent in self._members:
            self._returned(agent, hello, now)

    def _returned(self, agent: AgentId, hello: Hello, now: float) -> None:
        """A member's new session: what it may have missed is said again."""
        if self._phase is Phase.RETURNING:
            return
        if self._phase is Phase.COLLECTING and agent not in self._reports:
            self._out.after_facts(Send(agent, Stop(self.fence)))
        elif hello.fence < self.fence:
            self._begin(f"{agent} came back without its state", now)
        elif self._phase is Phase.RUNNING:
            self._out.after_facts(Send(agent, self._directives[agent]))

    def _depose(self, hello: Hello) -> None:
        self._is_deposed = True
        self._phase, self._detail = Phase.OVER, "another leader has taken over"
        text = f"{hello.agent} follows term {hello.fence.term}, ours is {self._term}"
        self._record(Happening.LEADERSHIP_LOST, text, Severity.WARNING)

    def _received(self, agent: AgentId, message: AgentMessage, now: float) -> None:
        is_member = agent in self._members
        match message:
            case Ready():
                self._admit(agent, message, now)
            case Report() if is_member:
                self._reported(agent, message)
            case Progress() if is_member:
                self._progressed(message, now)
            case Suspicion() if is_member and message.fence == self.fence:
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
            case Finished() if is_member and message.fence == self.fence:
                self._finished.add(agent)
            case _:
                pass

    # ------------------------------------------------------------ agents

    def _admit(self, agent: AgentId, ready: Ready, now: float) -> None:
        known = self._agents[agent]
        is_new, known.ready = known.ready is None, ready
        refusal = admission.check(self._spec, agent, ready) or self._compare(agent, ready)
        if refusal is None:
            if is_new:
                self._ready_at = now
            return
        if self.durable.plan == Fence():
            self._end(Outcome.FAILED, refusal.reason, refusal.message)
            return
        known.ready = None
        self._record(Happening.AGENT_REFUSED, refusal.message, Severity.WARNING)
        self._dismiss(agent, refusal.reason)

    def _compare(self, agent: AgentId, ready: Ready) -> admission.Refusal | None:
        """Against a member, else against the first that became ready."""
        others = [a for a, x in self._agents.items() if x.ready is not None and a != agent]
        other = next((a for a in others if a in self._members), others[0] if others else None)
        if other is None:
            return None
        reference = self._agents[other].ready
        assert reference is not None
        return admission.compare(agent, ready.fingerprint, other, reference.fingerprint)

    def _noticed(self, agent: AgentId, notice: Notice, now: float) -> None:
        known = self._agents[agent]
        is_news = known.departs_at == inf
        known.departs_at = min(known.departs_at, now + notice.lead_s)
        if is_news and agent in self._members:
            text = f"{agent} will go away in {notice.lead_s:g} s ({notice.reason})"
            self._record(Happening.AGENT_LEAVING, text)

    def _failed(self, agent: AgentId, failure: Failure, now: float) -> None:
        """The worker's process is gone for certain, and its state with it."""
        text = f"{agent}: {failure.reason}: {failure.message}"
        if failure.user_error:
            self._end(Outcome.FAILED, Reason.USER_CODE_FAILED, text)
            return
        self._record(Happening.WORKER_FAILED, text, Severity.WARNING)
        self._lose(agent, f"worker ended: {failure.reason}", confirmed=True, now=now)

    def _left(self, agent: AgentId) -> None:
        """EXIT has run; a stop that came too late for it does without its report."""
        if self._plan is not None and agent in self._plan.live:
            return
        self._members.discard(agent)
        self._reports.pop(agent, None)
        self._record(Happening.AGENT_LEFT, f"{agent} has handed over what it held")
        if self._is_departing(agent):
            self._out.after_facts(Send(agent, Release(_DRAINED, "drained")))
            self._dismiss(agent, "drained")

    def _is_departing(self, agent: AgentId) -> bool:
        drained = self._goal.drained if self._goal is not None else frozenset[AgentId]()
        return self._agents[agent].departs_at < inf or agent in drained

    def _dismiss(self, agent: AgentId, why: str) -> None:
        self._out.after_facts(Dismiss(agent, why))
        self._agents.pop(agent, None)
        self._evidence.forget(agent)

    def _lose(self, agent: AgentId, why: str, *, confirmed: bool, now: float) -> None:
        """An agent does not count any more; if it lives, it is told that it is fenced."""
        if confirmed:
            self._dead.add(agent)
        known, was_member = self._agents.get(agent), agent in self._members
        if known is not None:
            if known.is_connected and not confirmed:
                self._out.after_facts(Send(agent, Release(_FENCED, why)))
            self._dismiss(agent, why)
        if not was_member:
            return
        self._members.discard(agent)
        self._reports.pop(agent, None)
        self._record(Happening.AGENT_LOST, f"{agent}: {why}", Severity.WARNING)
        if self._phase in (Phase.PLANNING, Phase.HOLDING):
            self._phase = Phase.COLLECTING  # still stopped: the others' reports hold
        elif self._phase is Phase.RUNNING and not self._is_dispensable(agent):
            self._begin(f"{agent} is lost", now)

    def _is_dispensable(self, agent: AgentId) -> bool:
        """It had finished, or only had to help with a step that is committed."""
        assert self._plan is not None
        if agent in self._finished:
            return True
        done = self._committed is not None and self._committed.step > self._plan.target
        return done and agent in self._plan.leaving

    def _look(self, now: float) -> None:
        """Draw conclusions from who has been silent."""
        if self._phase in (Phase.OVER, Phase.RETURNING):
            return
        known = self._members | self._agents.keys()
        for agent, why in self._evidence.lost(known, now):
            self._lose(agent, why, confirmed=False, now=now)
        if self._phase is Phase.RUNNING:
            self._mend(now)

    def _mend(self, now: float) -> None:
        """Links that are broken though both ends live: once a new epoch, then one end goes."""
        links = self._evidence.broken(
            self._members,
            progress_at=self._progress_at,
            patience_s=2 * self._step_s,
            now=now,
        )
        again = [link for link in links if link in self._evidence.tried]
        if not links:
            return
        self._evidence.tried.update(links)
        for agent in expel(again, self._is_sole_holder):
            self._lose(agent, "cut off from other members", confirmed=False, now=now)
        if self._phase is Phase.RUNNING:
            self._begin("connections are broken: " + ", ".join(f"{a}-{b}" for a, b in links), now)

    def _is_sole_holder(self, agent: AgentId) -> bool:
        if self._plan is None:
            return False
        others = {
            x
            for a, r in self._plan.wants.items()
            if a in self._members and a != agent
            for x in layers_of(r)
        }
        return any(x not in others for x in layers_of(self._plan.wants.get(agent, ())))

    # ------------------------------------------------------------ training

    def _progressed(self, progress: Progress, now: float) -> None:
        commit = progress.commit
        is_epilogue = commit.step >= self._spec.training.steps
        newest = self._committed.step if self._committed is not None else -1
        if commit.step > newest and not is_epilogue:
            self._committed, self._progress_at = commit, now
            self._evidence.settle()
            if self._plan is not None and commit.step >= self._plan.target:
                self._is_loading = False
        if commit.validation_loss is not None:
            self._validation_loss = commit.validation_loss
        if progress.step_s:
            self._step_s = progress.step_s

    def _sealed(self, sealed: Sealed) -> None:
        manifest = sealed.manifest
        if manifest.attempt != self.durable.attempt:
            return
        known = with_manifest(self.durable.manifests, manifest)
        if known != self.durable.manifests:
            self._out.save(manifests=known)
            text = f"checkpoint of step {manifest.step} is complete: {manifest.path}"
            self._record(Happening.CHECKPOINT_SEALED, text)

    def _bad_checkpoint(self, bad: BadCheckpoint, now: float) -> None:
        mark = (bad.attempt, bad.step)
        if mark in self.durable.bad:
            return
        self._out.save(bad=(*self.durable.bad, mark))
        text = f"checkpoint of step {bad.step} cannot be used: {bad.message}"
        self._record(Happening.CHECKPOINT_BAD, text, Severity.WARNING)
        loaded = self.durable.manifest
        if loaded is not None and (loaded.attempt, loaded.step) == mark:
            self._restore(text, now)

    # ------------------------------------------------------------ what is due

    def _consider(self, now: float) -> None:
        """Act if something is due; called after every event that may change that."""
        if self._goal is None and self._phase is not Phase.OVER:
            return
        match self._phase:
            case Phase.WAITING:
                self._try_start(now)
            case Phase.RETURNING:
                self._try_return(now)
            case Phase.COLLECTING:
                self._hurry(now)
                self._try_decide(now)
            case Phase.HOLDING:
                self._try_again(now)
            case Phase.RUNNING:
                self._try_change(now)
            case Phase.OVER:
                self._try_resume(now)
            case Phase.PLANNING:
                pass

    def _usable(self) -> set[AgentId]:
        """Connected agents that can be given work."""
        return {
            a
            for a, x in self._agents.items()
            if x.is_connected and x.ready is not None and not self._is_departing(a)
        }

    def _standby(self) -> set[AgentId]:
        return self._usable() - self._members

    def _try_start(self, now: float) -> None:
        assert self._goal is not None
        if self._goal.suspended:
            self._end(Outcome.SUSPENDED, Reason.USER_REQUESTED, "nothing was running")
            return
        usable, pipelines = self._usable(), self._spec.pipelines
        zones: dict[str, int] = {}
        for agent in usable:
            zone = self._agents[agent].hello.zone
            zones[zone] = zones.get(zone, 0) + 1
        adjacency = self._spec.placement.adjacency
        most = self._goal.pipelines
        fit = feasible_pipelines(zones, stages=pipelines.stages, most=most, adjacency=adjacency)
        if fit < min(pipelines.min, most):
            self._detail = (
                f"{len(usable)} agents are ready; {pipelines.min} x {pipelines.stages} are needed"
                f" at least, ring neighbours in different zones ({adjacency})"
            )
            return
        hoped = self._goal.expected - usable
        if fit < most and hoped and now < self._ready_at + self._timing.start_grace_s:
            self._detail = f"{fit} of {most} pipelines can start; waiting for {len(hoped)} agents"
            return
        self._members = usable
        self._begin("the job starts", now)

    def _try_return(self, now: float) -> None:
        """A new leader goes on from where the members are, once they are back."""
        if self._deadline is None:
            self._deadline = now + self._timing.return_s
        away = {a for a in self._members if not self._is_connected(a)}
        if away and now < self._deadline:
            self._detail = f"waiting for {len(away)} members to come back"
            return
        for agent in sorted(away):
            self._lose(agent, "did not come back to the new leader", confirmed=False, now=now)
        self._begin("a new leader", now)

    def _is_connected(self, agent: AgentId) -> bool:
        return agent in self._agents and self._agents[agent].is_connected

    def _try_change(self, now: float) -> None:
        assert self._plan is not None
        assert self._goal is not None
        if self._is_finished():
            self._complete()
            return
        why = changes.due(
            plan=self._plan,
            goal=self._goal,
            members=self._members,
            departures={a: x.departs_at for a, x in self._agents.items() if x.departs_at < inf},
            fresh=self._standby() - self._unseated,
            is_settled=now >= self._ready_at + self._timing.join_grace_s,
            is_last=self._is_last,
            step_s=self._step_s,
            now=now,
        )
        if why:
            self._begin(why, now)

    def _is_finished(self) -> bool:
        assert self._plan is not None
        return bool(self._finished) and self._finished >= self._members.intersection(
            self._plan.live
        )

    def _complete(self) -> None:
        assert self._plan is not None
        if self._is_last:
            text = f"suspended by spec.suspend after {self._plan.last} steps"
            self._end(Outcome.SUSPENDED, Reason.USER_REQUESTED, text)
        else:
            text = f"all {self._spec.training.steps} steps are committed"
            self._end(Outcome.COMPLETE, Reason.STEPS_REACHED, text)

    def _try_resume(self, now: float) -> None:
        wanted = self._goal is not None and not self._goal.suspended
        if wanted and self.durable.outcome is Outcome.SUSPENDED:
            self._out.save(outcome=None, reason="", message="")
            if self.durable.plan == Fence():
                self._phase = Phase.WAITING
                self._consider(now)
            else:
                self._restore("the job is resumed", now)

    # ------------------------------------------------------------ stop and decide

    def _begin(self, why: str, now: float) -> None:
        """Stop everyone who may be part of the next plan."""
        self._epoch += 1
        self._phase, self._detail = Phase.COLLECTING, why
        self._reports.clear()
        self._finished.clear()
        self._evidence.begin_epoch()
        self._out.withdraw(
            lambda e: isinstance(e, Send) and isinstance(e.message, Stop | Directive)
        )
        if self._are_newcomers_wanted():
            self._members |= self._standby()
        self._deadline = now + self._report_patience_s()
        self._record(Happening.STOPPED, f"epoch {self._epoch}: {why}")
        stop = Stop(self.fence, want_manifests=self._is_first_round)
        self._is_first_round = False
        for agent in sorted(self._members):
            self._out.after_facts(Send(agent, stop))

    def _are_newcomers_wanted(self) -> bool:
        assert self._goal is not None
        staying = self._members & self._usable()
        stages = self._spec.pipelines.stages
        wanted = self._goal.pipelines
        if self._plan is not None:
            both = len(staying | self._standby())
            wanted = admission.pipelines_for(both, stages=stages, wanted=wanted)
        return len(staying) < wanted * stages

    def _report_patience_s(self) -> float:
        if self._is_loading:
            return _LOADING_FLOOR_S
        longest_s = max(
            (
                sum(c.backward_s + c.forward_s for c in x.ready.costs)
                for a, x in self._agents.items()
                if a in self._members and x.ready is not None
            ),
            default=0.0,
        )
        # nobody runs more than two stages' layers in one instruction
        longest_s *= min(1.0, 2 / self._spec.pipelines.stages)
        return max(self._timing.report_floor_s, 3 * longest_s)

    def _reported(self, agent: AgentId, report: Report) -> None:
        if self._phase is not Phase.COLLECTING or report.fence != self.fence:
            return
        self._reports[agent] = report
        for manifest in report.manifests:
            if manifest.attempt <= self.durable.attempt:
                known = with_manifest(self.durable.manifests, manifest)
                self._out.save(manifests=known)

    def _hurry(self, now: float) -> None:
        """Who has not reported in time is lost."""
        if self._deadline is None or now < self._deadline:
            return
        for agent in sorted(self._members - self._reports.keys()):
            self._lose(agent, "no report in time", confirmed=False, now=now)

    def _try_decide(self, now: float) -> None:
        if self._phase is not Phase.COLLECTING or self._members - self._reports.keys():
            return
        if not self._members:
            self._restore("all agents are lost", now)
            return
        voters = set(self.durable.voters)
        if voters and not voters & self._reports.keys() and not voters <= self._dead:
            text = "no voter of the newest plan has reported: it may still be running elsewhere"
            self._hold(text, now + self._timing.voter_wait_s)
            return
        staying = self._members - self._leavers()
        pipelines = self._spec.pipelines
        if not admission.is_enough(staying, stages=pipelines.stages, least=pipelines.min):
            text = f"{len(staying)} agents are too few to go on; their state is kept"
            self._hold(text, None)
            return
        self._request += 1
        self._phase, self._detail = Phase.PLANNING, "computing the plan"
        self._out.at_once(ComputePlan(self._request, self._make_request(now)))

    def _leavers(self) -> set[AgentId]:
        return {a for a in self._members if a not in self._agents or self._is_departing(a)}

    def _hold(self, text: str, deadline: float | None) -> None:
        self._phase, self._detail, self._deadline = Phase.HOLDING, text, deadline
        self._record(Happening.WAITING, text, Severity.WARNING)

    def _try_again(self, now: float) -> None:
        """Newcomers may help; a voter that stays away is waited for only so long."""
        if self._deadline is not None and now >= self._deadline:
            self._restore(self._detail, now)
        elif self._standby() - self._unseated:
            self._begin("more agents are ready", now)

    def _make_request(self, now: float) -> PlanRequest:
        assert self._goal is not None
        durable = self.durable
        draining = frozenset(self._leavers())
        hurry_s = changes.transition_s(self._step_s)
        ready = self._reference()
        participants = {
            a: Participant(
                x.hello.zone, x.hello.node, x.hello.data_address, x.hello.liveness_address, x.key
            )
            for a, x in sorted(self._agents.items())
            if a in self._members
        }
        return PlanRequest(
            fence=self.fence,
            spec=self._spec,
            batch=self._batch(),
            layers=ready.layers,
            costs=ready.costs,
            validation_samples=ready.validation_samples,
            pipelines=self._goal.pipelines,
            grid=durable.pipelines,
            cut=durable.cut,
            step_cut=durable.step_cut,
            target=durable.target,
            participants=participants,
            reports=dict(sorted(self._reports.items())),
            draining=draining,
            rushed=frozenset(a for a in draining if self._agents[a].departs_at - now < hurry_s),
            manifests=eligible(durable),
            base=durable.manifest.step - 1 if durable.manifest is not None else -1,
            is_full=durable.plan.attempt != durable.attempt or not durable.pipelines,
            is_last=self._goal.suspended,
        )

    def _reference(self) -> Ready:
        """One agent's view of model and data; all are equal but for measured costs."""
        known = [x.ready for a, x in sorted(self._agents.items()) if a in self._members]
        return next(r for r in known if r is not None)

    def _batch(self) -> BatchShape:
        """L and C belong to the job for ever."""
        if self.durable.batch is None:
            pipelines = self._spec.pipelines
            shape = choose(
                microbatches=self._spec.training.microbatches,
                pipelines=pipelines.count,
                stages=pipelines.stages,
                pipelines_max=pipelines.max,
            )
            self._out.save(batch=shape)
        assert self.durable.batch is not None
        return self.durable.batch

    # ------------------------------------------------------------ outcome of planning

    def _planned(self, result: Decision | Fatal | Unplaceable | PlannerFault, now: float) -> None:
        match result:
            case Decision():
                self._direct(result, now)
            case Fatal(layers, committed):
                text = f"no live copy of layers {', '.join(map(str, layers))}"
                self._out.save(committed=max(committed, self.durable.committed))
                self._restore(text, now)
            case Unplaceable(message):
                self._unseated = set(self._members)
                self._hold(message, None)
            case PlannerFault(message):
                self._end(Outcome.FAILED, Reason.PLANNING_FAILED, message)

    def _direct(self, decision: Decision, now: float) -> None:
        """Durable first, then everyone's directive."""
        plan = decision.plan
        self._unseated = self._members - set(plan.members)
        self._members = set(plan.members)
        self._plan, self._directives = plan, decision.directives
        self._is_last = plan.last < self._spec.training.steps or (
            self._goal is not None and self._goal.suspended
        )
        self._is_loading = decision.loads > 0
        self._phase, self._deadline = Phase.RUNNING, None
        self._progress_at = now
        self._detail = ""
        self._evidence.begin_epoch()
        self._out.save(
            plan=plan.fence,
            members=plan.members,
            voters=plan.live,
            pipelines=plan.pipelines,
            cut=plan.cut,
            step_cut=plan.step_cut,
            target=plan.target,
            committed=max(decision.committed, self.durable.committed),
        )
        for agent in plan.members:
            self._out.after_facts(Send(agent, decision.directives[agent]))
        self._record(Happening.PLANNED, _describe(decision))

    def _restore(self, why: str, now: float) -> None:
        """A new attempt from the newest good checkpoint: the only action that loses work."""
        durable = self.durable
        manifest = next(reversed(eligible(durable)), None)
        step = manifest.step if manifest is not None else 0
        newest = self._committed.step if self._committed is not None else -1
        lost = max(newest, durable.committed) + 1 - step
        source = f"the checkpoint of step {step}" if manifest is not None else "the start"
        text = f"attempt {durable.attempt + 1} from {source}: {lost} committed steps are repeated"
        severity = Severity.WARNING if lost else Severity.NORMAL
        self._record(Happening.RESTORING, f"{why}; {text}", severity)
        self._out.save(
            attempt=durable.attempt + 1,
            manifest=manifest,
            forks=(*durable.forks, Fork(durable.attempt + 1, step)),
            members=(),
            voters=(),
            pipelines=(),
            committed=step - 1,
        )
        self._members.clear()
        self._plan, self._committed, self._is_last = None, None, False
        self._phase, self._detail, self._deadline = Phase.WAITING, why, None
        self._ready_at = now
        self._unseated.clear()
        self._consider(now)

    def _end(self, outcome: Outcome, reason: str, message: str) -> None:
        """Durable, then told to the shell, then everyone may go."""
        if self._phase is Phase.OVER:
            return
        newest = self._committed.step if self._committed is not None else -1
        self._out.save(
            outcome=outcome,
            reason=str(reason),
            message=message,
            members=(),
            voters=(),
            committed=max(newest, self.durable.committed),
        )
        self._out.withdraw(lambda e: isinstance(e, Send))
        self._phase, self._detail = Phase.OVER, message
        self._out.after_facts(Over(outcome, str(reason), message))
        for agent in sorted(self._agents):
            self._out.after_facts(Send(agent, Release(0, str(reason))))
        self._members.clear()
        self._agents.clear()

    def _record(
        self, reason: Happening, message: str, severity: Severity = Severity.NORMAL
    ) -> None:
        self._out.at_once(Record(severity, reason, message))


def _describe(decision: Decision) -> str:
    plan = decision.plan
    text = (
        f"epoch {plan.fence.epoch}: {len(plan.pipelines)} x {len(plan.cut)} from step"
        f" {plan.target}, {len(plan.live)} agents"
    )
    parts = [
        f"{plan.holes} seats empty" if plan.holes else "",
        f"{len(plan.leaving)} leaving" if plan.leaving else "",
        f"{decision.copies} layers copied" if decision.copies else "",
        f"{decision.loads} layers loaded" if decision.loads else "",
    ]
    return ", ".join([text, *filter(None, parts)])
