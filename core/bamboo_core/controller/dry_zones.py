"""Zones in which a job's pods wait in vain, and for how long it asks other zones first.

The scheduler's refusal counts more than the room that nodes seem to have: others' pods may be
invisible, and a node may refuse a pod for reasons that only the scheduler knows. Pure: the instants
are given, in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bamboo_core.controller.view import DryZone, PodView

REFUSED_S = 20.0
"""A zone is dry once the scheduler has refused a pod there for so long."""
FIRST_S = 60.0
"""It is avoided for so long, and twice as long each time that it is still dry afterwards."""
LONGEST_S = 900.0
MOST = 32
"""Dry zones that are remembered at once; those with the earliest expiry are dropped."""


def settle(
    known: tuple[DryZone, ...],
    pods: Iterable[PodView],
    room: Mapping[str, int],
    *,
    now: float,
) -> tuple[DryZone, ...]:
    """Forget zones that take pods again or have got new nodes; add those that refuse pods.

    The scheduler needs a moment for new nodes, and a pod that it still refuses keeps the time of
    the first refusal. So a zone that takes pods or has got room stays in the list with 0 ``times``,
    and refusals count again REFUSED_S later.
    room: usable zone -> agents that seem to fit. If no node has a zone, all are in one without a
    name. Else a pod without a zone may run in any, and its refusal is about none of them.
    """
    are_nameless = room.keys() == {""}
    alive = [pod for pod in pods if pod.is_alive]
    found = {
        dry.zone: _relieved(dry, alive, room.get(dry.zone, 0), now)
        for dry in known
        if now < dry.until + LONGEST_S
    }
    for pod in alive:
        at = refused_until(pod)
        if not (pod.zone or are_nameless) or at is None or now < at:
            continue
        old = found.get(pod.zone)
        if old is None or now >= _due(old):
            times = 1 if old is None else old.times + 1
            pause_s = min(LONGEST_S, FIRST_S * 2.0 ** min(times - 1, 10))
            seen = room.get(pod.zone, 0)
            found[pod.zone] = DryZone(pod.zone, times, now, now + pause_s, seen)
    kept = [dry for dry in found.values() if dry.times or now < _due(dry)]
    newest = sorted(kept, key=lambda dry: (-dry.until, dry.zone))[:MOST]
    return tuple(sorted(newest, key=lambda dry: dry.zone))


def _relieved(dry: DryZone, alive: Iterable[PodView], room: int, now: float) -> DryZone:
    """With 0 ``times`` if it has taken a pod that was made since then, or if its nodes have room
    for more agents than before; else unchanged."""
    takes = any(p.node and p.zone == dry.zone and p.created_at > dry.since for p in alive)
    if takes or room > dry.room:
        return DryZone(dry.zone, 0, now, now, max(room, dry.room))
    return dry


def _due(dry: DryZone) -> float:
    """When refusals count again."""
    return dry.until if dry.times else dry.since + REFUSED_S


def refused_until(pod: PodView) -> float | None:
    """When the scheduler will have refused the pod for long enough; None: it does not refuse it, or
    in every zone, since the pod names something that is not there."""
    if pod.node or pod.refused_at is None or pod.missing:
        return None
    return pod.refused_at + REFUSED_S


def tried(known: Iterable[DryZone], now: float) -> dict[str, bool]:
    """Zones that were dry lately -> whether they are to be avoided now."""
    return {dry.zone: now < dry.until for dry in known if dry.times}


def wake_times(known: Iterable[DryZone], pods: Iterable[PodView]) -> Iterable[float]:
    """Instants at which a zone becomes dry, or may be tried again."""
    yield from (_due(dry) for dry in known)
    yield from (at for pod in pods if pod.is_alive and (at := refused_until(pod)) is not None)
