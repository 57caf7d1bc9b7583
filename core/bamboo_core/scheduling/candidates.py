"""The work maps of a step: one while nobody is lost, else one for each way to share lost work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from bamboo_core.api.spec import RecoveryPolicy
from bamboo_core.scheduling.sharing.assignment import Assignment
from bamboo_core.scheduling.sharing.estimates import Estimate, estimate
from bamboo_core.scheduling.sharing.rebalancing import Rebalancing, spread
from bamboo_core.scheduling.sharing.step_work import StepWork, WorkMap
from bamboo_core.scheduling.sharing.ways.diffuse import diffuse
from bamboo_core.scheduling.sharing.ways.diffuse_chunks import diffuse_chunks
from bamboo_core.scheduling.sharing.ways.fewer_pipelines import computing, fewer_pipelines
from bamboo_core.scheduling.sharing.ways.one_peer import one_peer
from bamboo_core.scheduling.sharing.ways.peers import peers
from bamboo_core.scheduling.sharing.ways.peers_and_holders import peers_and_holders
from bamboo_core.scheduling.sharing.ways.shadow import shadow

Way = Callable[[StepWork], WorkMap | None]
"""A way to share lost work. None: it does not exist for this step."""

WAYS: Mapping[str, Way] = {
    "Diffuse": diffuse,
    "DiffuseChunks": diffuse_chunks,
    "PeersAndHolders": peers_and_holders,
    "Peers": peers,
    "OnePeer": one_peer,
    "FewerPipelines": fewer_pipelines,
    "Shadow": shadow,
}
"""Name in the status of a job -> the way."""

ALLOWED: Mapping[RecoveryPolicy, tuple[str, ...]] = {
    RecoveryPolicy.AUTO: tuple(WAYS),
    RecoveryPolicy.DIFFUSE: ("Diffuse", "DiffuseChunks"),
    RecoveryPolicy.PEERS: ("Peers", "OnePeer"),
    RecoveryPolicy.SHADOW: ("Shadow",),
}
"""The ways that a policy allows."""

_CLEARLY = 0.95  # of the busiest agent's load: more than that is no reason to move leaves
_LITTLE = 0.02  # of the load: time of sums for which no other way is looked at


class Candidate(NamedTuple):
    """A work map. way: its name; empty: no work is lost."""

    way: str
    work: WorkMap
    estimate: Estimate
    pipelines: int  # among which the leaves are dealt


def candidates(step: StepWork, policy: RecoveryPolicy, room: float = inf) -> list[Candidate]:
    """All different maps that the policy allows, by their estimates. Deterministic.

    room: sums for which an agent has memory; ways that need more are left out, unless all do.
    Where no work is lost there is one: with unequal speeds, slow agents are relieved.
    """
    if not step.orphans:
        return [_undamaged(step, policy)]
    return _within(_all(step, policy), room)


def _all(step: StepWork, policy: RecoveryPolicy, known: Candidate | None = None) -> list[Candidate]:
    """All different maps, whatever memory they need. known: one that is made already."""
    found = list[Candidate]()
    for way in ALLOWED[policy]:
        if known is not None and way == known.way:
            found.append(known)
            continue
        work = WAYS[way](step)
        if work is not None and all(work != other.work for other in found):
            found.append(_candidate(step, way, work))
    if not found:  # Shadow, and nobody holds a copy for another stage
        found.append(_candidate(step, "Peers", peers(step)))
    return found


def _within(found: Sequence[Candidate], room: float) -> list[Candidate]:
    """By their estimates; those that need more memory are left out, unless all do."""
    least = max(room, min(x.estimate.held for x in found))
    found = [x for x in found if x.estimate.held <= least]
    return sorted(found, key=lambda x: x.estimate.guess)


def likeliest(step: StepWork, policy: RecoveryPolicy, room: float = inf) -> Candidate:
    """The map with the least estimate, for those who cannot wait for dry runs. room: as above.

    In Diffuse the busiest agent has the least to do, so it is taken at once where its sums take no
    time to speak of.
    """
    if not step.orphans or "Diffuse" not in ALLOWED[policy]:
        return candidates(step, policy, room)[0]
    found = _candidate(step, "Diffuse", diffuse(step))
    is_quick = found.estimate.wire <= _LITTLE * found.estimate.top
    if is_quick and found.estimate.held <= room:
        return found
    return _within(_all(step, policy, found), room)[0]


def _undamaged(step: StepWork, policy: RecoveryPolicy) -> Candidate:
    """Own leaves, or those of slow agents moved if that makes the step clearly shorter.

    Nothing moves from an agent that is no busier than the busiest would be at typical speed.
    """
    task = Assignment(step)
    usual = _candidate(step, "", dict(task.map))
    if not (step.speed and policy.relieves_slow):
        return usual
    Rebalancing(task).run(above=task.typical_top())
    relieved = _candidate(step, "", spread(task))
    return relieved if relieved.estimate.guess <= _CLEARLY * usual.estimate.guess else usual


def _candidate(step: StepWork, way: str, work: WorkMap) -> Candidate:
    is_fewer = WAYS.get(way) is fewer_pipelines
    pipelines = computing(step) if is_fewer else len(step.seats)
    return Candidate(way, work, estimate(step, work), pipelines)
