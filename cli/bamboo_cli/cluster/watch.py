"""Polls a job until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bamboo_cli.cluster.kube import Kube
from bamboo_cli.errors import CommandError, ForbiddenError
from bamboo_cli.job import news
from bamboo_cli.job.pods import agent_zones, ready_by_zone, seats, seats_by_pod, useful
from bamboo_cli.job.snapshot import Snapshot
from bamboo_cli.job.state import Manifest, obstacle, read_job
from bamboo_cli.job.what_if import plan_in_force
from bamboo_core.placement.plan import Pipeline

_NEWS = 30
"""More events than the operator sends between two polls."""
_HEADLINES = 6
_POLL_S = 0.7


def look(kube: Kube, namespace: str, name: str) -> Snapshot:
    """The job now. ClusterError if it does not exist.

    If the user may not list nodes, zones come from the pods.
    """
    manifest = kube.job(namespace, name)
    job = read_job(manifest, time.time())
    pods = kube.pods(namespace, job.uid)
    try:
        nodes = kube.nodes()
    except ForbiddenError:
        nodes = []
    zones, events = agent_zones(pods, nodes), kube.events(namespace, job.uid)
    return Snapshot(
        job=job,
        seats=seats(name, pods, zones),
        plan=_plan(manifest),
        pods=seats_by_pod(pods, zones),
        nodes=ready_by_zone(useful(manifest, pods, nodes)),
        news=[news.line(event) for event in events[-_NEWS:]],
        headlines=news.headlines(events, _HEADLINES),
    )


def _plan(manifest: Manifest) -> tuple[Pipeline, ...]:
    try:
        durable = plan_in_force(manifest)
    except CommandError:  # of another version
        return ()
    return durable.pipelines if durable is not None else ()


def follow(
    kube: Kube,
    namespace: str,
    name: str,
    *,
    timeout_s: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Snapshot]:
    """Yield snapshots until the job has ended; the last one shows the end.

    Raises CommandError after timeout_s.
    """
    deadline = now() + timeout_s
    while True:
        snapshot = look(kube, namespace, name)
        yield snapshot
        if snapshot.job.ended:
            return
        if now() > deadline:
            raise CommandError(
                f"the job is {snapshot.job.phase} at step {snapshot.job.step} after {timeout_s:g} s"
                f" but should have ended{obstacle(snapshot.job)}."
            )
        pause(_POLL_S)
