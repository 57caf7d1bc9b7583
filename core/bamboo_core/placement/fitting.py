"""Which nodes can take a pod, and how many of them, as the scheduler counts.

Objects are parsed JSON of Kubernetes. A malformed part is treated as absent: the API server refuses
a pod with such a part, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from bamboo_core.api import quantities
from bamboo_core.api.spec import AGENT_CONTAINER, PlacementSpec, WorkerSpec
from bamboo_core.placement.node_pools import is_spot

Amount = int
"""In thousandths of the base unit, rounded up, as the scheduler counts processors. Whole numbers
are exact, and ten times as fast as fractions."""

Amounts = Mapping[str, Amount]
"""Resource -> amount. Base units: cores, bytes, devices, pods."""

ONE: Amount = 1000
"""A core, byte, device or pod."""

PODS = "pods"
"""The resource of which every pod takes one."""

_NO_LIMIT = 1 << 20
_BLOCKING = ("NoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Needs:
    """The needs of an agent's pod: resources, labels and tolerations."""

    asks: Amounts
    selector: Mapping[str, str]
    terms: tuple[Any, ...] | None  # of the required node affinity; None: there is none
    tolerations: tuple[Any, ...]
    pools: PlacementSpec  # whose labels are asked for, too


@dataclass(frozen=True)
class Place:
    """The traits of a node that decide whether a pod may run on it."""

    name: str
    zone: str
    labels: Mapping[str, str]
    taints: tuple[Any, ...]


def needs(worker: WorkerSpec, placement: PlacementSpec) -> Needs:
    """Those of one agent."""
    body = _object(worker.pod_template.get("spec"))
    every = _objects(body.get("containers"))
    containers = [c for c in every if c.get("name") != AGENT_CONTAINER]
    own: dict[str, Any] = next((c for c in every if c not in containers), {})
    if worker.resources:
        own = own | {"resources": worker.resources}
    affinity = _object(_object(body.get("affinity")).get("nodeAffinity")).get(_REQUIRED)
    return Needs(
        asks=requests(body | {"containers": [own, *containers]}),
        selector=_object(body.get("nodeSelector")),
        terms=None if affinity is None else _objects(_object(affinity).get("nodeSelectorTerms")),
        tolerations=(*_objects(body.get("tolerations")), *tolerations(worker)),
        pools=placement,
    )


def tolerations(worker: WorkerSpec) -> tuple[dict[str, str], ...]:
    """Tolerations of the taints by which pools of devices keep other pods away: a taint named like
    a resource that the agent asks for. Some clouds add them by themselves, others do not."""
    devices = [name for name in worker.asks if "/" in name]
    return tuple({"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in devices)


def requests(pod_spec: Mapping[str, Any]) -> dict[str, Amount]:
    """The resources that a pod takes: its containers, or its largest init container, with sidecars
    and overhead. A missing request equals its limit."""
    running = _sum(_container(c) for c in _objects(pod_spec.get("containers")))
    sidecars: dict[str, Amount] = {}
    peak: dict[str, Amount] = {}
    for container in _objects(pod_spec.get("initContainers")):
        asked = _sum([sidecars, _container(container)])
        peak = _largest(peak, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = asked
    total = _largest(_sum([running, sidecars]), peak)
    total |= _container(pod_spec)  # requests of the pod as a whole replace those of containers
    return _sum([total, _amounts(pod_spec.get("overhead")), {PODS: ONE}])


def free(allocatable: Any, taken: Amounts) -> dict[str, Amount]:
    """The resources that the pods on a node leave; negative where they take more than there is."""
    there = {PODS: _NO_LIMIT * ONE} | _amounts(allocatable)
    return {name: amount - taken.get(name, 0) for name, amount in there.items()}


def room(asks: Amounts, left: Amounts) -> tuple[int, str]:
    """How many pods fit into what is left (below 0 if it is negative), and what limits them."""
    fits = [(left.get(name, 0) // each, name) for name, each in asks.items() if each > 0]
    return min(fits, default=(_NO_LIMIT, ""))


def mismatch(wanted: Needs, place: Place) -> str:
    """Why the pod may not run on the node even if it were empty; empty: it may.

    If the job prefers spot nodes, a node that is none gets only pods that need not be on one.
    """
    more = wanted.pools.selector(place.zone, on_demand=not is_spot(place.labels))
    for name, value in {**wanted.selector, **more}.items():
        if place.labels.get(name) != value:
            return f"no label {name}={value}"
    if wanted.terms is not None and not any(_meets(term, place) for term in wanted.terms):
        return "the node affinity of spec.worker.podTemplate"
    for taint in place.taints:
        if _blocks(taint) and not any(_tolerates(x, taint) for x in wanted.tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint.get('key')}{value}:{taint['effect']}"
    return ""


def _blocks(taint: Any) -> bool:
    return isinstance(taint, dict) and taint.get("effect") in _BLOCKING


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key, is_any = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return is_any
    is_same = is_any or (toleration.get("value") or "") == (taint.get("value") or "")
    return key == taint.get("key") and is_same


def _meets(term: Mapping[str, Any], place: Place) -> bool:
    """A term without any rule matches no node."""
    labels, fields = _objects(term.get("matchExpressions")), _objects(term.get("matchFields"))
    return bool(labels or fields) and (
        all(_holds(rule, place.labels) for rule in labels)
        and all(_holds(rule, {"metadata.name": place.name}) for rule in fields)
    )


def _holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    found, given = labels.get(str(rule.get("key"))), rule.get("values")
    values = given if isinstance(given, list) else []
    match rule.get("operator"):
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as word:
            numbers = [_integer(found), *map(_integer, values)]
            if len(numbers) != 2 or None in numbers:
                return False
            one, other = (x for x in numbers if x is not None)
            return one > other if word == "Gt" else one < other
    return False


def _integer(text: Any) -> int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        return None


def _container(container: Mapping[str, Any]) -> dict[str, Amount]:
    """Requests of a container, or of a pod as a whole."""
    given = _object(container.get("resources"))
    return _amounts(given.get("limits")) | _amounts(given.get("requests"))


def _amounts(given: Any) -> dict[str, Amount]:
    """Those of a template may be negative, until the API server refuses the pod: nobody gives a
    node room by it."""
    out = {}
    for name, amount in _object(given).items():
        try:
            found = _thousandths(str(amount))
        except (ValueError, ArithmeticError):
            continue
        if found >= 0:
            out[name] = found
    return out


@lru_cache(maxsize=1024)
def _thousandths(text: str) -> Amount:
    """ValueError or ArithmeticError if it is not a quantity. Most pods ask for the same ones."""
    return math.ceil(quantities.parse(text) * ONE)


def _sum(parts: Iterable[Amounts]) -> dict[str, Amount]:
    out: dict[str, Amount] = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out.get(name, 0) + amount
    return out


def _largest(one: Amounts, other: Amounts) -> dict[str, Amount]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _object(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _objects(given: Any) -> tuple[dict[str, Any], ...]:
    return tuple(x for x in given if isinstance(x, dict)) if isinstance(given, list) else ()
