"""Scheduler and kubelets of the fake nodes: each new pod gets a node and runs at once.

A pod gets its token when an agent is to be played in it: to sign ten thousand of them would take a
tenth of the API server's time while pods are made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bamboo_devcluster.kube.client import ApiError, KubeApi, Object, UnreachableError, is_not_found
from bamboo_operator.kube.owners import owner_of
from bamboo_operator.trust.identity import AUDIENCE
from bamboo_sim.scale.control_plane import GPUS_OF_A_NODE, ZONES, ready_condition

_ZONE = "topology.kubernetes.io/zone"
_REPORT_S = 300.0
_WORKERS = 12
_TOKEN_S = 7200


@dataclass(frozen=True)
class RunningPod:
    """A pod with a node. token: what its kubelet mounts; empty: it has not asked for it."""

    namespace: str
    name: str
    uid: str
    job: str  # namespace/name
    node: str
    zone: str
    token: str = ""


class Kubelets:
    """Runs pods until cancelled. ``running``: by UID. ``seen``: UIDs of all that were made."""

    def __init__(self, api: KubeApi, nodes: int) -> None:
        self._api, self._nodes = api, nodes
        self._waiting: asyncio.Queue[Object] = asyncio.Queue()
        self._taken: Counter[int] = Counter()
        self._next = dict.fromkeys(ZONES, 0)
        self.running: dict[str, RunningPod] = {}
        self.seen: set[str] = set()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._report())
            for _ in range(_WORKERS):
                group.create_task(self._work())

    async def _watch(self) -> None:
        async for kind, found in self._api.watch("/api/v1/pods"):
            for pod in found if kind == "SYNC" else [found]:
                uid = pod["metadata"]["uid"]
                if kind == "DELETED":
                    self.running.pop(uid, None)
                elif pod["metadata"].get("deletionTimestamp") and uid in self.seen:
                    await self._end(pod)
                elif uid not in self.seen and owner_of(pod) is not None:
                    self.seen.add(uid)
                    self._waiting.put_nowait(pod)
            self.changed.set()

    async def _end(self, pod: Object) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        with suppress(ApiError):
            await self._api.delete(path, {"gracePeriodSeconds": 0})

    async def _work(self) -> None:
        while True:
            pod = await self._waiting.get()
            try:
                await self._start(pod)
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
            except UnreachableError:
                self._waiting.put_nowait(pod)
            self.changed.set()

    async def _start(self, pod: Object) -> None:
        meta = pod["metadata"]
        index = self._place(pod["spec"].get("nodeSelector") or {})
        node = f"node-{index}"
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        bound: Object = {"metadata": {"name": meta["name"]}, "target": {"name": node}}
        await self._api.post(f"{path}/binding", bound)
        await self._api.patch(f"{path}/status", {"status": _status(len(self.running))})
        owner = owner_of(pod)
        assert owner is not None
        self.running[meta["uid"]] = RunningPod(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            f"{meta['namespace']}/{owner.job}",
            node,
            ZONES[index % len(ZONES)],
        )

    async def with_tokens(self, pods: Iterable[RunningPod]) -> list[RunningPod]:
        """The pods, with tokens of their service accounts; without those that are gone."""
        found = await asyncio.gather(*map(self._with_token, pods))
        return [pod for pod in found if pod is not None]

    async def _with_token(self, pod: RunningPod) -> RunningPod | None:
        account = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/default/token"
        try:
            answer = await self._api.post(account, _token_request(pod))
        except ApiError as error:
            if is_not_found(error):
                return None
            raise
        return replace(pod, token=answer["status"]["token"])

    def _place(self, selector: dict[str, Any]) -> int:
        """The first node of the zone with a free device; the next one where all are taken."""
        zone = selector.get(_ZONE) or min(ZONES, key=lambda z: self._next[z])
        first, step = ZONES.index(zone), len(ZONES)
        index = first + step * self._next[zone]
        while self._taken[index] >= GPUS_OF_A_NODE and index + step < self._nodes:
            self._next[zone] += 1
            index += step
        self._taken[index] += 1
        return index

    async def _report(self) -> None:
        """Each kubelet describes its node every five minutes, though nothing has changed."""
        beat = 1
        while True:
            for index in range(self._nodes):
                await asyncio.sleep(_REPORT_S / self._nodes)
                status: Object = {"conditions": [ready_condition(beat)]}
                with suppress(ApiError, UnreachableError):
                    await self._api.patch(f"/api/v1/nodes/node-{index}/status", {"status": status})
            beat += 1

    async def until(self, count: int, timeout_s: float) -> None:
        """Wait for so many running pods. TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while len(self.running) < count:
                self.changed.clear()
                await self.changed.wait()


def _status(number: int) -> Object:
    at = "2026-01-01T00:00:00Z"
    names = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    conditions = [{"type": n, "status": "True", "lastTransitionTime": at} for n in names]
    container = {
        "name": "agent",
        "image": "agent:1",
        "imageID": "sha256:1",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": at}},
    }
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": at,
        "conditions": conditions,
        "containerStatuses": [container],
    }


def _token_request(pod: RunningPod) -> Object:
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
    spec = {"audiences": [AUDIENCE], "expirationSeconds": _TOKEN_S, "boundObjectRef": bound}
    return {"spec": spec}


def of_jobs(pods: Iterable[RunningPod]) -> dict[str, list[RunningPod]]:
    """The pods of each job."""
    found: dict[str, list[RunningPod]] = {}
    for pod in pods:
        found.setdefault(pod.job, []).append(pod)
    return found
