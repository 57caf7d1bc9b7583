"""Events for `kubectl describe`: sent in the background, dropped if the API is unreachable."""

import asyncio
from typing import Any

from bamboo_devcluster.kube import clock
from bamboo_devcluster.kube.client import ApiError, KubeApi, UnreachableError

Object = dict[str, Any]
_QUEUE_LIMIT = 1000
_MESSAGE_LIMIT_BYTES = 1024  # the API server refuses a longer one


class EventRecorder:
    """Queues events and posts them one after the other."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._queue: asyncio.Queue[Object] = asyncio.Queue(_QUEUE_LIMIT)

    def record(self, pod: Object, *, kind: str, reason: str, message: str) -> None:
        """Queue an event about a pod; `kind` is Normal or Warning."""
        metadata, now = pod["metadata"], clock.to_time(clock.now())
        event: Object = {
            "metadata": {
                "generateName": f"{metadata['name']}.",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": _shortened(message),
            "source": {"component": "kubelet", "host": pod["spec"].get("nodeName", "")},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if not self._queue.full():
            self._queue.put_nowait(event)

    async def run(self) -> None:
        """Post events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                namespace = event["metadata"]["namespace"]
                await self._api.post(f"/api/v1/namespaces/{namespace}/events", event)
            except (ApiError, UnreachableError):
                continue


def _shortened(message: str) -> str:
    """Cut between two characters."""
    data = message.encode(errors="backslashreplace")
    return data[:_MESSAGE_LIMIT_BYTES].decode(errors="ignore")
