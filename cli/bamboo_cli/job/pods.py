"""Reads the pods of a BambooJob, the zones of pods and nodes, and which nodes are of use. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bamboo_cli.job.state import Manifest
from bamboo_core.controller.view import Slot, parse_pod_name
from bamboo_core.evidence.taints import lasting
from bamboo_core.placement import fitting
from bamboo_core.placement.fitting import Needs, Place
from bamboo_core.validation.reading import read

ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class Seat:
    """The newest pod of a slot."""

    pod: str
    phase: str  # as `kubectl get pods` shows it
    node: str
    zone: str  # of the node, or the one that the pod asks for
    incarnation: int


def zones_of(nodes: Iterable[Manifest]) -> dict[str, str]:
    """Node name -> zone ("" if it has no zone label)."""
    return {
        node["metadata"]["name"]: (node["metadata"].get("labels") or {}).get(ZONE_LABEL, "")
        for node in nodes
    }


def agent_zones(pods: Iterable[Manifest], nodes: Iterable[Manifest]) -> dict[str, str]:
    """Pod -> zone: of its node, else the one that it asks for. Pods without either are absent."""
    known = zones_of(nodes)
    found = {}
    for pod in pods:
        spec = pod.get("spec") or {}
        asked = (spec.get("nodeSelector") or {}).get(ZONE_LABEL, "")
        if zone := known.get(spec.get("nodeName", "")) or asked:
            found[pod["metadata"]["name"]] = zone
    return found


def gone_nodes(pods: Iterable[Manifest], nodes: Sequence[Manifest]) -> dict[str, str]:
    """Nodes of pods that are not ready or do not exist -> what is wrong. nodes: empty if unknown.

    What runs there shows as it was last seen.
    """
    ready = {node["metadata"]["name"]: _is_ready(node) for node in nodes}
    names = {pod["spec"].get("nodeName", "") for pod in pods} - {""} if nodes else set()
    found = {name: f"node {name} is not ready" for name in names if not ready.get(name)}
    return found | {name: f"node {name} is gone" for name in names - ready.keys()}


def useful(
    manifest: Manifest, pods: Iterable[Manifest], nodes: Sequence[Manifest]
) -> list[Manifest]:
    """Nodes with agents of the job, and those that may take one while they are empty. All, if the
    spec cannot be read."""
    spec = read(manifest)
    if isinstance(spec, list):
        return list(nodes)
    taken = {pod["spec"].get("nodeName") for pod in pods}
    needs = fitting.needs(spec.worker, spec.placement)
    return [node for node in nodes if node["metadata"]["name"] in taken or _suits(node, needs)]


def _suits(node: Manifest, needs: Needs) -> bool:
    meta = node["metadata"]
    labels, taints = meta.get("labels") or {}, (node.get("spec") or {}).get("taints") or []
    place = Place(meta["name"], labels.get(ZONE_LABEL, ""), labels, lasting(taints))
    allocatable = (node.get("status") or {}).get("allocatable")
    if allocatable is None:  # the kubelet has not registered it yet
        return not fitting.mismatch(needs, place)
    whole = fitting.free(allocatable, {})
    return not fitting.mismatch(needs, place) and fitting.room(needs.asks, whole)[0] > 0


def ready_by_zone(nodes: Iterable[Manifest]) -> dict[str, tuple[int, int]]:
    """Zone -> (ready nodes, all nodes), sorted by zone."""
    ready: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for node in nodes:
        zone = (node["metadata"].get("labels") or {}).get(ZONE_LABEL, "")
        every[zone] += 1
        ready[zone] += _is_ready(node)
    return {zone: (ready[zone], every[zone]) for zone in sorted(every)}


def _is_ready(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def seats_by_pod(pods: Iterable[Manifest], zones: Mapping[str, str]) -> dict[str, Seat]:
    """Every pod that has not ended. zones: pod -> zone."""
    found = (_seat(pod, 0, zones) for pod in pods)
    return {seat.pod: seat for seat in found if seat.phase not in ("Succeeded", "Failed")}


def seats(job: str, pods: Iterable[Manifest], zones: Mapping[str, str]) -> dict[Slot, Seat]:
    """The pod of each slot: the newest running one, else the newest. zones: pod -> zone."""
    found: dict[Slot, Seat] = {}
    for pod in pods:
        parsed = parse_pod_name(job, pod["metadata"]["name"])
        if parsed is None:
            continue
        slot, incarnation = parsed
        seat = _seat(pod, incarnation, zones)
        if slot not in found or _order(found[slot]) < _order(seat):
            found[slot] = seat
    return found


def _order(seat: Seat) -> tuple[bool, int]:
    """A replacement may wait beside a running pod that will leave."""
    return seat.phase == "Running", seat.incarnation


def _seat(pod: Manifest, incarnation: int, zones: Mapping[str, str]) -> Seat:
    node = pod["spec"].get("nodeName", "")
    leaving = pod["metadata"].get("deletionTimestamp")
    phase = "Terminating" if leaving else (pod.get("status") or {}).get("phase", "Pending")
    return Seat(
        pod=pod["metadata"]["name"],
        phase=phase,
        node=node,
        zone=zones.get(pod["metadata"]["name"], ""),
        incarnation=incarnation,
    )
