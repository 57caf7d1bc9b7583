"""Who is lost: from which evidence an agent counts as lost, and what follows for the round at work.

Part of the arbiter, beside :mod:`bamboo_core.arbiter.rounds`.
"""

from __future__ import annotations

from bamboo_core.api.events import EventFact, EventReason, Severity
from bamboo_core.api.outcome import Outcome
from bamboo_core.api.reasons import user_reason
from bamboo_core.arbiter.events import ArbiterJob, ArbiterPhase
from bamboo_core.arbiter.evidence import Evidence, expel
from bamboo_core.arbiter.membership import Membership
from bamboo_core.arbiter.rounds import Doubt, Rounds
from bamboo_core.model.ids import AgentId
from bamboo_core.model.program import Op
from bamboo_core.placement.plan import layers_of
from bamboo_core.protocol.messages import Failure, Notice


class Losses:
    """Turns signs of death and departure into losses."""

    def __init__(
        self, job: ArbiterJob, evidence: Evidence, roster: Membership, rounds: Rounds
    ) -> None:
        self._spec, self._evidence, self._roster, self._rounds = job.spec, evidence, roster, rounds

    # ------------------------------------------------------------ signs

    def disconnected(self, agent: AgentId, now: float) -> None:
        """Its session has ended; it may begin another."""
        known = self._roster.agents.get(agent)
        if known is not None:
            known.is_connected = False
            self._evidence.disconnect(agent, now)
            self.look(now)
        elif agent in self._rounds.doubted:
            why, _ = self._rounds.doubted[agent]
            self._rounds.doubted[agent] = Doubt(why, None)

    def noticed(self, agent: AgentId, notice: Notice, now: float) -> None:
        """It will go away."""
        known = self._roster.agents[agent]
        is_news = not self._roster.is_departing(agent)
        known.will_leave(now + notice.lead_s)
        if is_news and agent in self._rounds.members:
            text = f"{agent} will go away in {notice.lead_s:g} s ({notice.reason})"
            self._rounds.record(EventReason.AGENT_LEAVING, text, facts={EventFact.AGENTS: agent})

    def failed(self, agent: AgentId, failure: Failure, now: float) -> None:
        """The worker's process is gone for certain, and its state with it."""
        text = f"{agent}: {failure.reason}: {failure.message}"
        if failure.user_error:
            self._rounds.end(Outcome.FAILED, user_reason(failure.reason), text)
            return
        self._rounds.record(
            EventReason.WORKER_FAILED, text, Severity.WARNING, facts={EventFact.AGENTS: agent}
        )
        self.lose(agent, f"worker ended: {failure.reason}", confirmed=True, now=now)

    def left(self, agent: AgentId) -> None:
        """EXIT has run; a stop that came too late for it does without its report."""
        plan = self._rounds.plan
        if plan is not None and agent in plan.live:
            return
        self._rounds.remove(agent)
        text = f"{agent} has handed over what it held"
        self._rounds.record(EventReason.AGENT_LEFT, text, facts={EventFact.AGENTS: agent})
        if self._roster.is_departing(agent):
            self._rounds.let_go(agent)
            self._evidence.forget(agent)

    def hurry(self, now: float) -> None:
        """Who has not reported in time is lost."""
        rounds = self._rounds
        if now >= rounds.deadline:
            for agent in sorted(rounds.members - rounds.reports.keys()):
                self.lose(agent, "no report in time", confirmed=False, now=now)

    # ------------------------------------------------------------ consequences

    def lose(self, agent: AgentId, why: str, *, confirmed: bool, now: float) -> None:
        """An agent does not count any more. If its end is not certain, it is fenced only by the
        next plan: until then it may come back, as a newcomer whose holdings are facts."""
        rounds, was_member = self._rounds, agent in self._rounds.members
        if confirmed:
            if agent in rounds.doubted:
                rounds.reconsider()
            rounds.dead.add(agent)
            if rounds.phase is not ArbiterPhase.OVER:  # its log is all that is left of the job
                rounds.dismiss(agent, why)
        elif agent in self._roster.agents or was_member:
            rounds.doubt(agent, why)
        self._evidence.forget(agent)
        if not was_member:
            return
        rounds.remove(agent)
        rounds.record(
            EventReason.AGENT_LOST,
            f"{agent}: {why}",
            Severity.WARNING,
            facts={EventFact.AGENTS: agent},
        )
        if rounds.phase is not ArbiterPhase.RUNNING:
            return
        if self._is_dispensable(agent):
            rounds.fence_off()
        else:
            self._rounds.begin(f"{agent} is lost", now)

    def _is_dispensable(self, agent: AgentId) -> bool:
        """Nobody can be waiting for it: all have finished, or it only had to help with a step
        that is committed, or it is catching up. (One that has finished may have died with its last
        messages unsent; one that catches up may hold what nobody else has.)
        """
        rounds = self._rounds
        assert rounds.plan is not None
        if agent in rounds.plan.learners:
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
        mark = (self._rounds.durable.attempt, step)
        sealed = {(m.attempt, m.step) for m in self._rounds.durable.manifests}
        return step > 0 and mark not in sealed and mark not in self._rounds.durable.bad

    def look(self, now: float) -> None:
        """Draw conclusions from who has been silent."""
        rounds = self._rounds
        self._evidence.look(now)
        if rounds.phase in (ArbiterPhase.OVER, ArbiterPhase.RETURNING):
            return
        known = rounds.members | self._roster.agents.keys()
        for agent, why in self._evidence.lost(known, now):
            self.lose(agent, why, confirmed=False, now=now)
        if rounds.phase is ArbiterPhase.RUNNING:
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
            self.lose(agent, "cut off from other members", confirmed=False, now=now)
        if rounds.phase is ArbiterPhase.RUNNING:
            pairs = ", ".join(f"{a}-{b}" for a, b in links)
            self._rounds.begin(f"connections are broken: {pairs}", now)

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
