"""Rules of sessions, time, storage, failures and durable writes, broken on purpose."""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import replace
from math import inf
from typing import Any

from bamboo_core.api.events import StallCause
from bamboo_core.arbiter import files, last_write, losses, rounds, training
from bamboo_core.arbiter.arbiter import Arbiter
from bamboo_core.arbiter_state import durable as durable_module
from bamboo_core.arbiter_state.state import Collecting, Running, State
from bamboo_core.evidence.liveness import Patience
from bamboo_core.evidence.stalls import SlowLink, Stall
from bamboo_core.job.durable_writer import DurableWriter
from bamboo_core.job.leadership import Leadership
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import Kind
from bamboo_core.protocol.clock import PatientClock
from bamboo_core.protocol.executor import Executor
from bamboo_core.protocol.messages import AgentReport, Finished, Left, Listed, Ready
from bamboo_core.protocol.said import Said, Word
from bamboo_core.protocol.supervisor import SendOperator, Supervisor
from bamboo_core.protocol.watch import Transfers, Watch

# ---------------------------------------------------------------- late words

_left, _finished = losses.left, training.finished


def left_of_any_plan(state: State, agent: AgentId, message: Left) -> None:
    _left(state, agent, replace(message, fence=state.durable.plan))


def finished_of_any_plan(state: State, agent: AgentId, message: Finished) -> None:
    _finished(state, agent, replace(message, fence=state.fence))


def report_of_any_term(state: State, agent: AgentId, report: AgentReport) -> None:
    """A report that answers a STOP of the same number, of whatever attempt and term."""
    phase = state.phase
    if isinstance(phase, Collecting) and report.fence.epoch == state.fence.epoch:
        phase.reports[agent] = report
        phase.report_by.pop(agent, None)


# ---------------------------------------------------------------- the last write

_staying, _pause = last_write.staying, last_write.pause


def without_last_holder(state: State) -> list[AgentId]:
    """One holder too few stays."""
    found = _staying(state)
    return found[1:] or found


def pause_for_ever(state: State, now: float) -> tuple[str, float] | None:
    """The first try after a failure is the last one."""
    found = _pause(state, now)
    return None if found is None else (found[0], now + 1e9)


# ---------------------------------------------------------------- who is needed


def any_learner_goes(state: State, agent: AgentId) -> bool:
    """Nothing is ever received from a learner."""
    plan = state.in_force.plan if state.in_force is not None else None
    return (plan is not None and agent in plan.learners) or _is_dispensable(state, agent)


_is_dispensable = losses._is_dispensable


def needed_first(self: Any, queue: list[Any], wanted: Any, *where: Any) -> None:
    """An agent receives what it needs, whatever was sent to it before."""
    place = next(n for n, message in enumerate(queue) if message is wanted)
    queue.insert(0, queue.pop(place))


def any_order(self: Any, agent: Any, peer: AgentId, item: Any) -> bool:
    """As the dry run does it, but it tells nobody."""
    found: bool = _in_disorder(self, agent, peer, item)
    self.disorder.clear()
    return found


_in_disorder: Any = None  # set by the list of faults, which finds the class


# ---------------------------------------------------------------- sessions

_adopt = Executor._adopt


def drop_every_vote(self: Executor) -> list[Any]:
    """A STOP drops votes of its own fence, too."""
    votes = [item for item in self.held if item.kind is Kind.VOTE]
    return [*self._drop(votes), *_adopt(self)]


def only_news(self: Watch, fence: Fence) -> Any:
    """Each suspicion is told once."""
    found = _suspicions(self, fence)
    told = self.__dict__.setdefault("told", set())
    news = tuple(s for s in found if (s.agent, s.cause, fence) not in told)
    told.update((s.agent, s.cause, fence) for s in news)
    return news


_suspicions, _install, _words = Watch.suspicions, Said.install, Said.words


def forget_early(self: Said, fence: Fence) -> None:
    """A new plan ends the repetition also of what was said after its report."""
    _install(self, fence)
    self._since.clear()


def without_outcome(self: Said) -> list[Word]:
    return [word for word in _words(self) if word is not self.outcome]


def without_ready(self: Supervisor, *args: Any) -> list[Any]:
    """Only the session in which the worker becomes ready says so."""
    return [
        e
        for e in _welcomed(self, *args)
        if not (isinstance(e, SendOperator) and isinstance(e.message, Ready))
    ]


_welcomed = Supervisor._welcomed


def no_second_directive(self: Arbiter, agent: AgentId, hello: Any, now: float) -> None:
    """A member that comes back gets only a STOP again."""
    if not isinstance(self.state.phase, Running):
        _returned(self, agent, hello, now)


def no_second_stop(self: Arbiter, agent: AgentId, hello: Any, now: float) -> None:
    """A member that comes back while reports are collected is not asked again."""
    if not isinstance(self.state.phase, Collecting):
        _returned(self, agent, hello, now)


_returned = Arbiter._returned


# ---------------------------------------------------------------- time


def impatient_arbiter(self: Arbiter, *args: Any) -> None:
    """A pause of the operator counts as silence of the agents."""
    _make_arbiter(self, *args)
    self.state.clock.most_s = inf


_make_arbiter = Arbiter.__init__


def all_is_read(self: PatientClock, now: float, heard_at: float = inf) -> float:
    """Count what waits to be read as silence."""
    return _read(self, now)


_read = PatientClock.read


def impatient_supervisor(self: Supervisor) -> None:
    """A pause of the supervisor counts as slowness of its worker."""
    _make_supervisor(self)
    self._clock.most_s = inf


_make_supervisor = Supervisor.__post_init__


def begin_at_once(state: State, *args: Any, **rest: Any) -> None:
    """The deadline for reports begins when the STOP is made, not when it leaves."""
    _begin(state, *args, **rest)
    if isinstance(state.phase, Collecting):
        due = state.clock._time + rounds._report_patience_s(state)
        state.phase.report_by = dict.fromkeys(state.membership.members, due)


_begin = rounds.begin


def never_late(state: State, now: float) -> None:
    """The second part of a plan may take for ever."""


def sent_long_ago(state: State, effects: Any, now: float) -> None:
    """Waits are measured by the agents' clocks alone, even while directives are on their way."""
    _sent(state, effects, now)
    if state.in_force is not None:
        state.in_force.sent_at = dict.fromkeys(state.in_force.plan.members, -inf)


_sent = rounds.sent


# ---------------------------------------------------------------- stalls


def any_byte_ends_a_wait(self: Transfers) -> None:
    """How fast the bytes come is of no interest."""


def silence_never_counts(self: Transfers, peer: AgentId) -> None:
    """Silence is silence, whatever comes after it."""
    self._forget_silence()


def slow_links_are_told(state: State, links: Collection[SlowLink], now: float) -> bool:
    """No link costs an agent its seat."""
    state.stalls.note(StallCause.TRICKLE, "; ".join(link.message for link in links))
    return False


def no_cycle(*args: Any) -> Stall | None:
    return None


def no_end(*args: Any) -> Stall | None:
    return None


def never_overdue(activity: Any) -> bool:
    return False


def replan_for_ever(state: State, now: float) -> None:
    """The agent at the root of a stall keeps its place however often it stalls."""
    state.stalls.tried.clear()
    _mend_stall(state, now)


_mend_stall = losses._mend_stall


# ---------------------------------------------------------------- storage


def no_listing(state: State) -> bool:
    """Nobody is asked which checkpoints there are."""
    return False


def lists_never(state: State, now: float) -> bool:
    """The first plan of a new attempt is made without a list of the checkpoints."""
    return False


def every_fork(durable: durable_module.Durable, newest: int) -> durable_module.Durable:
    """Every attempt voids the later files of the attempts before it."""
    return durable


_listed = files.listed


def any_list(state: State, agent: AgentId, message: Listed, now: float) -> None:
    """A list counts, whoever was asked for it, and when."""
    _listed(state, agent, replace(message, fence=state.fence), now)


def no_files_due(self: Any) -> bool:
    """A job ends while its last files are being written."""
    return False


# ---------------------------------------------------------------- facts


def any_writer(self: Any, found: Any, durable: Any) -> None:
    """A write replaces whatever is there."""


def drop_held(self: Leadership, event: Any, *, is_listening: bool = False, **rest: Any) -> None:
    """Forget what comes while leadership is uncertain."""
    if is_listening or self._is_sure:  # type: ignore[attr-defined]
        _put(self, event, is_listening=is_listening, **rest)


def note_uncertainty(
    self: Leadership, event: Any, now: float, *, is_leading: bool, **rest: Any
) -> Any:
    self._is_sure = is_leading and now >= self._restart_at  # type: ignore[attr-defined]
    return _handle(self, event, now, is_leading=is_leading, **rest)


_put, _handle = Leadership._put, Leadership.handle


def keep_order(self: DurableWriter) -> None:
    """A write for the arbiter before is taken for one of the new arbiter."""
    self._pending = None


def forget_newer(self: DurableWriter) -> Any:
    """Facts that came while older ones were written are forgotten."""
    self._pending = self._writing
    return _written(self)


_written = DurableWriter.written


def everyone_votes(text: str) -> Any:
    """Facts as JSON do not say who votes."""
    return _from_agents(text.replace("!", ""))


_from_agents = durable_module._from_agents


# ---------------------------------------------------------------- failures


def everyone_fits(state: State, newcomers: Set[AgentId]) -> Set[AgentId]:
    return newcomers


def fails_everywhere(state: State) -> bool:
    """One agent's error in the user's code is taken for an error of the job."""
    return True


def suspend_at_once(state: State, why: str, now: float, *waits: Any, **rest: Any) -> None:
    """Whatever the job waits for, one that is to be suspended gives up what is not saved."""
    is_suspended = state.desired is not None and state.desired.suspended
    if is_suspended:
        _hold(state, why, now)
    else:
        _hold(state, why, now, *waits, **rest)


_hold = rounds.hold


def endless(self: Patience, later_s: float) -> Patience:
    """Silence is not found while heartbeats are rarer than usual."""
    return self if later_s <= 0 else Patience(inf, inf, inf, inf)
