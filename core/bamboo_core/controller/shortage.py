"""Why agents wait for nodes, in words: which pods, in which zone, what is missing, what helps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller.view import NodeView, NodeViews, PodView, TrainingView
from bamboo_core.evidence import pod_troubles
from bamboo_core.evidence.pod_troubles import Missing

_MAX_ZONES = 3
_MAX_AVOIDED = 3
_MAX_CAUSES = 3
_MAX_REFUSAL = 240
_MAX_REASONS = 4
_MAX_OBJECTS = 8
_INSUFFICIENT = "insufficient "
_OFFERS_NO = "offers no "
_AT_PRESENT = "at present "
_TAINT = "taint "
_LABEL = "no label "
_NO_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")


def insufficient(resource: str) -> str:
    """A lack in words: the node has too little of a resource left."""
    return _INSUFFICIENT + resource


def offers_no(resource: str) -> str:
    """A lack in words: the node has none of a resource, or not yet, since plugins offer devices."""
    return _OFFERS_NO + resource


def at_present(mismatch: str) -> str:
    """A lack in words: it keeps agents away from a node for a while."""
    return _AT_PRESENT + mismatch


def few(reasons: Sequence[tuple[str, str]]) -> str:
    """Reasons in one text. Each has the place where users find it, too; empty: nowhere, so that it
    is always told. While there are more than a few, those with a place give way to its name. Empty
    reasons do not count."""
    given = [(text, place) for text, place in reasons if text]
    room = _MAX_REASONS - sum(not place for _, place in given)
    told, places = "", []
    for text, place in given:
        if place and room <= 0:
            places.append(place)
            continue
        room -= bool(place)
        told += f"; {text}"
    return f"{told}; see also {' and '.join(places)}" if places else told


def explain(spec: JobSpec, nodes: NodeViews, waiting: Iterable[PodView]) -> list[str]:
    """The zones where pods wait, with causes, and the remedies last; empty: no pod waits."""
    by_zone: dict[str, list[PodView]] = {}
    for pod in sorted(waiting, key=lambda pod: pod.name):
        by_zone.setdefault(pod.zone, []).append(pod)
    parts, causes, is_new = [], Counter[str](), False
    unanswered = _unanswered(spec, by_zone)
    for zone, pods in sorted(by_zone.items())[:_MAX_ZONES]:
        there = {x: n for x, n in nodes.alike.items() if x.zone == zone or not zone}
        is_spot_only = spec.placement.on_demand is not None and not pods[0].is_on_demand
        causes += (lacks := _causes(there, is_spot_only=is_spot_only))
        is_new |= _offer_none(there)
        rest = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        where = f"in zone {zone}" if zone else "in any zone"
        parts.append(f"{pods[0].name}{rest} {where}: {_listed(lacks, there, pods)}")
    if not parts:
        return []
    if "" not in by_zone and (others := _held_back(nodes, by_zone.keys())):
        causes += others
        parts.append(f"in other zones: {_counted(others)}")
    return [*parts, unanswered or _remedies(spec, causes, is_new=is_new)]


def is_taint(lacks: str) -> bool:
    """Whether a taint that stays keeps agents away."""
    return lacks.startswith(_TAINT)


def misfits(spec: JobSpec, nodes: NodeViews) -> str:
    """Why no node could take an agent even if it were empty; empty: some node could, or there is
    none, or all are too small."""
    lacks = Counter[str]()
    for node, count in nodes.alike.items():
        lacks[node.lacks] += 0 if node.suits else count
    lacks = +lacks
    if not len(nodes) or len(nodes) > lacks.total():
        return ""
    if all(cause.startswith((_INSUFFICIENT, _OFFERS_NO)) or not cause for cause in lacks):
        return ""
    return f"no node can take an agent: {_counted(lacks)}; {_remedies(spec, lacks)}"


def too_small(spec: JobSpec, nodes: NodeViews) -> str:
    """Why no node is large enough, if that is what keeps agents away; empty: some node is, or there
    is none."""
    if not len(nodes) or any(node.suits for node in nodes.alike):
        return ""
    asked = ", ".join(f"{k} {v}" for k, v in sorted(spec.worker.asks.items()))
    text = f"no node is big enough for one agent: spec.worker.resources asks for {asked}"
    missing = sorted({x.lacks for x in nodes.alike if x.lacks.startswith(_OFFERS_NO)})
    if len(missing) == 1 and _offer_none(nodes.alike):
        text += f"; every node {missing[0]}; a new node does so until its device plugin is ready"
    return text


def avoided(nodes: NodeViews) -> str:
    """Nodes that get no new agents, until when, and why."""
    misfits = [node for node in nodes.avoided if node.is_misfit]
    failed = [node for node in nodes.avoided if not node.is_misfit]
    why = "since their processors compute other bits than those of the other agents"
    return _avoided(failed, "since agents have failed there") + _avoided(misfits, why)


def _avoided(nodes: Iterable[NodeView], why: str) -> str:
    places = sorted((node.avoided_until, node.name) for node in nodes)
    if not places:
        return ""
    listed = ", ".join(f"{name} until {instant(at)}" for at, name in places[-_MAX_AVOIDED:])
    rest = f" and {len(places) - _MAX_AVOIDED} more" if len(places) > _MAX_AVOIDED else ""
    return f"; new agents avoid {listed}{rest}, {why}"


def instant(at: float) -> str:
    """RFC 3339, whole seconds, UTC. Years begin in March, so that a leap day is the last day."""
    days, second = divmod(int(at), 86_400)
    era, day = divmod(days + 719_468, 146_097)  # since March of the year 0, in 400 years
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    date = (400 * era + year + (month >= 10), month + 3 if month < 10 else month - 9, day + 1)
    time = (second // 3600, second // 60 % 60, second % 60)
    return "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z".format(*date, *time)


def _causes(alike: Mapping[NodeView, int], *, is_spot_only: bool) -> Counter[str]:
    """Count the nodes by the reason that keeps agents away from them."""
    found = Counter[str]()
    for node, count in alike.items():
        if node.departing:
            found["about to go"] += count
        elif not node.ready:
            found["not ready"] += count
        elif is_spot_only and not node.spot:
            found["not a spot node"] += count
        elif node.lacks:
            found[node.lacks] += count
        elif not node.schedulable:
            found["cordoned"] += count
        elif node.avoided_until:
            why = "of another kind of processor" if node.is_misfit else "avoided after failures"
            found[why] += count
    return found


def _held_back(nodes: NodeViews, zones: Collection[str]) -> Counter[str]:
    """Taints of nodes outside these zones that have room -> number of nodes."""
    found = Counter[str]()
    for node, count in nodes.alike.items():
        if node.is_held_back and node.is_usable and node.zone not in zones:
            found[node.lacks] += count
    return found


def _listed(found: Counter[str], alike: Mapping[NodeView, int], pods: Sequence[PodView]) -> str:
    if not alike:
        return "no nodes there"
    text = _counted(found)
    if sum(alike.values()) > found.total():  # some look free; the scheduler knows more
        refusal = next((pod.refusal for pod in pods if pod.refusal), "")
        since = instant(min(pod.created_at for pod in pods))
        words = f"no scheduler has answered since {since}"
        words = f"the scheduler says: {_clipped(refusal)}" if refusal else words
        text = f"{text}, {words}" if text else words
    return text


def _unanswered(spec: JobSpec, by_zone: Mapping[str, Sequence[PodView]]) -> str:
    """The fields of the template that keep pods from the scheduler, if none has answered; empty:
    there are none."""
    if any(pod.refusal for pods in by_zone.values() for pod in pods):
        return ""
    given = spec.worker.pod_template.get("spec")
    template = given if isinstance(given, dict) else {}
    found = []
    if (name := template.get("schedulerName")) not in (None, "", "default-scheduler"):
        found.append(f"has schedulerName {name}: check that such a scheduler runs")
    if gates := _names(template.get("schedulingGates"), "name"):
        found.append(f"has schedulingGates {gates}: somebody must remove them from the pods")
    keys = ("resourceClaimName", "resourceClaimTemplateName")
    if claims := _names(template.get("resourceClaims"), *keys):
        found.append(f"has resourceClaims {claims}: check that they exist")
    return f"spec.worker.podTemplate {', and '.join(found)}" if found else ""


def _names(given: object, *keys: str) -> str:
    each = [x for x in given if isinstance(x, dict)] if isinstance(given, list) else []
    return ", ".join(str(x[key]) for x in each for key in keys if x.get(key))


def _counted(causes: Counter[str]) -> str:
    shown = sorted(causes.items(), key=lambda item: (-item[1], item[0]))[:_MAX_CAUSES]
    listed = [f"{cause} ({n} {'node' if n == 1 else 'nodes'})" for cause, n in shown]
    return ", ".join(listed) + (", ..." if len(causes) > _MAX_CAUSES else "")


def _offer_none(nodes: Iterable[NodeView]) -> bool:
    """Whether all of them lack a device, as new nodes do until their plugin is ready. If others
    have it, it is more likely that the node is for other work."""
    lacking = [node.lacks.startswith(_OFFERS_NO) for node in nodes]
    return bool(lacking) and all(lacking)


def _remedies(spec: JobSpec, causes: Counter[str], *, is_new: bool = False) -> str:
    """Remedies, in words; adding nodes always helps. is_new: the nodes may be too new."""
    found = ["add nodes to the pool"]
    if any(cause.startswith(_AT_PRESENT) for cause in causes):
        found.append("wait until the taint goes")
    if is_new:
        found.append("wait for the device plugin of new nodes")
    if any(cause.startswith(_TAINT) for cause in causes):
        found.append("tolerate the taint in spec.worker.podTemplate")
    if any(cause.startswith(_LABEL) for cause in causes):
        pools = "spec.placement.pools or " if spec.placement.pools else ""
        found.append(
            f"label the nodes or change the node selector in {pools}spec.worker.podTemplate"
        )
    if spec.placement.zones:
        found.append("add zones to spec.placement.zones")
    elif spec.placement.pools:
        found.append("add zones to spec.placement.pools")
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


def admitting(refusal: str, *, has_state: bool) -> str:
    """The remedy, in words, if the API server refuses pods with this message. has_state: agents may
    hold the job's state, so that the API server takes no change of the pod template."""
    absent = _NO_PRIORITY.search(refusal)
    if absent is None:
        way, change = "remove what forbids them", "change spec.worker or spec.placement"
    else:
        way = f"create the PriorityClass {absent[1]}"
        change = "name another one in spec.worker.podTemplate"
    return f"{way}; or {_changing(change, has_state=has_state)}"


def absent(missing: Missing, namespace: str, training: TrainingView) -> str:
    """An object that pods name and that is not there, with the remedy."""
    kind, name, lack = missing
    change = _changing("name another one in spec.worker", has_state=training.has_state)
    return (
        f"{kind} {name} in namespace {namespace} {lack}: create or repair it, and the pods go on by"
        f" themselves; or {change}"
    )


def unstarted(spec: JobSpec, alive: Iterable[PodView]) -> str:
    """Pods with a node but without a running container. Only their events show the cause, such as
    an image that is being pulled, or a missing secret of a volume. Empty: there are none."""
    waiting = sorted(pod.name for pod in alive if pod.node and pod.waiting)
    if not waiting:
        return ""
    return (
        f"; {len(waiting)} with a node but no running container yet: kubectl describe pod"
        f" {waiting[0]} shows the cause{volumes(spec)}"
    )


def volumes(spec: JobSpec) -> str:
    """Objects that the volumes of the pods need; empty: none."""
    objects = pod_troubles.needed(spec.worker.pod_template)
    return f"; their volumes need {', '.join(objects[:_MAX_OBJECTS])}" if objects else ""


def _changing(change: str, *, has_state: bool) -> str:
    """How to change what agents are made from."""
    if not has_state:
        return change
    return (
        "set spec.suspend to true, wait until the condition Suspended is true,"
        f" {change}, and set spec.suspend to false"
    )


def with_suspend(text: str, training: TrainingView) -> str:
    """If it names a field that a job whose agents hold its state may not change, add how to do so.
    Another job may change it at once."""
    if not training.has_state or ("spec.worker" not in text and "placement." not in text):
        return text
    return f"{text}; spec.worker and spec.placement can change while the job is suspended"


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_REFUSAL else text[: _MAX_REFUSAL - 3] + "..."
