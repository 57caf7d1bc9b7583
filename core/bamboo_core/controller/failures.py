"""Failed agents: what is remembered of them, when they are forgiven, and which nodes to avoid.

A failure counts towards ``runPolicy.backoffLimit`` until ``forgiveAfterSteps`` steps have been
committed after it. A machine with ``nodeFailureLimit`` such failures, or with one of cause
Corruption, gets no new agents for :data:`AVOID_S`. Preemptions and lost nodes are no failures; the
caller tells them apart.

An agent on another kind of processor is a misfit, and no failure either. Its machine is avoided at
once, and so are the other nodes of its kind. The pause before new pods doubles with each round of
pods in which there was one, as after failures.

A failed start is the end of a pod before its agent was ever heard, or of an agent that was heard,
soon and without an order. Whatever the cause, the pause before new pods for the same seats grows
with each round of them, up to :data:`LONGEST_START_S`. Of the pods that end unheard before a pause
is over, one counts towards the limit, so a common cause ends no job before its pauses have passed.
While starts fail, a pod that is deleted since another job goes first ends a round, too.

Instants are in seconds since 1970. A step is a number of committed steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from bamboo_core.api import texts
from bamboo_core.api.reasons import FailureCause
from bamboo_core.api.spec import RunPolicy
from bamboo_core.model.ids import AgentId

AVOID_S = 3600.0
"""A node is avoided for so long after its last failure."""
MOST_RECENT = 16
"""Failures that are remembered one by one. Older ones are forgiven together."""
MOST_AVOIDED = 16
"""Machines that are avoided at once; those with the earliest expiry are dropped."""
LONGEST_MESSAGE = 512
"""Bytes of the message of the newest failure, and of the newest misfit."""
LONGEST_START_S = 240.0
"""Longest pause after failed starts."""
FORGET_STARTS_S = 600.0
"""Failed starts are forgotten so long after the pause if no seat is without its agent by then."""
LONGEST_START_MESSAGE = 768
"""Bytes of the newest failed start's message, which ends with a remedy."""
FORGET_REFUSALS_S = 60.0
"""Refusals beside a plan are forgotten so long after the pause: nodes that do not fit now and then
delay nothing."""
LONGEST_PAUSE_S = 60.0
"""Longest pause after anything else."""
_FIRST_START_S = 5.0
_START_GROWTH = 3.0  # at most 5 further pods for a seat within 10 minutes
_SHORTEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Failure:
    """The end of one agent by itself."""

    agent: AgentId
    cause: FailureCause
    step: int
    at: float
    node: str = ""  # empty: unknown
    machine: str = ""  # node UID and boot ID; empty: unknown
    is_user_error: bool = False  # its code or configuration is at fault
    # Counts for its node only: it did not fit, and others train; or its node may be the cause of a
    # failed start, or another one of the same pause counts.
    is_tolerated: bool = False
    template: str = ""  # of a failed start: short for what its pod was made from; else empty


@dataclass(frozen=True)
class Avoided:
    """A machine that gets no new agents."""

    node: str
    machine: str
    until: float
    is_misfit: bool = False  # its processor computes other bits than those of the others
    kind: str = ""  # instance type of a misfit, of which all nodes are avoided; empty: unknown
    template: str = ""  # of the failed starts that are the reason; empty: others suffice


@dataclass(frozen=True)
class Refusals:
    """Agents that were refused while others train."""

    rounds: int = 0  # of pods, in which there was one
    until: float = 0.0  # no new pods before this instant


_Refusals = TypeVar("_Refusals", bound=Refusals)


@dataclass(frozen=True)
class Misfits(Refusals):
    """Agents that were refused since their processor computes other bits."""

    message: str = ""  # of the last one


@dataclass(frozen=True)
class FailedStarts:
    """Pods that have ended before their agents were heard, or soon afterwards, since agents of
    newer pods were last proven by time."""

    rounds: int = 0  # of pods, in a row
    until: float = 0.0  # no new pods for these slots before this instant
    slots: frozenset[tuple[int, int]] = frozenset()  # (pipeline, stage) whose agents are not proven
    incarnation: int = -1  # highest of those pods
    message: str = ""  # of the last one, with the remedy
    were_heard: bool = False  # agents of the last round: only a step says that they are at work
    template: str = ""  # short for what its pod was made from
    step: int = 0  # number of steps that were committed then
    first: int = -1  # lowest incarnation of those pods
    is_counted: bool = False  # an end of this pause counts towards the limit; no second one does
    taken: int = 0  # of the rounds: those that began when the line took pods

    @property
    def failed_rounds(self) -> int:
        """Rounds that began with a failure."""
        return self.rounds - self.taken

    def held(self, now: float) -> frozenset[tuple[int, int]]:
        """Slots for which no pods are made now."""
        return self.slots if now < self.until else frozenset()

    def is_counted_at(self, now: float) -> bool:
        """Whether one more that ends now, unheard, counts no more towards the limit."""
        return self.is_counted and now < self.until


@dataclass(frozen=True)
class Failures:
    """Failed agents that a job remembers. The job's status keeps them."""

    counts: tuple[tuple[FailureCause, int], ...] = ()  # since the job began, sorted
    recent: tuple[Failure, ...] = ()  # not forgiven, oldest first
    older: int = 0  # not forgiven and not listed any more
    older_step: int = 0  # of the newest of those
    avoided: tuple[Avoided, ...] = ()
    last: Failure | None = None  # forgiven or not
    message: str = ""  # of the last one
    misfits: Misfits = Misfits()
    refusals: Refusals = Refusals()
    starts: FailedStarts = FailedStarts()

    @property
    def total(self) -> int:
        """Failures since the job began."""
        return sum(count for _, count in self.counts)

    @property
    def unforgiven(self) -> int:
        """Failures that count towards the limit."""
        return self.older + sum(not failure.is_tolerated for failure in self.recent)

    @property
    def has_starts(self) -> bool:
        """Whether failed starts are among those."""
        return any(failure.template and not failure.is_tolerated for failure in self.recent)

    @property
    def paused_until(self) -> float:
        """No new pods before this instant, since agents were refused."""
        return max(self.misfits.until, self.refusals.until)

    def is_exceeded(self, policy: RunPolicy) -> bool:
        """Whether there are more failures than the policy tolerates."""
        return self.unforgiven > policy.backoff_limit

    def avoided_until(self) -> Mapping[str, float]:
        """Machine -> until when it gets no new agents."""
        return {place.machine: place.until for place in self.avoided}


def add(known: Failures, failure: Failure, message: str, policy: RunPolicy) -> Failures:
    """Remember one more failure. The caller passes each agent once."""
    counts = dict(known.counts)
    counts[failure.cause] = counts.get(failure.cause, 0) + 1
    # A large round would push out the one that counts, and with it what its pod was made from.
    recent = [*known.recent, failure]
    tolerated = (n for n, old in enumerate(recent) if old.is_tolerated)
    folded = [recent.pop(next(tolerated, 0))] if len(recent) > MOST_RECENT else []
    folded = [old for old in folded if not old.is_tolerated]
    return replace(
        known,
        counts=tuple(sorted(counts.items())),
        recent=tuple(recent),
        older=known.older + len(folded),
        older_step=max([known.older_step, *(old.step for old in folded)]),
        avoided=_avoided(known, (*known.recent, failure), failure, policy),
        last=failure,
        message=texts.cut(message, LONGEST_MESSAGE),
    )


def _avoided(
    known: Failures, recent: tuple[Failure, ...], failure: Failure, policy: RunPolicy
) -> tuple[Avoided, ...]:
    """Every further failure on a machine that is avoided already extends the time. recent: with
    the failure."""
    machine, limit = failure.machine, policy.node_failure_limit
    if not machine or not limit:
        return known.avoided
    if failure.cause is FailureCause.CORRUPTION:
        limit = 1  # it may have been wrong before, unseen
    here = [other for other in recent if other.machine == machine]
    before = next((place for place in known.avoided if place.machine == machine), None)
    if len(here) < limit and before is None:
        return known.avoided
    place = before or Avoided(failure.node, machine, 0.0)
    starts = [other.template for other in here if other.template]
    is_of_starts = (before is None or before.template) and len(here) - len(starts) < limit
    template = (starts or [place.template])[-1] if is_of_starts else ""
    place = replace(place, until=failure.at + AVOID_S, template=template)
    return _with(known.avoided, place)


def _with(known: tuple[Avoided, ...], place: Avoided) -> tuple[Avoided, ...]:
    found = (*(other for other in known if other.machine != place.machine), place)
    return tuple(sorted(found, key=lambda place: place.until)[-MOST_AVOIDED:])


def add_misfit(
    known: Failures, node: str, machine: str, kind: str, message: str, policy: RunPolicy, *,
    now: float,
) -> Failures:  # fmt: skip
    """Remember an agent that was refused because of its processor. The caller passes each once.

    node, machine, kind: as in :class:`Avoided`. With ``nodeFailureLimit`` 0 no node is avoided.
    Those that come during the pause are of the same round.
    """
    misfits, avoided = known.misfits, known.avoided
    if now >= misfits.until:
        rounds = misfits.rounds + 1
        misfits = Misfits(rounds, now + pause_s(rounds))
    if machine and policy.node_failure_limit:
        avoided = _with(avoided, Avoided(node, machine, now + AVOID_S, True, kind))
    misfits = replace(misfits, message=texts.cut(message, LONGEST_MESSAGE))
    return replace(known, misfits=misfits, avoided=avoided)


def add_refusal(known: Failures, *, now: float) -> Failures:
    """Remember the round of an agent that was refused while others train. The caller passes the
    agent to :func:`add`, too, for its node."""
    if now < known.refusals.until:
        return known
    rounds = known.refusals.rounds + 1
    return replace(known, refusals=Refusals(rounds, now + pause_s(rounds)))


def pause_s(times: int) -> float:
    """Time without new pods after something that has happened so often."""
    return min(LONGEST_PAUSE_S, _SHORTEST_PAUSE_S * 2.0 ** max(0, min(times - 1, 6)))


def add_start(
    known: Failures, slot: tuple[int, int], incarnation: int, message: str, template: str, *,
    step: int = 0, is_heard: bool = False, is_counted: bool = False, now: float,
) -> Failures:  # fmt: skip
    """Remember a failed start. The caller passes each once, and passes it to :func:`add`, too.

    Those that come during the pause are of the same round, but not another pod of a seat that has
    failed before: a seat may have had two at once, and each counts. template, step: as in
    :class:`FailedStarts`. is_counted: it was not heard, and counts towards the limit.
    """
    starts = known.starts
    starts = replace(starts, is_counted=is_counted or starts.is_counted_at(now))
    is_another = slot in starts.slots and incarnation != starts.incarnation
    if now >= starts.until or is_another:
        rounds = starts.rounds + 1
        until = now + start_pause_s(rounds)
        starts = replace(starts, rounds=rounds, until=until, were_heard=False)
    starts = replace(
        starts,
        slots=starts.slots | {slot},
        incarnation=max(starts.incarnation, incarnation),
        first=incarnation if starts.first < 0 else min(starts.first, incarnation),
        message=texts.cut(message, LONGEST_START_MESSAGE),
        were_heard=starts.were_heard or is_heard,
        template=template,
        step=step,
    )
    return replace(known, starts=starts)


def add_taken(known: Failures, seats: Mapping[tuple[int, int], int], *, now: float) -> Failures:
    """Remember that pods of seats whose starts fail were deleted since others go first. Their ends
    make the pause longer as failed starts do, or each turn would cost one more pod. They count
    towards no limit. seats: slot -> incarnation of its pod.
    """
    starts = known.starts
    is_another = any(s in starts.slots and n > starts.incarnation for s, n in seats.items())
    if now >= starts.until or is_another:
        rounds, is_counted = starts.rounds + 1, starts.is_counted_at(now)
        until = now + start_pause_s(rounds)
        starts = replace(
            starts, rounds=rounds, until=until, is_counted=is_counted, taken=starts.taken + 1
        )
    starts = replace(
        starts,
        slots=starts.slots | seats.keys(),
        incarnation=max(starts.incarnation, *seats.values()),
    )
    return replace(known, starts=starts)


def of_template(known: Failures, template: str) -> Failures:
    """Without failed starts of other templates, and without what follows from them alone."""
    kept = ("", template)
    starts = known.starts
    return replace(
        known,
        recent=tuple(failure for failure in known.recent if failure.template in kept),
        avoided=tuple(place for place in known.avoided if place.template in kept),
        starts=starts if starts.rounds and starts.template in kept else FailedStarts(),
    )


def start_pause_s(rounds: int) -> float:
    """Time without new pods for seats whose pods have failed to start so often in a row."""
    return min(LONGEST_START_S, _FIRST_START_S * _START_GROWTH ** max(0, min(rounds - 1, 9)))


def settle_starts(
    known: Failures,
    proven: Set[tuple[int, int]],
    wanted: Set[tuple[int, int]],
    newest: int,
    *,
    now: float,
) -> Failures:
    """Forget failed starts of seats whose agents are proven, and all of them once newer agents are.

    proven: slots of such agents, and others that nothing is known against. wanted: all slots.
    newest: highest incarnation of a proven agent; an older one says nothing about new pods. The
    clock of an earlier operator may have been ahead, so that the pause seems to be longer than any.
    """
    starts = known.starts
    until = min(starts.until, now + start_pause_s(starts.rounds))
    slots = (starts.slots if now < until else starts.slots & wanted) - proven
    is_over = newest > starts.incarnation or now >= until + FORGET_STARTS_S
    starts = replace(starts, slots=slots, until=until)
    starts = FailedStarts() if is_over and not slots else starts
    return replace(known, starts=starts)


def settle(known: Failures, committed: int, policy: RunPolicy, *, now: float) -> Failures:
    """Forgive, and end what has expired.

    committed: number of committed steps. A restore lowers it; then steps count from there, so that
    repeated steps forgive as others do.
    """
    after = policy.forgive_after_steps
    recent = tuple(replace(f, step=min(f.step, committed)) for f in known.recent)
    older_step = min(known.older_step, committed)
    starts = replace(known.starts, step=min(known.starts.step, committed))
    if after:
        recent = tuple(f for f in recent if committed < f.step + after)
    is_older_forgiven = after > 0 and committed >= older_step + after
    return replace(
        known,
        recent=recent,
        older=0 if is_older_forgiven else known.older,
        older_step=older_step,
        starts=starts,
        avoided=tuple(place for place in known.avoided if now < place.until),
        misfits=_settled(known.misfits, AVOID_S, now),
        refusals=_settled(known.refusals, FORGET_REFUSALS_S, now),
    )


def _settled(known: _Refusals, forget_s: float, now: float) -> _Refusals:
    """Forgotten so long after the pause. The clock of an earlier operator may have been ahead."""
    until = min(known.until, now + pause_s(known.rounds))
    return type(known)() if now >= until + forget_s else replace(known, until=until)
