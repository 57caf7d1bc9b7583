"""Which jobs may make pods. Jobs that compete for room are admitted as a whole, in order.

The invariant: of competing jobs that have not started, at most one holds pods without having its
minimum, which is bound to nodes or has room of its own. It is the first in line, and asks for
nodes. All others whose minimum has no room wait without pods, or give back those that they have.

Pure, and without memory but for :class:`Patience`: after a restart of the operator the same
cluster gives the same turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from fractions import Fraction

from bamboo_core.api.spec import Adjacency, JobSpec
from bamboo_core.controller.turn import ASIDE_S, PATIENCE_S, Turn, Word
from bamboo_core.controller.view import ClusterView, JobView, TrainingView
from bamboo_core.placement import fitting, zones
from bamboo_core.placement.fitting import Amounts


@dataclass(frozen=True)
class NodeRoom:
    """A node: its zone, what its pods leave of it, and what they would without those of jobs."""

    zone: str
    free: Amounts
    whole: Amounts


@dataclass(frozen=True, eq=False)
class Shape:
    """What an agent takes, and where it may run. One object serves all jobs with the same."""

    asks: Amounts
    usable: tuple[str, ...]  # nodes where an agent may be placed now if there is room
    suitable: frozenset[str]  # nodes where it could run if they were empty
    wishes: frozenset[str] = frozenset()  # zones and labels of the nodes that it asks for


@dataclass(frozen=True)
class Claim:
    """A job that wants room."""

    job: JobView
    priority: int
    stages: int
    least: int  # pipelines without which it cannot train
    most: int  # pipelines wanted
    adjacency: Adjacency
    shape: Shape
    held: Mapping[str, int]  # node -> number of its pods there
    is_training: bool = False  # its agents hold the state of the training
    closed: frozenset[str] = frozenset()  # zones where the scheduler refuses its pods
    is_refused: bool = False  # the API server refuses its pods, or it cannot be reconciled

    @property
    def minimum(self) -> int:
        """Number of agents in the smallest grid."""
        return self.least * self.stages

    @property
    def seats(self) -> int:
        """Number of agents in the wanted grid."""
        return self.most * self.stages

    @property
    def pods(self) -> int:
        """Number of its pods that have a node."""
        return sum(self.held.values())


@dataclass(frozen=True)
class Patience:
    """Of a job that asks for nodes that do not exist. Instants in seconds since 1970."""

    since: float
    agents: int  # that would have fitted on all nodes then without the other jobs
    aside_until: float = 0.0  # others go first until then


@dataclass(frozen=True)
class Decision:
    """The turns of all claims by the job's UID."""

    turns: Mapping[str, Turn]
    patience: Mapping[str, Patience] = field(default_factory=dict)  # for the next call


def competes(one: Claim, other: Claim) -> bool:
    """Whether both could use the same node, or wait for the same nodes while there are none."""
    a, b = one.shape, other.shape
    if a is b:
        return True
    if not a.suitable and not b.suitable:
        return not a.wishes.isdisjoint(b.wishes)
    return not a.suitable.isdisjoint(b.suitable)


def is_training(view: ClusterView, training: TrainingView) -> bool:
    """Whether live agents hold the state of the training."""
    return training.planned and any(
        pod.agent in training.members for pod in view.pods if pod.is_alive
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
    minimum does not fit keeps what it could use, so that nobody behind it takes that.
    """
    patience = patience or {}
    line = sorted(claims, key=lambda claim: _place(claim, patience, now))
    ledger = _Ledger(room)
    started = {c.job.uid for c in line if c.is_training or _fits(c, ledger.held(c))}
    for claim in line:
        if claim.job.uid in started:  # nobody takes what a started job needs to go on
            ledger.take(claim, claim.minimum - claim.pods)
    turns = _Line(line, started, ledger).turns()
    return _judged(line, turns, ledger, patience, now)


def _place(claim: Claim, patience: Mapping[str, Patience], now: float) -> tuple[object, ...]:
    """Sorts the line. Names decide between jobs of one second."""
    known, job = patience.get(claim.job.uid), claim.job
    is_aside = claim.is_refused or (known is not None and now < known.aside_until)
    return (is_aside, -claim.priority, job.created_at, job.namespace, job.name, job.uid)


class _Line:
    """Goes once through the line."""

    def __init__(self, line: Sequence[Claim], started: AbstractSet[str], ledger: _Ledger) -> None:
        self._line, self._started, self._ledger = line, started, ledger
        self._turns: dict[str, Turn] = {}
        self._askers: list[Claim] = []  # no two of them compete

    def turns(self) -> dict[str, Turn]:
        """By the job's UID."""
        for index, claim in enumerate(self._line):
            if claim.job.uid in self._turns:
                continue  # it gives its pods back to a job ahead of it
            ahead = next((a for a in self._askers if competes(a, claim)), None)
            if claim.job.uid in self._started:
                self._grow(claim, ahead)
            else:
                self._start(claim, ahead, self._line[index + 1 :])
        return self._turns

    def _grow(self, claim: Claim, ahead: Claim | None) -> None:
        if ahead is None:
            self._ledger.take(claim, claim.seats - max(claim.pods, claim.minimum))
        self._say(Word.KEEPS if ahead else Word.GROWS, claim, ahead)

    def _start(self, claim: Claim, ahead: Claim | None, behind: Sequence[Claim]) -> None:
        there: Mapping[str, int] = self._ledger.there(claim)
        if ahead is None and not _fits(claim, there):
            there = self._displace(claim, behind, there)
        agents = zones.capacity(
            there, stages=claim.stages, pipelines=claim.most, adjacency=claim.adjacency
        )
        if _fits(claim, there):
            self._say(Word.STARTS, claim, None, agents)
        elif ahead is None:
            self._say(Word.ASKS, claim, None, agents)
            self._askers.append(claim)
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
            if _fits(claim, found):
                for loser in losers:
                    self._say(Word.WAITS, loser, claim)
                return found
        for loser in losers:
            self._ledger.give_back(loser, -1)
        return there

    def _say(self, word: Word, claim: Claim, ahead: Claim | None, agents: int = 0) -> None:
        first = ahead.job if ahead is not None else None
        is_outranked = ahead is not None and ahead.priority > claim.priority
        self._turns[claim.job.uid] = Turn(word, agents, claim.minimum, first, is_outranked)


def _judged(
    line: Sequence[Claim],
    turns: dict[str, Turn],
    ledger: _Ledger,
    patience: Mapping[str, Patience],
    now: float,
) -> Decision:
    """Who asks for more nodes than there are, and for how long already."""
    kept: dict[str, Patience] = {}
    for claim in line:
        uid, turn = claim.job.uid, turns[claim.job.uid]
        old = patience.get(uid)
        is_aside = old is not None and now < old.aside_until
        if turn.word is not Word.ASKS and not is_aside:
            continue
        agents, is_enough = ledger.when_empty(claim)
        if is_enough:
            continue
        turns[uid] = replace(turn, is_too_big=True)
        if old is None or agents > old.agents or (old.aside_until and not is_aside):
            kept[uid] = Patience(now, agents)
        elif not is_aside and now >= old.since + PATIENCE_S:
            kept[uid] = replace(old, aside_until=now + ASIDE_S)
        else:
            kept[uid] = old
    return Decision(turns, kept)


def _fits(claim: Claim, by_zone: Mapping[str, int]) -> bool:
    found = zones.feasible_pipelines(
        by_zone, stages=claim.stages, most=claim.least, adjacency=claim.adjacency
    )
    return found >= claim.least


def _limit(claim: Claim) -> int:
    """The most agents of the wanted grid that one zone may have."""
    return zones.zone_limit(stages=claim.stages, pipelines=claim.most, adjacency=claim.adjacency)


class _Ledger:
    """What is left of the nodes while the line is gone through."""

    def __init__(self, room: Mapping[str, NodeRoom]) -> None:
        self._room = room
        self._left: dict[str, Amounts] = {}
        self._taken = Counter[str]()  # by zone: agents that room is kept for
        self._open: dict[int, dict[str, list[str]]] = {}  # by shape: zone -> nodes with room
        self._empty: dict[tuple[object, ...], tuple[int, bool]] = {}

    def held(self, claim: Claim) -> dict[str, int]:
        """Zone -> pods that the job has there."""
        found = Counter[str]()
        for node, count in claim.held.items():
            if node in self._room:
                found[self._room[node].zone] += count
        return dict(found)

    def there(self, claim: Claim) -> dict[str, int]:
        """Zone -> agents that the job has or could have there."""
        found = Counter(self.held(claim))
        for zone, nodes in self._offer(claim).items():
            found[zone] += sum(count for _, count in nodes)
        return dict(found)

    def take(self, claim: Claim, lack: int) -> None:
        """Keep room for so many more agents, as far as there is any, evenly in all zones."""
        if lack <= 0:
            return
        offer, used = self._offer(claim), Counter(self.held(claim))
        while lack > 0 and offer:
            zone = min(offer, key=lambda zone: (used[zone], self._taken[zone], zone))
            node, count = offer[zone].pop()
            self._change(node, claim.shape.asks, -1)
            used[zone] += 1
            self._taken[zone] += 1
            lack -= 1
            if count > 1:
                offer[zone].append((node, count - 1))
            if not offer[zone]:
                del offer[zone]

    def give_back(self, claim: Claim, sign: int) -> None:
        """The job's pods will go; or stay after all, if the sign is negative."""
        for node, count in claim.held.items():
            if node in self._room:
                self._change(node, claim.shape.asks, sign * count)
        self._open.clear()

    def when_empty(self, claim: Claim) -> tuple[int, bool]:
        """How many agents of the wanted grid all nodes could take without other jobs, and whether
        that is enough."""
        shape = claim.shape
        key = (id(shape), claim.stages, claim.least, claim.most, claim.adjacency)
        if key not in self._empty:
            limit, found = _limit(claim), Counter[str]()
            for name in shape.suitable:
                node = self._room.get(name)
                if node is not None and found[node.zone] < limit:
                    found[node.zone] += fitting.room(shape.asks, node.whole)[0]
            agents = zones.capacity(
                found, stages=claim.stages, pipelines=claim.most, adjacency=claim.adjacency
            )
            self._empty[key] = (agents, _fits(claim, found))
        return self._empty[key]

    def _offer(self, claim: Claim) -> dict[str, list[tuple[str, int]]]:
        """Zone -> nodes, each with further agents: in a zone as many as the grid may have there."""
        held, limit = self.held(claim), _limit(claim)
        found: dict[str, list[tuple[str, int]]] = {}
        for zone, nodes in self._zones(claim.shape).items():
            lack = 0 if zone in claim.closed else limit - held.get(zone, 0)
            full: set[str] = set()
            for node in nodes:
                if lack <= 0:
                    break
                count = self._count(claim.shape.asks, node)
                if count <= 0:
                    full.add(node)
                    continue
                found.setdefault(zone, []).append((node, min(count, lack)))
                lack -= count
            if full:  # others with this shape need not look at them again
                nodes[:] = [node for node in nodes if node not in full]
        return found

    def _zones(self, shape: Shape) -> dict[str, list[str]]:
        found = self._open.get(id(shape))
        if found is None:
            found = self._open[id(shape)] = {}
            for node in shape.usable:
                if node in self._room:
                    found.setdefault(self._room[node].zone, []).append(node)
        return found

    def _count(self, asks: Amounts, node: str) -> int:
        return fitting.room(asks, self._left.get(node, self._room[node].free))[0]

    def _change(self, node: str, asks: Amounts, times: int) -> None:
        left = dict(self._left.get(node, self._room[node].free))
        for name, amount in asks.items():
            left[name] = left.get(name, Fraction(0)) + times * amount
        self._left[node] = left


def claim(
    job: JobView,
    spec: JobSpec,
    shape: Shape,
    *,
    priority: int,
    held: Mapping[str, int],
    is_training: bool,
    closed: frozenset[str] = frozenset(),
    is_refused: bool = False,
) -> Claim:
    """That of a job with this spec."""
    grid = spec.pipelines
    return Claim(
        job,
        priority,
        grid.stages,
        grid.min,
        grid.count,
        spec.placement.adjacency,
        shape,
        held,
        is_training,
        closed,
        is_refused,
    )
