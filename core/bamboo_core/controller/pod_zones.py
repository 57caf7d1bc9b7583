"""Zones for new pods: applies :mod:`bamboo_core.placement.zones` to what the operator sees.

If there is room for a whole grid, a job's first pods get its zones. Others go where there is room.
A zone gets no more agents than can be seated apart. Which agents are neighbours, the plan decides,
and it may give them other seats. So a pod may get the zone of a neighbour of its slot, but other
zones go first, since then no agent has to change its seat.
More nodes may come, since an autoscaler buys what pods wait for. So pods are created even without
room. If no number of nodes in the known zones could satisfy the zone rule, and the spec names no
zones, a few pods are created that may run in any zone except their neighbours': they make an
autoscaler show where it has nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.failures import Avoided
from bamboo_core.controller.view import NodeView, NodeViews, PodView, Slot
from bamboo_core.model.counts import counted
from bamboo_core.model.ids import AgentId
from bamboo_core.placement import zones as rules
from bamboo_core.placement.plan import Pipeline

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Label of nodes that names their zone."""
TYPE_LABEL = "node.kubernetes.io/instance-type"
"""Label of nodes that names the kind of machine."""


def room(spec: JobSpec, nodes: Iterable[NodeView], *, on_demand: bool = False) -> dict[str, int]:
    """Usable zone -> number of agents that fit on its ready nodes.

    Without named zones, a zone is usable if some node there suits an agent. A node without a zone
    label may be anywhere. It is not used if neighbours must be apart. on_demand: for agents that
    need no spot node although the job prefers them.
    """
    found = dict.fromkeys(spec.placement.named_zones, 0)
    alike = NodeViews.of(nodes).alike
    for node, is_usable in sites(spec, alike, on_demand=on_demand):
        agents = alike[node] * node.agents if is_usable else 0
        found[node.zone] = found.get(node.zone, 0) + agents
    return found


def sites(
    spec: JobSpec, nodes: Iterable[NodeView], *, on_demand: bool = False
) -> Iterator[tuple[NodeView, bool]]:
    """The nodes where an agent could run if they were empty, and whether one can be placed there
    now if there is room."""
    spot_only = spec.placement.on_demand is not None and not on_demand
    allowed = spec.placement.named_zones
    for node in nodes:
        if not node.suits or (not node.zone and keeps_apart(spec)):
            continue
        if not allowed or node.zone in allowed:
            yield node, node.is_usable and (node.spot or not spot_only)


def avoiding(
    spec: JobSpec,
    nodes: Iterable[NodeView],
    places: Iterable[Avoided],
    good: Set[str] = frozenset(),
) -> NodeViews:
    """The nodes, with those marked that new agents must avoid.

    places: machines to avoid, and kinds, of which all nodes are avoided. good: kinds of nodes where
    agents train, so that only single machines of them are bad. No node is avoided if the others
    have no room, or not for ``spec.pipelines.min``: then a bad node is better than none. No kind is
    avoided, but only the machines, if it is the kinds that leave no room.
    """
    nodes = NodeViews.of(nodes)
    machines = {place.machine: place for place in places}
    kinds = {x.kind: x for x in machines.values() if x.kind and x.kind not in good}
    for by_kind in (kinds, {}) if kinds else ({},):
        bad = [
            (node, place)
            for node in (nodes if machines else ())
            if (place := machines.get(node.machine) or by_kind.get(node.instance_type))
        ]
        if not bad:
            return nodes
        marked = nodes.changed(
            replace(node, avoided_until=place.until, is_misfit=place.is_misfit)
            for node, place in bad
        )
        least = min(spec.pipelines.min, feasible_pipelines(spec, nodes))
        if any(room(spec, marked).values()) and feasible_pipelines(spec, marked) >= least:
            return marked
    return nodes


def avoided_types(
    nodes: NodeViews, places: Iterable[Avoided], good: Set[str] = frozenset()
) -> frozenset[str]:
    """Kinds that new agents must avoid as a whole, also on nodes that an autoscaler adds.

    nodes: marked by :func:`avoiding`.
    """
    kinds = {place.kind for place in places if place.kind} - good
    free = {node.instance_type for node in nodes.alike if not node.avoided_until} if kinds else ()
    return frozenset(kinds.difference(free))


def _room_and_agents(spec: JobSpec, nodes: NodeViews, pods: Iterable[PodView]) -> dict[str, int]:
    """Zone -> number of agents that fit there now.

    pods: the job's own. They stay on a node that takes no new ones, such as one with a new taint,
    unless it is about to go.
    """
    there, allowed = room(spec, nodes), spec.placement.named_zones
    for name, agents in Counter(pod.node for pod in pods if pod.node).items():
        node = nodes.by_name.get(name)
        if node is None or not node.ready or node.departing:
            continue
        takes = sum(node.agents for _, is_usable in sites(spec, [node]) if is_usable)
        if node.zone in allowed or (not allowed and (node.zone or not keeps_apart(spec))):
            there[node.zone] = there.get(node.zone, 0) + max(0, agents - takes)
    return there


def feasible_pipelines(
    spec: JobSpec, nodes: Iterable[NodeView], pods: Iterable[PodView] = ()
) -> int:
    """Number of pipelines that fit now, at most the wanted number. pods: the job's own."""
    grid = spec.pipelines
    return rules.feasible_pipelines(
        _room_and_agents(spec, NodeViews.of(nodes), pods),
        stages=grid.stages,
        most=grid.count,
        adjacency=spec.placement.adjacency,
    )


def problem(spec: JobSpec, nodes: Iterable[NodeView], pods: Iterable[PodView] = ()) -> str:
    """Why the wanted grid does not fit now, and what would help; empty: it fits. pods: the job's
    own."""
    nodes = NodeViews.of(nodes)
    there, adjacency = _room_and_agents(spec, nodes, pods), spec.placement.adjacency
    found = rules.explain(there, **_grid(spec), adjacency=adjacency)
    if found is None:
        return ""
    if not are_enough(spec, there):
        nowhere = sum(count for node, count in nodes.alike.items() if not node.zone)
        return _too_few_zones(spec, there, nowhere)
    preference = spec.placement.named_zones
    zone = rules.next_zone(there, **_grid(spec), adjacency=adjacency, preference=preference)
    return f"{found.reason}; the next node helps most in zone {zone or 'any'}"


def never_fits(spec: JobSpec) -> str:
    """Why the grid fits on no nodes of the zones that the spec names, and what would help; empty:
    it fits if there are enough, or the spec names no zones."""
    named = dict.fromkeys(spec.placement.named_zones, 0)
    if not named or are_enough(spec, named):
        return ""
    return _too_few_zones(spec, named, 0)


def _too_few_zones(spec: JobSpec, there: Mapping[str, int], nowhere: int) -> str:
    stages = spec.pipelines.stages
    known = ", ".join(sorted(there)) or "none"
    unlabelled = f" ({counted(nowhere, 'node')} without the label {ZONE_LABEL})" if nowhere else ""
    return (
        f"ring neighbours must not share a zone, and {counted(stages, 'stage')} need"
        f" {counted(spec.least_zones, 'zone')} at least; known zones: {known}{unlabelled}: add"
        " nodes in another zone, name zones that an autoscaler can fill in spec.placement.zones or"
        " spec.placement.pools, or set spec.placement.adjacency to Cluster"
    )


def choose(
    spec: JobSpec,
    nodes: Iterable[NodeView],
    pods: Iterable[PodView],
    holes: Sequence[Slot],
    dry: Mapping[str, bool] = MappingProxyType({}),
    *,
    on_demand: bool = False,
) -> dict[Slot, str]:
    """A zone for every hole that can have one; empty: any zone but the neighbours'.

    pods: those that stay. dry: zones that refused pods lately -> whether to avoid them now.
    """
    there, pods = room(spec, nodes, on_demand=on_demand), list(pods)
    sited = {pod.slot: pod.zone for pod in pods}
    if not sited and spec.placement.named_zones and not are_enough(spec, there):
        return {}
    grid = _whole_grid(spec, there, dry)
    if any(grid.get(slot) != zone for slot, zone in sited.items()):
        grid = {}  # else the operator has perhaps ended before it made all pods
    search = _Search(spec, there, sited, dry, grid)
    left = _most_anywhere(spec, there) - sum(not (pod.zone or pod.node) for pod in pods)
    chosen: dict[Slot, str] = {}
    for hole in holes:
        zone = search.best(hole)
        if zone is None:
            left -= 1
            zone = "" if left >= 0 else None
        if zone is not None:
            chosen[hole] = zone
            search.put(hole, zone)
    return chosen


def _most_anywhere(spec: JobSpec, there: Mapping[str, int]) -> int:
    """Most pods without a zone that may wait at once: as many as can show enough zones."""
    if spec.placement.named_zones or are_enough(spec, there):
        return 0
    return spec.least_zones if keeps_apart(spec) else spec.pipelines.count * spec.pipelines.stages


def better_zone(
    spec: JobSpec,
    nodes: Iterable[NodeView],
    pods: Iterable[PodView],
    pod: PodView,
    dry: Mapping[str, bool] = MappingProxyType({}),
    *,
    is_patient: bool = True,
) -> str | None:
    """A zone for a pod that waits in a full or dry one; None: it should wait there.

    is_patient: only a zone with room will do, not one where an autoscaler may add nodes.
    """
    others = [other for other in pods if other is not pod]
    if not others and spec.pipelines.count * spec.pipelines.stages > 1:
        return None  # they are made first
    on_demand = pod.is_on_demand
    there = room(spec, nodes, on_demand=on_demand)
    used = Counter(other.zone for other in others)
    if not dry.get(pod.zone) and there.get(pod.zone, 0) > used[pod.zone]:
        return None
    zone = choose(spec, nodes, others, [pod.slot], dry, on_demand=on_demand).get(pod.slot)
    if not zone or zone == pod.zone or dry.get(zone):
        return None
    return zone if there[zone] > used[zone] or not is_patient else None


def shared_neighbours(
    grid: Iterable[Pipeline], pods: Iterable[PodView]
) -> list[tuple[AgentId, AgentId]]:
    """Pairs of agents on neighbouring seats of a ring of the plan in the same zone."""
    zones, pairs = {pod.agent: pod.zone for pod in pods if pod.zone}, set()
    for ring in grid:
        for agent, after in zip(ring, (*ring[1:], ring[0]), strict=True):
            if agent is None or after is None or agent == after:
                continue
            if zones.get(agent, "") == zones.get(after):
                pairs.add((min(agent, after), max(agent, after)))
    return sorted(pairs)


def unseatable(spec: JobSpec, pods: Iterable[PodView]) -> str:
    """Why not all of these agents can have a seat of the wanted grid; empty: they can."""
    there = Counter(pod.zone for pod in pods)
    found = rules.explain(there, **_grid(spec), adjacency=spec.placement.adjacency)
    return found.reason if found is not None else ""


def keeps_apart(spec: JobSpec) -> bool:
    """Whether ring neighbours must be in different zones."""
    return spec.least_zones > 1


def slots(spec: JobSpec) -> list[Slot]:
    """All slots of the wanted grid."""
    grid = spec.pipelines
    return [Slot(d, s) for d in range(grid.count) for s in range(grid.stages)]


def neighbours(spec: JobSpec, slot: Slot) -> list[Slot]:
    """The slots before and after it in the ring."""
    stages = spec.pipelines.stages
    return [Slot(slot.pipeline, (slot.stage + turn) % stages) for turn in (-1, 1)]


def are_enough(spec: JobSpec, zones: Mapping[str, int]) -> bool:
    """Whether the grid fits into these zones if there are enough nodes."""
    return rules.feasible(_grown(spec, zones), **_grid(spec), adjacency=spec.placement.adjacency)


def _grown(spec: JobSpec, there: Mapping[str, int]) -> dict[str, int]:
    """The same zones with room for the whole grid in each."""
    seats = spec.pipelines.count * spec.pipelines.stages
    return {zone: max(agents, seats) for zone, agents in there.items()}


def _grid(spec: JobSpec) -> dict[str, int]:
    return {"stages": spec.pipelines.stages, "pipelines": spec.pipelines.count}


def _whole_grid(
    spec: JobSpec, there: Mapping[str, int], dry: Mapping[str, bool]
) -> dict[Slot, str]:
    """Zones with room for all that are not dry; empty: they have not."""
    known = {zone: agents for zone, agents in there.items() if not dry.get(zone)}
    found = rules.zones_for_slots(known, **_grid(spec), adjacency=spec.placement.adjacency)
    if isinstance(found, rules.Infeasible):
        return {}
    return {Slot(d, s): zone for d, row in enumerate(found) for s, zone in enumerate(row)}


class _Search:
    """Zones for one pod after the other. sited: the zones of those that stay; grid: zones of a
    whole grid that agrees with them; empty: there is none."""

    def __init__(
        self,
        spec: JobSpec,
        there: Mapping[str, int],
        sited: Mapping[Slot, str],
        dry: Mapping[str, bool],
        grid: Mapping[Slot, str],
    ) -> None:
        self._spec, self._there, self._dry, self._grid = spec, there, dry, grid
        self._is_apart = keeps_apart(spec)
        self._most = rules.zone_limit(**_grid(spec), adjacency=spec.placement.adjacency)
        self._are_enough = are_enough(spec, there)
        self._rank = {zone: i for i, zone in enumerate(spec.placement.named_zones)}
        self._sited: dict[Slot, str] = {}
        self._used, self._copies = Counter[str](), Counter[tuple[int, str]]()
        for slot, zone in sited.items():
            self.put(slot, zone)

    def put(self, slot: Slot, zone: str) -> None:
        """A pod of the slot is there."""
        self._sited[slot] = zone
        self._used[zone] += 1
        self._copies[slot.stage, zone] += 1

    def best(self, hole: Slot) -> str | None:
        """With room; then where none was refused; then that of the whole grid; then in no
        neighbour's zone if they must be apart; then with few copies of the stage. None: no zone
        may have more agents.

        If the zones are too few for the grid, pods show whether there are others, and these must
        be apart by their slots.
        """
        around = neighbours(self._spec, hole)
        next_to = {self._sited[slot] for slot in around if slot in self._sited}

        def cost(zone: str) -> tuple[bool, int, bool, bool, int, int, int, str]:
            free, is_dry = self._there[zone] - self._used[zone], self._dry.get(zone, False)
            has_none = free <= 0 or is_dry
            hope = is_dry + (zone in self._dry) if has_none else 0
            strange = (zone in next_to) is self._is_apart
            copies, rank = self._copies[hole.stage, zone], self._rank.get(zone, 0)
            other = self._grid.get(hole, zone) != zone
            return (has_none, hope, other, strange, copies, -free, rank, zone)

        able = [zone for zone in self._there if self._may_have(zone, next_to)]
        return min(able, key=cost, default=None)

    def _may_have(self, zone: str, next_to: Set[str]) -> bool:
        """Whether one more agent may be there."""
        return self._used[zone] < self._most and (self._are_enough or zone not in next_to)
