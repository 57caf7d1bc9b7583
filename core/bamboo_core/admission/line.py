"""Which jobs may make pods. Jobs that compete for room are admitted as a whole, in order.

The invariant: of competing jobs that have not started, at most one holds pods without having its
minimum, which is bound to nodes or has room of its own. It is the first in line, and asks for
nodes. All others whose minimum has no room wait without pods, or give back those that they have.

Pure, and without memory but for :class:`Patience`: after a restart of the operator the same
cluster gives the same turns. What a started job is assured of, its status says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bamboo_core.admission.claims import Claim, NodeRoom
from bamboo_core.admission.ledger import Ledger
from bamboo_core.controller.reconcile import ASK_ELSEWHERE_S
from bamboo_core.controller.turn import ASIDE_S, PATIENCE_S, Aside, Turn, Word
from bamboo_core.controller.view import ClusterView


@dataclass(frozen=True)
class Patience:
    """How long a job has asked for nodes that do not exist, or its pods have waited for a scheduler
    that does not look at them. Instants are in seconds since 1970."""

    since: float
    agents: int  # that would have fitted on the usable nodes then without the other jobs
    aside_until: float = 0.0  # others go first until then
    is_unheard: bool = False  # since its pods were
    has_started: bool = False


@dataclass(frozen=True)
class Decision:
    """The turns of all claims by the job's UID."""

    turns: Mapping[str, Turn]
    patience: Mapping[str, Patience] = field(default_factory=dict)  # for the next call
    askers: frozenset[str] = frozenset()  # UIDs of those that ask for nodes, or will


def competes(one: Claim, other: Claim) -> bool:
    """Whether both could use the same node, or wait for the same nodes while there are none."""
    a, b = one.shape, other.shape
    if a is b:
        return True
    if not a.suitable and not b.suitable:
        return not a.wishes.isdisjoint(b.wishes)
    return not a.suitable.isdisjoint(b.suitable)


def is_unheard(view: ClusterView, now: float) -> bool:
    """Whether a pod has waited for long without a word of the scheduler: perhaps none looks at it,
    and it never takes the room that is kept for it. Nor does one that needs a missing object."""
    waiting = (pod for pod in view.pods if pod.is_alive and not pod.node)
    return any(
        (pod.refused_at is None or pod.missing) and 0 < pod.created_at <= now - ASK_ELSEWHERE_S
        for pod in waiting
    )


def decide(
    claims: Iterable[Claim],
    room: Mapping[str, NodeRoom],
    patience: Mapping[str, Patience] | None = None,
    *,
    now: float,
) -> Decision:
    """Everybody's turn: by priority, then by age. room: by the node's name.

    Each job takes what it can use of the room that the jobs ahead of it leave. The first whose
    minimum does not fit keeps what it could use, so that nobody behind it takes that. It asks for
    nodes, unless a job ahead of it starts: a scheduler would give the new pods the room that is
    kept for that job, whose own may be pinned to another zone at first.

    A started job gets back first what it has started with, and until then no other one grows. What
    its spec has asked for since then stands in the line. One that has lost the state of its
    training is in the line as a new one, whatever its patience was.
    """
    claims, ledger = list(claims), Ledger(room)
    begun = {c.job.uid for c in claims if c.is_training or c.fits(ledger.held(c))}
    known = (patience or {}).items()
    patience = {uid: old for uid, old in known if uid in begun or not old.has_started}
    line = sorted(claims, key=lambda claim: _place(claim, patience, now))
    started = {
        claim.job.uid: _assure(claim, ledger, is_stuck=_is_stuck(claim, patience, now))
        for claim in line
        if claim.job.uid in begun
    }
    hurt = [c for c in line if c.job.uid in started and _is_hurt(c, patience, now)]
    turns, askers = _Line(line, started, hurt, ledger).turns()
    found = _judged(line, turns, askers, ledger, patience, now)
    kept = {uid: replace(x, has_started=uid in begun) for uid, x in found.patience.items()}
    return replace(found, patience=kept)


def _place(claim: Claim, patience: Mapping[str, Patience], now: float) -> tuple[object, ...]:
    """Sorts the line. Names decide between jobs of one second."""
    known, job = patience.get(claim.job.uid), claim.job
    is_aside = known is not None and now < known.aside_until
    is_aside = is_aside or _is_stuck(claim, patience, now)
    return (is_aside, -claim.priority, job.created_at, job.namespace, job.name, job.uid)


def _is_stuck(claim: Claim, patience: Mapping[str, Patience], now: float) -> bool:
    """Whether its pods cannot take the room that is kept for them."""
    known = patience.get(claim.job.uid)
    was_unheard = known is not None and known.is_unheard and now < known.aside_until
    return claim.is_refused or claim.is_unheard or was_unheard


def _assure(claim: Claim, ledger: Ledger, *, is_stuck: bool) -> Mapping[str, int]:
    """Keep room for what a started job gets back before others: zone -> agents. That depends on
    nothing in its present spec, so that no change of it takes room from others."""
    grid = replace(claim, most=claim.assured // claim.stages)
    return ledger.take(grid, 0 if is_stuck else claim.assured - claim.pods)


def _is_hurt(claim: Claim, patience: Mapping[str, Patience], now: float) -> bool:
    """Whether it lacks agents that it is assured of. Not while the jobs behind it go first."""
    is_aside = bool(_place(claim, patience, now)[0])
    return claim.pods < claim.assured and not is_aside


class _Line:
    """Goes once through the line. started: by the UID of each job that has, what :func:`_assure`
    has kept for it. hurt: those of them that lack some of it; their new pods would come after those
    of jobs that only grow."""

    def __init__(
        self,
        line: Sequence[Claim],
        started: Mapping[str, Mapping[str, int]],
        hurt: Sequence[Claim],
        ledger: Ledger,
    ) -> None:
        self._line, self._started, self._ledger = line, started, ledger
        self._hurt = {claim.job.uid: claim for claim in hurt}
        self._turns: dict[str, Turn] = {}
        self._askers: list[Claim] = []  # no two of them compete
        self._starting: list[Claim] = []  # with room for its minimum, which has no nodes yet

    def turns(self) -> tuple[dict[str, Turn], frozenset[str]]:
        """The turns by the job's UID, and the UIDs of those that ask for nodes, or will."""
        for index, claim in enumerate(self._line):
            if claim.job.uid in self._turns:
                continue  # it gives its pods back to a job ahead of it
            ahead = next((a for a in self._askers if competes(a, claim)), None)
            if claim.job.uid in self._started:
                self._grow(claim, ahead, self._line[index + 1 :])
            else:
                ahead = ahead or self._hurt_beside(claim, is_short=True)
                self._start(claim, ahead, self._line[index + 1 :])
        return self._turns, frozenset(claim.job.uid for claim in self._askers)

    def _hurt_beside(self, claim: Claim, *, is_short: bool = False) -> Claim | None:
        """A started job that needs the claim's nodes to get its lost agents back. is_short: only
        one for whose agents there is no room. If a new job held nodes or asked for more meanwhile,
        the two could wait for each other for ever."""
        found = (h for h in self._hurt.values() if competes(h, claim))
        return next((h for h in found if self._is_short(h) or not is_short), None)

    def _is_short(self, hurt: Claim) -> bool:
        return sum(self._started[hurt.job.uid].values()) < hurt.assured - hurt.pods

    def _grow(self, claim: Claim, ahead: Claim | None, behind: Sequence[Claim]) -> None:
        """A minimum that was raised is waited for as that of a new job is."""
        is_hurt = claim.job.uid in self._hurt
        if ahead is None and not is_hurt:
            ahead = self._hurt_beside(claim)
        if ahead is not None:
            self._say(Word.KEEPS, claim, ahead)
            return
        kept = self._started[claim.job.uid]
        there = Counter(kept)
        if claim.minimum > claim.assured or is_hurt:
            there.update(self._ledger.there(claim))
        is_enough = claim.minimum <= claim.assured and not is_hurt
        if is_enough or claim.fits(there):
            self._say(Word.GROWS, claim, None)
        else:
            self._ask(claim, claim.seated(there))
        taken = self._ledger.take(claim, claim.seats - claim.pods - sum(kept.values()))
        self._reclaim(claim, Counter(kept) + taken, behind)

    def _reclaim(self, claim: Claim, there: Counter[str], behind: Sequence[Claim]) -> None:
        """Jobs behind that have not started give their pods back where pods of a started job wait,
        the last one first. there: zone -> agents that room is kept for.

        Until its pods have the room, nobody behind asks: a scheduler might give it to them again.
        """
        lack = _roomless(claim, there)
        for last in reversed(behind):
            if not lack.total():
                break
            is_settled = last.job.uid in self._started or last.job.uid in self._turns
            if is_settled or not last.held or not competes(claim, last):
                continue
            held = Counter(self._ledger.held(last))
            found = (held & lack).total()
            found += min(lack[""], held.total() - found)
            if not found:
                continue
            self._say(Word.WAITS, last, claim)
            self._ledger.give_back(last, 1)
            there = there + self._ledger.take(claim, found)
            lack = _roomless(claim, there)
        if lack.total() < sum(claim.waiting.values()):
            self._starting.append(claim)

    def _ask(self, claim: Claim, agents: int) -> None:
        starting = next((s for s in self._starting if competes(s, claim)), None)
        self._say(Word.ASKS if starting is None else Word.KEEPS, claim, starting, agents)
        self._askers.append(claim)

    def _start(self, claim: Claim, ahead: Claim | None, behind: Sequence[Claim]) -> None:
        there: Mapping[str, int] = self._ledger.there(claim)
        if ahead is None and not claim.fits(there):
            there = self._displace(claim, behind, there)
        agents = claim.seated(there)
        if claim.fits(there):
            self._say(Word.STARTS, claim, None, agents)
            if claim.pods < claim.minimum:
                self._starting.append(claim)
        elif ahead is None:
            self._ask(claim, agents)
        else:
            self._say(Word.WAITS, claim, ahead, agents)
            return
        self._ledger.take(claim, claim.seats - claim.pods)

    def _displace(
        self, claim: Claim, behind: Sequence[Claim], there: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Jobs behind that have not started give their pods back if the claim fits then, the last
        one first. Returns what there is for the claim."""
        losers: list[Claim] = []
        for last in reversed(behind):
            is_settled = last.job.uid in self._started or last.job.uid in self._turns
            if is_settled or not last.held or not competes(claim, last):
                continue
            losers.append(last)
            self._ledger.give_back(last, 1)
            found = self._ledger.there(claim)
            if claim.fits(found):
                for loser in losers:
                    self._say(Word.WAITS, loser, claim)
                return found
        for loser in losers:
            self._ledger.give_back(loser, -1)
        return there

    def _say(self, word: Word, claim: Claim, ahead: Claim | None, agents: int = 0) -> None:
        first = ahead.job if ahead is not None else None
        is_outranked = ahead is not None and ahead.priority > claim.priority
        self._turns[claim.job.uid] = Turn(
            word, agents, claim.minimum, first, is_outranked, assured=claim.assured
        )


def _roomless(claim: Claim, there: Counter[str]) -> Counter[str]:
    """Its pods without a node that find none, by zone. there: zone -> agents that have room."""
    lack, spare = Counter(claim.waiting) - there, there - Counter(claim.waiting)
    lack[""] -= min(lack[""], spare.total())
    return lack


def _aside(patience: Patience) -> Aside:
    since = patience.since + PATIENCE_S
    until = patience.aside_until or since + ASIDE_S
    return Aside(since, until, is_now=bool(patience.aside_until))


def _judged(
    line: Sequence[Claim],
    turns: dict[str, Turn],
    askers: frozenset[str],
    ledger: Ledger,
    patience: Mapping[str, Patience],
    now: float,
) -> Decision:
    """The decision, with the jobs that ask for more nodes than there are, and since when."""
    kept: dict[str, Patience] = {}
    for claim in line:
        uid, turn = claim.job.uid, turns[claim.job.uid]
        old = patience.get(uid)
        is_aside = old is not None and now < old.aside_until
        if old is not None and old.is_unheard and is_aside:
            kept[uid] = old
            continue
        if claim.is_unheard:  # it may lose its pods by that, so it has to be remembered
            kept[uid] = Patience(now, 0, now + ASIDE_S, is_unheard=True)
            continue
        if uid not in askers and not is_aside:
            continue
        agents, is_enough = ledger.when_empty(claim)
        if is_enough:
            continue
        if old is None or agents > old.agents or (old.aside_until and not is_aside):
            kept[uid] = Patience(now, agents)
        elif not is_aside and now >= old.since + PATIENCE_S:
            kept[uid] = replace(old, aside_until=now + ASIDE_S)
        else:
            kept[uid] = old
        turns[uid] = replace(turn, aside=_aside(kept[uid]))
    return Decision(turns, kept, askers)
