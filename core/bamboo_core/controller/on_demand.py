"""When agents may use on-demand nodes, and how many. Only for jobs with ``placement.onDemand``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from bamboo_core.api.spec import JobSpec
from bamboo_core.controller import pod_zones, shortage
from bamboo_core.controller.view import PodView, Shortage, Slot
from bamboo_core.model.counts import counted

MOST = 64
"""Most instants that are remembered. The agents that lost their nodes last share one."""
_ROUNDING = 1e-9


def settle(
    spec: JobSpec,
    staying: Iterable[PodView],
    known: Iterable[Shortage],
    *,
    is_resting: bool,
    now: float,
) -> tuple[Shortage, ...]:
    """Since when which agents have had no node, the earliest first; empty: all have one, none is
    wanted, or the job has no such rule.

    A pod that names something that is not there lacks no node.
    """
    if spec.placement.on_demand is None or is_resting:
        return ()
    placed = {pod.slot for pod in staying if pod.node or pod.missing}
    since = {slot: short.since for short in known for slot in short.slots}
    found: dict[float, list[Slot]] = {}
    for slot in pod_zones.slots(spec):
        if slot not in placed:
            found.setdefault(since.get(slot, now), []).append(slot)
    instants = sorted(found)
    for at in instants[MOST - 1 : -1]:
        found[instants[-1]] += found.pop(at)
    return tuple(Shortage(at, tuple(sorted(found[at]))) for at in sorted(found))


def begins_at(spec: JobSpec, known: Iterable[Shortage]) -> Iterator[float]:
    """The instants from which some agents may use on-demand nodes, as things are."""
    rule = spec.placement.on_demand
    if rule is not None:
        yield from (short.since + rule.after_s for short in known)


def ripe(spec: JobSpec, known: Iterable[Shortage], *, now: float) -> Set[Slot]:
    """Slots whose agents have been without a node for long enough."""
    rule = spec.placement.on_demand
    late = [x for x in known if rule is not None and now >= x.since + rule.after_s]
    return {slot for short in late for slot in short.slots}


def budget(spec: JobSpec, staying: Iterable[PodView]) -> int:
    """Number of further agents that may use on-demand nodes."""
    return max(0, most(spec) - sum(pod.is_on_demand for pod in staying))


def most(spec: JobSpec) -> int:
    """Most agents that may be on on-demand nodes at once."""
    rule, seats = spec.placement.on_demand, spec.pipelines.count * spec.pipelines.stages
    return 0 if rule is None else int(rule.max_share * seats + _ROUNDING)


def explain(spec: JobSpec, known: Iterable[Shortage], *, now: float) -> str:
    """How many agents may use on-demand nodes, and from when on; empty: the job has no such
    rule."""
    rule, share = spec.placement.on_demand, most(spec)
    if rule is None:
        return ""
    if share:
        at = min(begins_at(spec, known), default=None)
        when = "" if at is None else f" from {shortage.instant(at)} on" if now < at else " now"
        return f"at most {counted(share, 'agent')} may use on-demand nodes{when}"
    return (
        "no agent may use on-demand nodes, since spec.placement.onDemand.maxShare"
        f" {rule.max_share:g} of {spec.pipelines.count * spec.pipelines.stages} is less than one"
    )
