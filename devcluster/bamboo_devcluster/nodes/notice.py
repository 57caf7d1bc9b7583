"""Notices: a node is tainted, its pods are deleted with grace, and then it is killed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from bamboo_devcluster.errors import NodeError
from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import STRATEGIC_PATCH, ApiError, KubeApi

Object = dict[str, Any]

NOTICE_TAINT = "devcluster/spot-notice"
_GRACE_S = 30  # of pods that do not name one


class Notices:
    """The notices of one cluster."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def give(
        self, name: str, pods: list[Object], lead_s: float, kill: Callable[[], Awaitable[None]]
    ) -> None:
        """Taint the node, delete the pods, and call `kill` after lead_s."""
        taint = {
            "key": NOTICE_TAINT,
            "value": "true",
            "effect": "NoSchedule",
            "timeAdded": clock.to_time(clock.now()),
        }
        body: Object = {"spec": {"taints": [taint]}}
        await self._api.patch(f"/api/v1/nodes/{name}", body, STRATEGIC_PATCH)
        for pod in pods:
            await self._delete(pod, lead_s)
        self._tasks[name] = asyncio.create_task(self._later(lead_s, kill))

    def cancel(self) -> None:
        """Forget all notices."""
        for task in self._tasks.values():
            task.cancel()

    async def _delete(self, pod: Object, lead_s: float) -> None:
        metadata = pod["metadata"]
        wanted_s = pod["spec"].get("terminationGracePeriodSeconds")
        grace_s = int(min(_GRACE_S if wanted_s is None else wanted_s, lead_s))
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        options: Object = {
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": metadata["uid"]},
        }
        try:
            await self._api.delete(path, options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise NodeError(f"pod {metadata['name']} was not deleted: {error}") from error

    @staticmethod
    async def _later(lead_s: float, kill: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(lead_s)
        await kill()
