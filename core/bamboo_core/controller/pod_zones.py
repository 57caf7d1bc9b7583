"""Zones for new pods: applies :mod:`bamboo_core.placement.zones` to what the operator sees.

A job's first pods get zones for a whole grid; later ones fill holes between neighbours that stay.
More nodes may come, since an autoscaler buys what pods wait for. So pods are created even without
room, but not if no number of nodes could satisfy the zone rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bamboo_core.api.spec import Adjacency, JobSpec
from bamboo_core.controller.view import NodeView, PodView, Slot
from bamboo_core.placement import zones as rules

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Label of nodes that names their zone."""


def room(spec: JobSpec, nodes: Iterable[NodeView]) -> dict[str, int]:
    """Usable zone -> number of agents that fit on its ready nodes.

    A node without a zone label may be anywhere. It is not used if neighbours must be apart.
    """
    allowed = spec.placement.zones
    found = dict.fromkeys(allowed, 0)
    for node in nodes:
        if not node.zone and _keeps_apart(spec):
            continue
        if not allowed or node.zone in allowed:
            usable = node.agents if node.is_usable else 0
            found[node.zone] = found.get(node.zone, 0) + usable
    return found


def avoiding(
    spec: JobSpec, nodes: Sequence[NodeView], until: Mapping[str, float]
) -> tuple[NodeView, ...]:
    """The nodes, with those marked that new agents must avoid.

    until: machine -> instant. No node is avoided if the others have no room, or not for
    ``spec.pipelines.min``: then a bad node is better than none.
    """
    marked = tuple(replace(x, avoided_until=until.get(x.machine, 0.0)) for x in nodes)
    if not any(room(spec, marked).values()):
        return tuple(nodes)
    least = min(spec.pipelines.min, feasible_pipelines(spec, nodes))
    return marked if feasible_pipelines(spec, marked) >= least else tuple(nodes)


def feasible_pipelines(spec: JobSpec, nodes: Iterable[NodeView]) -> int:
    """Number of pipelines that fit now, at most the wanted number."""
    grid = spec.pipelines
    return rules.feasible_pipelines(
        room(spec, nodes),
        stages=grid.stages,
        most=grid.count,
        adjacency=spec.placement.adjacency,
    )


def problem(spec: JobSpec, nodes: Iterable[NodeView]) -> str:
    """Why the wanted grid does not fit now, and what would help; empty: it fits."""
    nodes = list(nodes)
    there, adjacency = room(spec, nodes), spec.placement.adjacency
    found = rules.explain(there, **_grid(spec), adjacency=adjacency)
    if found is None:
        return ""
    if not rules.feasible(_grown(spec, there), **_grid(spec), adjacency=adjacency):
        return _too_few_zones(spec, there, sum(not node.zone for node in nodes))
    preference = spec.placement.zones
    zone = rules.next_zone(there, **_grid(spec), adjacency=adjacency, preference=preference)
    return f"{found.reason}; the next node helps most in zone {zone or 'any'}"


def _too_few_zones(spec: JobSpec, there: Mapping[str, int], nowhere: int) -> str:
    stages = spec.pipelines.stages
    known = ", ".join(sorted(there)) or "none"
    unlabelled = f" ({nowhere} nodes have no label {ZONE_LABEL})" if nowhere else ""
    return (
        f"ring neighbours must not share a zone, and {stages} stages need"
        f" {3 if stages % 2 else 2} zones at least; known zones: {known}{unlabelled}: add nodes in"
        " another zone, name zones in spec.placement.zones that an autoscaler can fill, or set"
        " spec.placement.adjacency to Cluster"
    )


def choose(
    spec: JobSpec, nodes: Sequence[NodeView], pods: Iterable[PodView], holes: Sequence[Slot]
) -> dict[Slot, str]:
    """A zone for every hole that can have one. pods: those that stay."""
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
    """A zone with room for a pod that waits in a full zone; None: it should wait there."""
    others = [other for other in pods if other is not pod]
    there, used = room(spec, nodes), Counter(other.zone for other in others)
    if there.get(pod.zone, 0) > used[pod.zone]:
        return None
    zone = choose(spec, nodes, others, [pod.slot]).get(pod.slot) if others else None
    return zone if zone is not None and there[zone] > used[zone] else None


def shared_neighbours(spec: JobSpec, pods: Iterable[PodView]) -> list[tuple[str, str]]:
    """Pairs of pods on neighbouring seats of a ring in the same zone."""
    if spec.pipelines.stages == 1:
        return []
    by_slot = {pod.slot: pod for pod in pods}
    pairs = []
    for slot, pod in sorted(by_slot.items()):
        after = by_slot.get(Slot(slot.pipeline, (slot.stage + 1) % spec.pipelines.stages))
        if after is not None and after.zone == pod.zone:
            pairs.append((pod.name, after.name))
    return pairs


def _keeps_apart(spec: JobSpec) -> bool:
    return spec.placement.adjacency is Adjacency.ALTERNATE and spec.pipelines.stages > 1


def _grown(spec: JobSpec, there: Mapping[str, int]) -> dict[str, int]:
    """The same zones with room for the whole grid in each."""
    seats = spec.pipelines.count * spec.pipelines.stages
    return {zone: max(agents, seats) for zone, agents in there.items()}


def _grid(spec: JobSpec) -> dict[str, int]:
    return {"stages": spec.pipelines.stages, "pipelines": spec.pipelines.count}


def _whole_grid(spec: JobSpec, there: Mapping[str, int], holes: Sequence[Slot]) -> dict[Slot, str]:
    adjacency = spec.placement.adjacency
    found = rules.zones_for_slots(there, **_grid(spec), adjacency=adjacency)
    if isinstance(found, rules.Infeasible):
        found = rules.zones_for_slots(_grown(spec, there), **_grid(spec), adjacency=adjacency)
    if isinstance(found, rules.Infeasible):
        return {}
    return {slot: found[slot.pipeline][slot.stage] for slot in holes}


def _best_zone(
    spec: JobSpec, there: Mapping[str, int], sited: Mapping[Slot, str], hole: Slot
) -> str | None:
    """Not in a neighbour's zone if they must be apart; then with room; then with few copies of the
    stage."""
    stages = spec.pipelines.stages
    neighbours = [Slot(hole.pipeline, (hole.stage + turn) % stages) for turn in (-1, 1)]
    next_to = {sited[slot] for slot in neighbours if slot in sited}
    alternate = _keeps_apart(spec)
    used = Counter(sited.values())
    copies = Counter(zone for slot, zone in sited.items() if slot.stage == hole.stage)
    rank = {zone: i for i, zone in enumerate(spec.placement.zones)}

    def cost(zone: str) -> tuple[bool, bool, int, int, int, str]:
        free = there[zone] - used[zone]
        strange = not alternate and zone not in next_to
        return (free <= 0, strange, copies[zone], -free, rank.get(zone, 0), zone)

    able = [zone for zone in there if not (alternate and zone in next_to)]
    return min(able, key=cost, default=None)
