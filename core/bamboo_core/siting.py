"""Zones for new pods: the rules of :mod:`bamboo_core.zones` applied to what the operator sees.

A job's first pods get a whole grid; later ones fill holes between neighbours that stay. Nodes
that are not there yet may come (an autoscaler buys what pods wait for), so a lack of room never
stops us; a zone rule that no number of nodes can satisfy does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bamboo_core import zones as rules
from bamboo_core.spec import Adjacency, JobSpec
from bamboo_core.view import NodeView, PodView, Slot


def room(spec: JobSpec, nodes: Iterable[NodeView]) -> dict[str, int]:
    """Zone -> agents for which its ready nodes are big enough; the zones that may be used."""
    allowed = spec.placement.zones
    found = dict.fromkeys(allowed, 0)
    for node in nodes:
        if not allowed or node.zone in allowed:
            usable = node.agents if node.ready and node.schedulable and not node.departing else 0
            found[node.zone] = found.get(node.zone, 0) + usable
    return found


def feasible_pipelines(spec: JobSpec, nodes: Iterable[NodeView]) -> int:
    """Pipelines for which there is room now, at most those wanted."""
    grid = spec.pipelines
    return rules.feasible_pipelines(
        room(spec, nodes),
        stages=grid.stages,
        most=grid.count,
        adjacency=spec.placement.adjacency,
    )


def problem(spec: JobSpec, nodes: Iterable[NodeView]) -> str:
    """Why the wanted grid does not fit now; empty if it does."""
    found = rules.explain(room(spec, nodes), **_grid(spec), adjacency=spec.placement.adjacency)
    return "" if found is None else found.reason


def choose(
    spec: JobSpec, nodes: Sequence[NodeView], pods: Iterable[PodView], holes: Sequence[Slot]
) -> dict[Slot, str]:
    """A zone for every hole that can have one; ``pods``: those that stay."""
    there = room(spec, nodes)
    sited = {pod.slot: pod.zone for pod in pods}
    if not sited:
        return _whole_grid(spec, there, holes)
    chosen: dict[Slot, str] = {}
    for hole in holes:
        zone = _best_zone(spec, there, sited, hole)
        if zone is not None:
            chosen[hole] = sited[hole] = zone
    return chosen


def better_zone(
    spec: JobSpec, nodes: Sequence[NodeView], pods: Iterable[PodView], pod: PodView
) -> str | None:
    """Where there is room for a pod that waits in a zone without; None: it had better wait."""
    others = [other for other in pods if other is not pod]
    there, used = room(spec, nodes), Counter(other.zone for other in others)
    if there.get(pod.zone, 0) > used[pod.zone]:
        return None
    zone = choose(spec, nodes, others, [pod.slot]).get(pod.slot) if others else None
    return zone if zone is not None and there[zone] > used[zone] else None


def shared_neighbours(spec: JobSpec, pods: Iterable[PodView]) -> list[tuple[str, str]]:
    """Pairs of pods on neighbouring seats of a ring that lie in one zone."""
    if spec.pipelines.stages == 1:
        return []
    by_slot = {pod.slot: pod for pod in pods}
    pairs = []
    for slot, pod in sorted(by_slot.items()):
        after = by_slot.get(Slot(slot.pipeline, (slot.stage + 1) % spec.pipelines.stages))
        if after is not None and after.zone == pod.zone:
            pairs.append((pod.name, after.name))
    return pairs


def _grid(spec: JobSpec) -> dict[str, int]:
    return {"stages": spec.pipelines.stages, "pipelines": spec.pipelines.count}


def _whole_grid(spec: JobSpec, there: Mapping[str, int], holes: Sequence[Slot]) -> dict[Slot, str]:
    adjacency = spec.placement.adjacency
    found = rules.zones_for_slots(there, **_grid(spec), adjacency=adjacency)
    if isinstance(found, rules.Infeasible):
        seats = spec.pipelines.count * spec.pipelines.stages
        grown = {zone: max(agents, seats) for zone, agents in there.items()}
        found = rules.zones_for_slots(grown, **_grid(spec), adjacency=adjacency)
    if isinstance(found, rules.Infeasible):
        return {}
    return {slot: found[slot.pipeline][slot.stage] for slot in holes}


def _best_zone(
    spec: JobSpec, there: Mapping[str, int], sited: Mapping[Slot, str], hole: Slot
) -> str | None:
    """Apart from its neighbours; where there is room; away from copies of the stage."""
    stages = spec.pipelines.stages
    neighbours = [Slot(hole.pipeline, (hole.stage + turn) % stages) for turn in (-1, 1)]
    next_to = {sited[slot] for slot in neighbours if slot in sited}
    alternate = spec.placement.adjacency is Adjacency.ALTERNATE and stages > 1
    used = Counter(sited.values())
    copies = Counter(zone for slot, zone in sited.items() if slot.stage == hole.stage)
    rank = {zone: i for i, zone in enumerate(spec.placement.zones)}

    def cost(zone: str) -> tuple[bool, bool, int, int, int, str]:
        free = there[zone] - used[zone]
        strange = not alternate and zone not in next_to
        return (free <= 0, strange, copies[zone], -free, rank.get(zone, 0), zone)

    able = [zone for zone in there if not (alternate and zone in next_to)]
    return min(able, key=cost, default=None)
