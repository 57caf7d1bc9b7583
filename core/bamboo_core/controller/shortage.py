"""Why agents wait for nodes, in words: which pods, in which zone, what is missing, what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import NodeView, NodeViews, PodView

_MAX_ZONES = 3
_MAX_CAUSES = 3
_MAX_REFUSAL = 240
_INSUFFICIENT = "insufficient "
_TAINT = "taint "
_LABEL = "no label "


def insufficient(resource: str) -> str:
    """What a node lacks that has too little of a resource left."""
    return _INSUFFICIENT + resource


def explain(spec: JobSpec, nodes: NodeViews, waiting: Iterable[PodView]) -> str:
    """The zones where pods wait, with causes and remedies; empty: no pod waits."""
    by_zone: dict[str, list[PodView]] = {}
    for pod in sorted(waiting, key=lambda pod: pod.name):
        by_zone.setdefault(pod.zone, []).append(pod)
    parts, causes = [], Counter[str]()
    for zone, pods in sorted(by_zone.items())[:_MAX_ZONES]:
        there = {x: n for x, n in nodes.alike.items() if x.zone == zone or not zone}
        causes += (found := _causes(there))
        rest = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        where = f"in zone {zone}" if zone else "in any zone"
        parts.append(f"{pods[0].name}{rest} {where}: {_listed(found, there, pods)}")
    if not parts:
        return ""
    return f"{'; '.join(parts)}; {_remedies(spec, causes)}"


def misfits(spec: JobSpec, nodes: NodeViews) -> str:
    """Why no node could take an agent even if it were empty; empty: some node could, or there is
    none, or all are too small."""
    lacks = Counter[str]()
    for node, count in nodes.alike.items():
        lacks[node.lacks] += 0 if node.suits else count
    lacks = +lacks
    if not len(nodes) or len(nodes) > lacks.total():
        return ""
    if all(cause.startswith(_INSUFFICIENT) or not cause for cause in lacks):
        return ""
    return f"no node can take an agent: {_counted(lacks)}; {_remedies(spec, lacks)}"


def _causes(alike: Mapping[NodeView, int]) -> Counter[str]:
    """What keeps the agents away -> number of nodes."""
    found = Counter[str]()
    for node, count in alike.items():
        if node.departing:
            found["about to go"] += count
        elif not node.ready:
            found["not ready"] += count
        elif node.lacks:
            found[node.lacks] += count
        elif not node.schedulable:
            found["cordoned"] += count
        elif node.avoided_until:
            found["avoided after failures"] += count
    return found


def _listed(found: Counter[str], alike: Mapping[NodeView, int], pods: Sequence[PodView]) -> str:
    if not alike:
        return "no nodes there"
    text = _counted(found)
    if sum(alike.values()) > found.total():  # some look free; the scheduler knows more
        refusal = next((pod.refusal for pod in pods if pod.refusal), "")
        words = f"the scheduler says: {_clipped(refusal)}" if refusal else "no answer yet"
        text = f"{text}, {words}" if text else words
    return text


def _counted(causes: Counter[str]) -> str:
    shown = sorted(causes.items(), key=lambda item: (-item[1], item[0]))[:_MAX_CAUSES]
    listed = [f"{cause} ({n} {'node' if n == 1 else 'nodes'})" for cause, n in shown]
    return ", ".join(listed) + (", ..." if len(causes) > _MAX_CAUSES else "")


def _remedies(spec: JobSpec, causes: Counter[str]) -> str:
    """What would help; adding nodes always does."""
    found = ["add nodes to the pool"]
    if any(cause.startswith(_TAINT) for cause in causes):
        found.append("tolerate the taint in spec.worker.podTemplate")
    if any(cause.startswith(_LABEL) for cause in causes):
        found.append("change the node selector or label the nodes")
    if spec.placement.zones:
        found.append("add zones to spec.placement.zones")
    elif spec.placement.pools:
        found.append("add zones to spec.placement.pools")
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_REFUSAL else text[: _MAX_REFUSAL - 3] + "..."
