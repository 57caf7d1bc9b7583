"""The durable facts, which an arbiter must not forget; the BambooJob's status has them as JSON.

Everything else is rebuilt from the agents' reports. Lists of agents are packed,
since status must stay small: a seat grid of 1,024 agents takes about 4 KB.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, NamedTuple

from bamboo_core.api.outcome import Outcome
from bamboo_core.api.progress import BestCheckpoint
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import BestSpec, RedundancyMode
from bamboo_core.arbiter_state.last_write import LastWrite
from bamboo_core.model import pruning, sampling
from bamboo_core.model.claims import Claim, Dispute, Question
from bamboo_core.model.ids import AgentId, Coordinate, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.model.processors import Kinds, ProcessorKind, bounded
from bamboo_core.placement.plan import Cut, Move, Pipeline
from bamboo_core.protection.hazard import Hazard, ZoneRecord
from bamboo_core.protection.measured import EmptySeats, Measured
from bamboo_core.protocol.messages import Fork as Fork
from bamboo_core.protocol.messages import Manifest

_MAX_PLAIN = 2048
_MAX_MANIFESTS = 6
_MAX_BAD = 8
_MAX_VOIDED = 8
_MAX_SUSPECTS = 32
_MAX_PROCESSORS = 8
_MAX_FORKS = 32
_MAX_RESTORED = 16


class Restored(NamedTuple):
    """An order of the user to restore a checkpoint, which was carried out or refused."""

    id: str
    from_step: int
    attempt: int = 0  # that it has begun; 0: none, since it was refused or nothing was computed


@dataclass(frozen=True)
class Durable:
    """The facts that are written before the first message that depends on them leaves."""

    term: int = 0  # of the newest leader
    attempt: int = 0
    steps: int = 0  # at which training ends now; 0: an earlier version has written this
    manifest: Manifest | None = None  # the checkpoint that the attempt began with; None: no file
    forks: tuple[Fork, ...] = ()  # of all attempts but the first; see shrunk
    plan: Fence = Fence()  # of the newest plan; a NamedTuple is immutable
    members: tuple[AgentId, ...] = ()  # agents that must report
    voters: tuple[AgentId, ...] = ()  # at least one of them must report
    departed: tuple[AgentId, ...] = ()  # members that have handed over: nobody awaits them
    # of the newest plan, see bamboo_core.placement.plan.Plan
    pipelines: tuple[Pipeline, ...] = ()
    cut: Cut = ()
    step_cut: Cut = ()
    target: int = 0
    move: Move | None = None  # that has begun
    batch: BatchShape | None = None
    manifests: tuple[Manifest, ...] = ()  # sealed checkpoints, oldest first
    # (attempt, step) of checkpoints that are torn or could not be written: the newest few, and all
    # that ``manifests`` names
    bad: tuple[tuple[int, int], ...] = ()
    committed: int = -1  # newest commit known when this was written
    # Of mode Auto: the mode of the newest plan (None: it is another one), the losses seen, how long
    # things have taken, and how long seats were empty.
    mode: RedundancyMode | None = None
    hazard: Hazard = Hazard()  # noqa: RUF009 - frozen
    measured: Measured = Measured()  # noqa: RUF009 - frozen
    empty: EmptySeats = EmptySeats()  # noqa: RUF009 - frozen
    # What was made before it, in steps that were not committed then, may be wrong: it is dropped.
    void: Fence = Fence()
    voided: tuple[int, ...] = ()  # the newest steps of this attempt that were void, ``void`` last
    # Who differs about the newest void step, and may hold a wrong copy of a layer; () once the
    # copies have been compared.
    disputants: tuple[AgentId, ...] = ()
    question: Question | None = None  # its agents compute nothing until the question is over
    suspects: tuple[AgentId, ...] = ()  # one of them held a wrong copy, and nobody knows which
    undone: int = 0  # steps committed before the newest restore; 0: a commit has followed it
    rollbacks: int = 0  # restores because of wrong bits that were committed
    # Newest attempt that has left newer checkpoints behind on purpose, committed or not: because of
    # wrong bits, or since the user wanted it.
    rolled_back: int = 0
    restored: tuple[Restored, ...] = ()  # orders of the user, the newest last
    last_write: LastWrite | None = None  # None: nothing but training is left to do
    # By which error of the user's code a process has ended. The state is written before the same is
    # computed again.
    saving: str = ""
    failing: str = ""  # by which error of the user's code the job ends, once its state is written
    failing_by: str = ""  # the reason with which it ends then
    processors: Kinds = ()  # one each time another kind, or a new attempt, went on
    outcome: Outcome | None = None
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        """Keep lists short: a folder that cannot be written adds to ``bad`` at every checkpoint."""
        object.__setattr__(self, "voided", self.voided[-_MAX_VOIDED:])
        object.__setattr__(self, "suspects", self.suspects[-_MAX_SUSPECTS:])
        object.__setattr__(self, "restored", self.restored[-_MAX_RESTORED:])
        object.__setattr__(self, "processors", bounded(self.processors, _MAX_PROCESSORS))
        if len(self.bad) > _MAX_BAD:
            known = {(m.attempt, m.step) for m in self.manifests}
            newest = self.bad[-_MAX_BAD:]
            kept = tuple(mark for mark in self.bad[:-_MAX_BAD] if mark in known)
            object.__setattr__(self, "bad", kept + newest)


def eligible(durable: Durable) -> tuple[Manifest, ...]:
    """Checkpoints that may be read, oldest first: good, and not beyond a later attempt's fork."""
    bad = set(durable.bad)
    good = [
        m
        for m in durable.manifests
        if (m.attempt, m.step) not in bad
        and all(m.step <= f.step for f in durable.forks if f.attempt > m.attempt)
    ]
    return tuple(sorted(good, key=lambda m: (m.step, m.attempt)))


def best(durable: Durable, how: BestSpec | None) -> Manifest | None:
    """The best of the :func:`eligible` checkpoints; None: none has a value, or none is wanted."""
    if how is None:
        return None
    known = {(m.attempt, m.step): m for m in eligible(durable)}
    mark = pruning.best({k: m.value for k, m in known.items()}, (), is_max=how.is_max)
    return known[mark] if mark is not None else None


def shown_best(durable: Durable, how: BestSpec | None) -> BestCheckpoint | None:
    """The same for users."""
    found = best(durable, how)
    if found is None or found.value is None or how is None:
        return None
    return BestCheckpoint(found.step, found.attempt, how.metric, found.value, found.path)


def is_sealed(durable: Durable, mark: tuple[int, int]) -> bool:
    """Whether the checkpoint of this (attempt, step) is complete, and was not found wrong."""
    return mark not in durable.bad and any((m.attempt, m.step) == mark for m in durable.manifests)


def with_newer(durable: Durable, newest: int) -> Durable:
    """The facts without the fork of an attempt that has committed nothing: no bit depends on it, so
    newer files of the attempt before may be read again. Not if they were left behind on purpose.
    newest: step of the newest known commit."""
    forks = durable.forks
    is_idle = forks and forks[-1].attempt == durable.attempt and newest < forks[-1].step
    if not is_idle or durable.attempt == durable.rolled_back:
        return durable
    return replace(durable, forks=forks[:-1])


def orderable(durable: Durable, newest: int) -> tuple[Manifest, ...]:
    """Checkpoints to which a user may let the job go back, oldest first. One that counts as wrong
    is among them, before a good one of its step: operators of earlier versions have marked files
    that were not there for a while. newest: step of the newest known commit."""
    facts = with_newer(durable, newest)
    good = eligible(facts)
    wrong = [m for m in eligible(replace(facts, bad=())) if m not in good]
    return tuple(sorted([*wrong, *good], key=lambda m: m.step))


def computed_on(durable: Durable) -> Kinds:
    """The kinds of processor that have computed the present state. Those are left out of which a
    restore has left nothing: what they computed is behind a later fork, or their attempt has
    committed nothing, so that its own fork is gone."""
    forks = durable.forks
    attempts = {0, durable.attempt, *(f.attempt for f in forks)}
    return tuple(
        kind
        for kind in durable.processors
        if kind.attempt in attempts
        and all(kind.step < f.step for f in forks if f.attempt > kind.attempt)
    )


def shrunk(durable: Durable) -> tuple[Fork, ...]:
    """The forks without those that rule out nothing, since a later one rules out as much, and
    without those of too many old attempts: all their files are void then, but none that is known.

    The last fork must be final (:func:`with_newer`): else what it rules out may count again.
    """
    named = {kind.attempt for kind in durable.processors}  # see computed_on
    kept: list[Fork] = []
    least = inf
    for fork in reversed(durable.forks):
        if fork.step < least or fork.attempt in named:
            kept.append(fork)
        least = min(least, fork.step)
    found = replace(durable, forks=tuple(reversed(kept)))
    while len(found.forks) > _MAX_FORKS:
        fewer = _without_oldest(found)
        if fewer is None:
            break
        found = fewer
    return found.forks


def _without_oldest(durable: Durable) -> Durable | None:
    """The facts without one old fork. The next one takes its step, and so rules out a few files
    more, which nobody knows. None if every fork is needed."""
    forks, wanted = durable.forks, (eligible(durable), computed_on(durable))
    for n in range(len(forks) - 1):
        joined = Fork(forks[n + 1].attempt, min(forks[n].step, forks[n + 1].step))
        fewer = replace(durable, forks=(*forks[:n], joined, *forks[n + 2 :]))
        if (eligible(fewer), computed_on(fewer)) == wanted:
            return fewer
    return None


def would_repeat(durable: Durable) -> bool:
    """Whether a new attempt would begin just like this one, which has never had a plan."""
    newest = next(reversed(eligible(durable)), None)
    return durable.attempt > 0 and not durable.voters and newest == durable.manifest


def verified(durable: Durable, committed: float, save_every: int) -> tuple[Manifest, ...]:
    """The :func:`eligible` checkpoints that were verified: their step is committed, and in it all
    copies of the layers were found equal. Those with which this attempt may have begun count, too,
    because all its copies come from such a file. committed: newest commit that is trusted;
    save_every: steps between two checkpoints, 0: there are none."""
    return tuple(
        m
        for m in eligible(durable)
        if m.attempt < durable.attempt
        or m == durable.manifest  # of another job, from which the first attempt began
        or (m.step <= committed and sampling.are_copies_due(m.step, save_every))
    )


def with_manifest(
    durable: Durable, new: Manifest, how: BestSpec | None = None
) -> tuple[Manifest, ...]:
    """The known checkpoints with one more, oldest first; only the newest few and the best one are
    worth remembering."""
    kept = {(m.attempt, m.step): m for m in (*durable.manifests, new)}
    known = tuple(kept[key] for key in sorted(kept))
    first, newest = best(replace(durable, manifests=known), how), known[-_MAX_MANIFESTS:]
    return newest if first is None or first in newest else (first, *newest[1:])


def with_listed(
    durable: Durable, found: Iterable[Manifest], newest: int, how: BestSpec | None = None
) -> tuple[Manifest, ...]:
    """The known checkpoints with those that somebody has found, oldest first. Of too many, those go
    first that may not be read, but never the one that the attempt began with, nor the best one.
    newest: step of the newest known commit."""
    known = {(m.attempt, m.step): m for m in durable.manifests}
    every = known | {(m.attempt, m.step): m for m in found if m.attempt <= durable.attempt}
    facts = with_newer(replace(durable, manifests=tuple(every.values())), newest)
    useful = [(m.attempt, m.step) for m in eligible(facts)][-_MAX_MANIFESTS:]
    for other in (durable.manifest, best(facts, how)):
        if other is not None and (mark := (other.attempt, other.step)) in every:
            useful += [mark] * (mark not in useful)
    others = sorted(known.keys() - set(useful))
    room = max(0, _MAX_MANIFESTS - len(useful))
    return tuple(every[key] for key in sorted([*useful, *others[max(0, len(others) - room) :]]))


# ---------------------------------------------------------------- JSON


def to_json(durable: Durable) -> dict[str, Any]:
    """JSON object for the status. Inverse of :func:`from_json`."""
    d = durable
    out: dict[str, Any] = {
        "term": d.term,
        "attempt": d.attempt,
        "plan": list(d.plan),
        "target": d.target,
        "committed": d.committed,
        "agents": _pack(_agents(d)),
        "cut": [list(r) for r in d.cut],
        "forks": [[f.attempt, f.step] for f in d.forks],
        "manifests": [_manifest(m) for m in d.manifests],
        "bad": [list(b) for b in d.bad],
        "voided": list(d.voided),
        "disputants": list(d.disputants),
        "suspects": list(d.suspects),
    }
    if d.steps:
        out["steps"] = d.steps
    if d.departed:
        out["departed"] = _pack(" ".join(d.departed))
    if d.step_cut != d.cut:
        out["stepCut"] = [list(r) for r in d.step_cut]
    if d.move is not None:
        out["move"] = [d.move.agent, *d.move.to]
    if d.mode is not None:
        out["mode"] = d.mode.value
    if d.hazard.zones:
        out["hazard"] = [[z.zone, z.losses, z.agent_s] for z in d.hazard.zones]
    if d.measured != Measured():
        m = d.measured
        # an earlier version reads refills in the middle
        out["measured"] = [m.pipelines, m.step_s, list(m.stops), [], list(m.restarts)]
    if d.empty != EmptySeats():
        e = d.empty
        out["emptySeats"] = [e.seat_s, e.empty_s, e.pair_s, e.refilled]
    if d.void != Fence():
        out["void"] = list(d.void)
    if d.question is not None:
        out["question"] = _question(d.question)
    if d.undone:
        out["undone"] = d.undone
    if d.rollbacks:
        out["rollbacks"] = d.rollbacks
    if d.last_write is not None:
        out["lastWrite"] = list(d.last_write)
    if d.saving:
        out["saving"] = d.saving
    if d.failing:
        out["failing"], out["failingBy"] = d.failing, d.failing_by
    if d.restored:
        out["restored"] = [list(order) for order in d.restored]
    if d.attempt or d.rolled_back:
        out["rolledBack"] = d.rolled_back
    if d.processors:
        out["processors"] = [[p.device, p.products, p.step, p.attempt] for p in d.processors]
    if d.manifest is not None:
        out["manifest"] = _manifest(d.manifest)
    if d.batch is not None:
        out["batch"] = [d.batch.microbatches, d.batch.leaf_size, d.batch.chunks]
    if d.outcome is not None:
        out |= {"outcome": d.outcome.value, "reason": d.reason, "message": d.message}
    return {key: value for key, value in out.items() if value not in ([], "")}


def from_json(value: dict[str, Any]) -> Durable:
    """ValueError names the field that cannot be read; an empty object is a fresh job."""
    try:
        return _read(value)
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise ValueError(f"durable state of the job is unreadable: {error!r}") from error


def _read(value: dict[str, Any]) -> Durable:
    pipelines, members, voters = _from_agents(_unpack(value.get("agents", "")))
    cut = _cut(value.get("cut", ()))
    batch = value.get("batch")
    manifest = value.get("manifest")
    outcome = value.get("outcome")
    return Durable(
        term=int(value.get("term", 0)),
        attempt=int(value.get("attempt", 0)),
        steps=int(value.get("steps", 0)),
        manifest=None if manifest is None else Manifest(*manifest),
        forks=tuple(Fork(*f) for f in value.get("forks", ())),
        plan=Fence(*value.get("plan", ())),
        members=members,
        voters=voters,
        departed=tuple(map(AgentId, _unpack(value.get("departed", "")).split())),
        pipelines=pipelines,
        cut=cut,
        step_cut=_cut(value["stepCut"]) if "stepCut" in value else cut,
        target=int(value.get("target", 0)),
        move=_move(*value["move"]) if "move" in value else None,
        batch=None if batch is None else BatchShape(*batch),
        manifests=tuple(Manifest(*m) for m in value.get("manifests", ())),
        bad=tuple((int(a), int(s)) for a, s in value.get("bad", ())),
        committed=int(value.get("committed", -1)),
        mode=None if (mode := value.get("mode")) is None else RedundancyMode(mode),
        hazard=_hazard(value.get("hazard", ())),
        measured=_measured(value["measured"]) if "measured" in value else Measured(),
        empty=_empty(*value["emptySeats"]) if "emptySeats" in value else EmptySeats(),
        void=Fence(*value.get("void", ())),
        voided=tuple(int(step) for step in value.get("voided", ())),
        disputants=tuple(AgentId(agent) for agent in value.get("disputants", ())),
        suspects=tuple(AgentId(agent) for agent in value.get("suspects", ())),
        undone=int(value.get("undone", 0)),
        rollbacks=int(value.get("rollbacks", 0)),
        restored=tuple(_restored(*order) for order in value.get("restored", ())),
        # A status of an earlier version does not say why its attempt began.
        rolled_back=int(value.get("rolledBack", value.get("attempt", 0))),
        last_write=LastWrite(*value["lastWrite"]) if "lastWrite" in value else None,
        saving=str(value.get("saving", "")),
        failing=str(value.get("failing", "")),
        # A status of an earlier version fails by the user's code alone.
        failing_by=str(
            value.get("failingBy", Reason.USER_CODE_FAILED if "failing" in value else "")
        ),
        processors=tuple(_processor(*found) for found in value.get("processors", ())),
        question=_read_question(value["question"]) if "question" in value else None,
        outcome=None if outcome is None else Outcome(outcome),
        reason=str(value.get("reason", "")),
        message=str(value.get("message", "")),
    )


def _restored(name: Any, step: Any, attempt: Any) -> Restored:
    return Restored(str(name), int(step), int(attempt))


def _move(agent: Any, pipeline: Any, stage: Any) -> Move:
    return Move(AgentId(agent), Coordinate(int(pipeline), int(stage)))


def _cut(value: Any) -> Cut:
    return tuple((int(lo), int(hi)) for lo, hi in value)


def _hazard(value: Any) -> Hazard:
    return Hazard(tuple(ZoneRecord(str(z), float(n), float(s)) for z, n, s in value))


def _measured(value: Any) -> Measured:
    pipelines, step_s, stops, _refills, restarts = value
    return Measured(int(pipelines), float(step_s), tuple(stops), tuple(restarts))


def _empty(seat_s: Any, empty_s: Any, pair_s: Any, refilled: Any) -> EmptySeats:
    return EmptySeats(float(seat_s), float(empty_s), float(pair_s), float(refilled))


def _processor(device: Any, products: Any, step: Any, attempt: Any) -> ProcessorKind:
    return ProcessorKind(str(device), str(products), int(step), int(attempt))


def _question(d: Question) -> list[Any]:
    claims = [[c.agent, c.entered, c.digest, c.layers] for c in d.dispute.claims]
    return [d.step, d.dispute.lo, d.dispute.hi, d.dispute.microbatch, claims]


def _read_question(value: Any) -> Question:
    step, lo, hi, microbatch, claims = value
    said = tuple(Claim(AgentId(a), int(e), int(d), int(x)) for a, e, d, x in claims)
    return Question(int(step), Dispute(int(lo), int(hi), int(microbatch), said))


def _manifest(m: Manifest) -> list[Any]:
    is_known = m.value is not None and isfinite(m.value)  # JSON has no other numbers
    return [m.attempt, m.step, m.path, m.digest, *([m.value] if is_known else [])]


def _agents(d: Durable) -> str:
    """One line a pipeline (``-``: a hole), then members without a seat; ``!`` marks non-voters."""
    voters, seated = set(d.voters), set[AgentId]()
    members = set(d.members)

    def word(agent: AgentId | None) -> str:
        if agent is None or agent not in members:
            return "-"
        seated.add(agent)
        return agent + ("" if agent in voters else "!")

    rows = [" ".join(word(a) for a in pipeline) for pipeline in d.pipelines]
    rest = [a for a in d.members if a not in seated]
    return "\n".join([*rows, "+ " + " ".join(word(a) for a in rest)]) if rows or rest else ""


def _from_agents(
    text: str,
) -> tuple[tuple[Pipeline, ...], tuple[AgentId, ...], tuple[AgentId, ...]]:
    pipelines: list[Pipeline] = []
    members: set[AgentId] = set()
    voters: set[AgentId] = set()
    for line in text.splitlines():
        words = line.removeprefix("+").split()
        agents = [None if w == "-" else AgentId(w.removesuffix("!")) for w in words]
        members.update(a for a in agents if a is not None)
        voters.update(AgentId(w) for w in words if w != "-" and not w.endswith("!"))
        if not line.startswith("+"):
            pipelines.append(tuple(agents))
    return tuple(pipelines), tuple(sorted(members)), tuple(sorted(voters))


def _pack(text: str) -> str:
    if len(text) <= _MAX_PLAIN:
        return text
    return "z:" + base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _unpack(text: str) -> str:
    if not text.startswith("z:"):
        return text
    return zlib.decompress(base64.b85decode(text[2:])).decode()
