"""One job that this operator leads: its arbiter, and what is remembered beside it. Pure.

A defect of the arbiter restarts it with a higher term after a pause. Events that arrive during the
pause, or while leadership is uncertain, are held and handled in order afterwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import inf

from bamboo_core.api import spec as specs
from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import (
    ArbiterJob,
    ComputePlan,
    Connected,
    DesiredState,
    Disconnected,
    Dismiss,
    Effect,
    Event,
    Lost,
    NodeLeaves,
    Over,
    Paced,
    Persist,
    Received,
    Record,
    Tick,
    Timing,
)
from bamboo_core.controller import turn
from bamboo_core.controller.view import ClusterView, JobView, TrainingView
from bamboo_core.job import cluster, training_view
from bamboo_core.job.counting import Counting
from bamboo_core.job.storage import Storage
from bamboo_core.job.tally import Tally
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import AgentReport, Heartbeat, Notice, Progress

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0

MOST_HELD = 10_000
"""Events. An agent sends nothing after its Hello until it gets a Welcome, so only clients that
reconnect all the time reach this."""

_SOONER_S = 1.0

_FAREWELL_S = 60.0
"""An agent that is to leave has ended so long after its grace period, or its lead time."""
_LONGEST_LEAD_S = 900.0
"""The longest of a cloud; agents may say any number."""

NODE = "Node"
"""Source of the notices that come from taints and conditions of nodes."""

_TICKS_A_LOOK = 4


@dataclass(frozen=True)
class Observed:
    """The cluster as a reconcile sees it."""

    spec: JobSpec
    cluster: ClusterView
    has_sessions: bool  # some agent is connected
    at: float = 0.0  # seconds since 1970
    # Agents that get no work: nobody holds any state, and their pods are of another template.
    outdated: frozenset[AgentId] = frozenset()


@dataclass(frozen=True)
class Wake:
    """Reconcile the job."""

    is_urgent: bool = True  # False: in a while, since only progress has changed


@dataclass(frozen=True)
class Restarted:
    """A new arbiter has begun. Close all sessions and drop facts that are not written yet."""

    cause: Exception | str


Input = Event | Observed
Action = Effect | Wake | Restarted


class Leadership:
    """State machine around the arbiter of one job."""

    def __init__(
        self,
        job: JobView,
        spec: JobSpec,
        durable: Durable,
        *,
        term: int,
        timing: Timing,
        reported: LastReported = LastReported(),  # noqa: B008 - frozen
    ) -> None:
        self.term = max(term, durable.term + 1)
        self._job, self._spec, self._timing = job, spec, timing
        self._reported = reported
        self._storage = Storage(reported.checkpoint_error, reported.checkpoint_caveats)
        self._zones: dict[AgentId, str] = {}  # of pods that were created without one, too
        self._dismissed: set[AgentId] = set()
        self._ended: set[AgentId] = set()  # agents whose pods were last seen to have ended
        self._reported_lost: set[AgentId] = set()
        # Agents that have said that they leave, and until when they end by themselves.
        self._departing: dict[AgentId, float] = {}
        self._warned: set[AgentId] = set()  # of them, those that name who has told them
        self._at_risk: dict[AgentId, str] = {}  # by a hint of this source
        self._node_ends: dict[AgentId, tuple[float, str]] = {}  # when, of our clock, and why
        self._tally = Tally(reported.losses, {*durable.members, *reported.heard})
        self._counting = Counting(reported.totals, reported.progress.committed)
        self._has_begun = durable.plan != Fence()
        self._desired: DesiredState | None = None
        self._urgent_part: object = None
        self._committed = -1
        self._ticks = 0
        self._faults = 0
        self._restart_at = 0.0
        self._heard_at = inf  # of the present event
        self._is_deaf = False  # heartbeats are dropped
        self._held: deque[tuple[Event, bool]] = deque()
        self._out: list[Action] = []
        self._facts = durable  # after the last event that was handled completely
        self.arbiter = self._make(durable)

    def _make(self, durable: Durable) -> Arbiter:
        job = ArbiterJob(
            name=f"{self._job.namespace}/{self._job.name}",
            uid=self._job.uid,
            spec=self._spec,
            spec_json=specs.to_json(self._spec),
            timing=self._timing,
        )
        return Arbiter(job, durable, self.term)

    # ------------------------------------------------------------ outside

    def handle(
        self, event: Input, now: float, *, is_leading: bool, heard_at: float = inf
    ) -> list[Action]:
        """Actions, in order. is_leading: it is certain that no other operator leads.

        heard_at: the newest instant at which everything that had come was read; by default now.
        """
        self._heard_at = heard_at
        is_listening = is_leading and now >= self._restart_at
        if is_listening and self._is_deaf:
            self.arbiter.skip_time(now)
        self._is_deaf = not is_listening
        match event:
            case Observed():
                self._observe(event, now, is_leading=is_leading)
            case Received():
                self._receive(event, now, is_listening=is_listening)
            case Connected(hello):
                hello = replace(hello, zone=hello.zone or self._zones.get(hello.agent, ""))
                self._tally.connected(hello)
                self._counting.growth.connected(hello)
                self._put(replace(event, hello=hello), is_listening=is_listening)
                self._tell_end(hello.agent, now)
            case Paced(timing):
                self._timing = timing  # also of an arbiter that begins again
                self._put(event, is_listening=is_listening)
            case _:
                self._ticks += isinstance(event, Tick)
                self._put(event, is_listening=is_listening)
        self._handle_held(now, is_leading=is_leading)
        if self._tally.settle(now):
            self._out.append(Wake())
        return self._take()

    def fail(self, error: Exception, now: float) -> list[Action]:
        """Actions after a defect of the shell: pause, then begin again."""
        self._fail(error, now)
        return self._take()

    def _fail(self, error: Exception, now: float) -> None:
        self._faults += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._faults - 1, 10))
        self._restart_at = now + pause_s
        self._restart(error)

    def is_of_template(self, spec: JobSpec) -> bool:
        """Whether the agents that the arbiter sets up are those of this spec."""
        return turn.template(spec) == turn.template(self._spec)

    @property
    def steps(self) -> int:
        """Steps at which its arbiter ends the job."""
        return self._spec.training.steps

    def view(self) -> TrainingView:
        """The training for the controller and for users."""
        return training_view.view(
            self.arbiter.status(),
            self.arbiter.durable,
            dismissed=self._dismissed,
            departing=self._departing.keys(),
            warned=self._warned,
            at_risk=self._at_risk.keys(),
            reported=replace(
                self._reported,
                losses=self._tally.losses,
                totals=self._counting.totals,
                final_totals=self._counting.final_totals,
                checkpoint_error=self._storage.trouble,
                checkpoint_caveats=self._storage.caveats,
            ),
            failed=self._tally.failed,
            heard=self._tally.heard,
            has_begun=self._has_begun,
        )

    # ------------------------------------------------------------ events

    def _observe(self, seen: Observed, now: float, *, is_leading: bool) -> None:
        """Only a suspended job may change its spec; then its arbiter begins again.

        An operator that began after a user changed the args, which is refused, takes those that the
        user puts back: agents are set up with them.
        """
        self._tally.observe(seen.cluster)
        self._zones = {pod.agent: pod.zone for pod in seen.cluster.pods}
        self._counting.growth.place(self._zones)
        is_same = cluster.same_for_arbiter(seen.spec, self._spec)
        if not is_same and not seen.has_sessions:
            self._spec = seen.spec
            self._restart("the spec has changed")
        elif not is_same and cluster.same_but_for_args(seen.spec, self._spec):
            self._spec = seen.spec
            self.arbiter.take_args(seen.spec)
        self._ended = {pod.agent for pod in seen.cluster.pods if pod.has_ended}
        for agent, why in cluster.certain_losses(seen.cluster):
            if agent not in self._reported_lost:
                self._reported_lost.add(agent)
                self._put(Lost(agent, confirmed=True, evidence=why))
        self._handle_held(now, is_leading=is_leading)  # they may dismiss agents
        self._look_at_nodes(seen, now)
        present = {pod.agent for pod in seen.cluster.pods}
        self._reported_lost &= present
        self._dismissed &= present
        for agent in self._dismissed - self._ended:
            if now >= self._departing.get(agent, inf):
                del self._departing[agent]  # it does not end: its pod is deleted
        desired = cluster.desired_state(seen.spec, seen.cluster, self._dismissed, seen.outdated)
        if desired != self._desired:
            self._desired = desired
            self._put(desired)

    def _look_at_nodes(self, seen: Observed, now: float) -> None:
        """A node's notice goes to each agent on it once, and again if its end comes sooner."""
        found = cluster.node_notices(seen.cluster)
        ends = {a: notice for a, notice in found.items() if not notice.is_hint}
        self._node_ends = {a: end for a, end in self._node_ends.items() if a in ends}
        for agent, notice in sorted(ends.items()):
            ends_at = now + notice.left_s(seen.at)
            known = self._node_ends.get(agent)
            if known is None or ends_at < known[0] - _SOONER_S:
                self._node_ends[agent] = (ends_at, notice.reason)
                self._tell_end(agent, now)
                if ends_at == inf:
                    text = f"{agent} is to leave its node: {notice.reason}"
                    self._record(EventReason.AGENT_LEAVING, agent, text, NODE, lead_s=0)
        hinted = {a for a, notice in found.items() if notice.is_hint}
        gone = {a for a, by in self._at_risk.items() if by == NODE} - hinted
        gone |= self._at_risk.keys() - {pod.agent for pod in seen.cluster.pods}
        for agent in gone:
            del self._at_risk[agent]
        for agent in sorted(hinted):
            self._hint(agent, found[agent].reason, NODE)

    def _tell_end(self, agent: AgentId, now: float) -> None:
        """The arbiter knows from the desired state that the agent is to leave, but not when."""
        ends_at, reason = self._node_ends.get(agent, (inf, ""))
        if ends_at < inf:
            self._put(NodeLeaves(agent, Notice(max(0.0, ends_at - now), reason, NODE)))

    def _hint(self, agent: AgentId, reason: str, source: str) -> None:
        """Nothing is decided, so the arbiter need not know."""
        if agent not in self._at_risk:
            self._at_risk[agent] = source
            text = f"{agent} may lose its node: {reason}"
            self._record(EventReason.AGENT_AT_RISK, agent, text, source)

    def _record(
        self,
        reason: EventReason,
        agent: AgentId,
        text: str,
        source: str,
        lead_s: float | None = None,
    ) -> None:
        facts: dict[EventFact, str | int | float] = {EventFact.AGENTS: agent}
        if lead_s is not None:
            facts[EventFact.LEAD_S] = lead_s
        facts[EventFact.SOURCE] = source
        self._out.append(Record(Severity.NORMAL, reason, text, facts))

    def _receive(self, event: Received, now: float, *, is_listening: bool) -> None:
        if isinstance(event.message, Notice) and event.message.is_hint:
            self._hint(event.agent, event.message.reason, event.message.source)
            return
        if isinstance(event.message, Notice):
            lead_s = min(event.message.lead_s, _LONGEST_LEAD_S)
            until = now + max(lead_s, self._spec.worker.grace_period_s) + _FAREWELL_S
            self._departing.setdefault(event.agent, until)
            if event.message.source:
                self._warned.add(event.agent)
            self._out.append(Wake())  # for a replacement pod
        before = self._storage.trouble
        event, is_known, record = self._storage.screen(event, self.arbiter.durable)
        if record is not None:
            self._out.append(record)
        self._put(event, is_listening=is_listening, is_known=is_known)
        if self._storage.trouble != before:
            self._out.append(Wake())

    def _put(self, event: Event, *, is_listening: bool = False, is_known: bool = False) -> None:
        if isinstance(event, Connected):
            self._forget_end(event.hello.agent)
        if is_listening or not _is_routine(event):
            self._held.append((event, is_known))
        if len(self._held) > MOST_HELD:
            self._restart("too many events were held")

    def _forget_end(self, agent: AgentId) -> None:
        """The agent is back: that a session of it has ended must not speak for its death now."""
        ended = Disconnected(agent)
        self._held = deque(held for held in self._held if held[0] != ended)

    def _handle_held(self, now: float, *, is_leading: bool) -> None:
        while self._held and is_leading and now >= self._restart_at:
            self._handle(*self._held.popleft(), now=now)

    def _handle(self, event: Event, is_known: bool, *, now: float) -> None:
        is_due = isinstance(event, Tick) and self._ticks % _TICKS_A_LOOK == 0
        self._counting.advance(now)
        try:
            effects = self.arbiter.handle(event, now, self._heard_at)
            self._facts = self.arbiter.durable
            for effect in effects:
                self._apply(effect, now, is_known=is_known)
            if self.arbiter.durable.outcome is not None:
                self._tally.close()  # before users see the outcome
            self._count(event)
            if effects or is_due or not (_is_routine(event) or _is_report(event)):
                self._notice_change()
            if is_due:
                self.arbiter.status()  # a defect of it shows here, not only where users look
        except Exception as error:
            # A defect costs this job a pause and does not affect the others.
            self._fail(error, now)

    def _count(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Progress):
            self._counting.report(event.agent, event.message)
        state, known = self.arbiter.state, self._reported.progress
        progress = training_view.follow(known, state.ledger.progress, self.arbiter.durable)
        self._counting.see(state.phase_name, progress.committed)

    def _restart(self, cause: Exception | str) -> None:
        """A new arbiter, as a new leader would make it; agents come back to it.

        It begins from the facts after the last event that was handled completely; a failed event
        had no effect outside. The reconcile that is woken repeats what only the cluster shows, and
        the agents' next sessions repeat what agents report once. Dismissed pods, reports to users
        and keys remain known.
        """
        self.term += 1
        self._desired = None
        self._reported_lost.clear()
        self._held.clear()
        self.arbiter = self._make(self._facts)
        kept = [a for a in self._out if not isinstance(a, ComputePlan | Persist)]  # of no use now
        self._out = [*kept, Restarted(cause), Wake()]

    # ------------------------------------------------------------ effects

    def _take(self) -> list[Action]:
        out, self._out = self._out, []
        return out

    def _apply(self, effect: Effect, now: float, *, is_known: bool) -> None:
        match effect:
            case Dismiss(agent, _):
                if agent in self._ended:  # nobody has told it to end, and its log is of use
                    return
                self._dismissed.add(agent)
                if agent in self._departing:  # it ends by itself, and its end must show
                    return
            case Record(reason=reason):
                leaving = self._leaving()
                self._tally.hear(effect, leaving, now)
                facts = self.arbiter.durable
                is_failing = bool(facts.failing or facts.saving)
                effect = self._counting.hear(effect, leaving, is_failing=is_failing)
                if is_known and reason is EventReason.CHECKPOINT_BAD:
                    return
            case Over():
                self._out.append(Wake())
                return
            case _:
                pass
        self._out.append(effect)

    def _leaving(self) -> set[AgentId]:
        """Agents with notice, or that are drained."""
        drained = self._desired.drained if self._desired is not None else frozenset()
        return self._departing.keys() | drained

    def _notice_change(self) -> None:
        seen = self.arbiter.glance()
        self._has_begun = self._has_begun or seen.has_ready
        known = self._reported
        progress = training_view.follow(known.progress, seen.progress, self.arbiter.durable)
        state = self.arbiter.state
        route = state.membership.route(state.job.spec) or known.route
        self._reported = replace(known, progress=progress, route=route)
        urgent_part = training_view.urgent_part(seen)
        if urgent_part != self._urgent_part:
            self._urgent_part = urgent_part
            self._out.append(Wake())
        elif seen.progress.committed != self._committed:
            self._committed = seen.progress.committed
            self._out.append(Wake(is_urgent=False))


def _is_report(event: Event) -> bool:
    """Hundreds come at once, and what users see of them is that the last one has effects."""
    return isinstance(event, Received) and isinstance(event.message, AgentReport)


def _is_routine(event: Event) -> bool:
    """True for events that come many times a second and mostly change nothing for users."""
    if isinstance(event, Received):
        return isinstance(event.message, Heartbeat)
    return isinstance(event, Tick)
